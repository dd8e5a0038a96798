"""Counters as Prometheus reads them."""

from __future__ import annotations

from recollect.search.service_metrics import ServiceMetrics


def test_requests_times_and_sizes() -> None:
    metrics = ServiceMetrics()
    for seconds in (0.004, 0.02, 99.0):
        metrics.request("POST", "/search", 200, seconds)
    metrics.request("GET", 'odd"\n\\', 404, 0.1)
    metrics.batch(3)
    lines = metrics.text(items=7, generation=2, waiting=5).splitlines()
    assert 'recollect_requests_total{method="POST",route="/search",status="200"} 3' in lines
    assert r'recollect_requests_total{method="GET",route="odd\"\n\\",status="404"} 1' in lines
    # Buckets hold everything up to their edge; only searches are timed.
    assert 'recollect_search_seconds_bucket{le="0.005"} 1' in lines
    assert 'recollect_search_seconds_bucket{le="0.025"} 2' in lines
    assert 'recollect_search_seconds_bucket{le="+Inf"} 3' in lines
    assert "recollect_search_seconds_sum 99.024000" in lines
    assert 'recollect_batch_queries_bucket{le="2"} 0' in lines
    assert 'recollect_batch_queries_bucket{le="4"} 1' in lines
    assert lines[-6:] == [
        "# HELP recollect_generation Generation of the index that answers.",
        "# TYPE recollect_generation gauge",
        "recollect_generation 2",
        "# HELP recollect_waiting_queries Queries that wait to be embedded.",
        "# TYPE recollect_waiting_queries gauge",
        "recollect_waiting_queries 5",
    ]
