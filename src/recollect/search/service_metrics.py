"""Counters of a service, in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32)


class ServiceMetrics:
    """The counters. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._seconds, self._sizes = _Histogram(_SECONDS), _Histogram(_SIZES)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request by its route (not by its path: there are too many)."""
        with self._lock:
            self._requests[method, route, status] += 1
            if route == "/search":
                self._seconds.add(seconds)

    def batch(self, size: int) -> None:
        """Count a batch of queries."""
        with self._lock:
            self._sizes.add(size)

    def text(self, items: int, generation: int, waiting: int) -> str:
        """All counters, for ``/metrics``."""
        with self._lock:
            lines = ["# HELP recollect_requests_total Requests answered.", "# TYPE recollect_requests_total counter"]
            for (method, route, status), count in sorted(self._requests.items()):
                labels = f'method="{_escaped(method)}",route="{_escaped(route)}",status="{status}"'
                lines.append(f"recollect_requests_total{{{labels}}} {count}")
            lines += self._seconds.lines("recollect_search_seconds", "Time to answer a search.")
            lines += self._sizes.lines("recollect_batch_queries", "Queries embedded together.")
        for name, help_text, value in (
            ("recollect_items", "Images in the index.", items),
            ("recollect_generation", "Generation of the index that answers.", generation),
            ("recollect_waiting_queries", "Queries that wait to be embedded.", waiting),
        ):
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value}"]
        return "\n".join(lines) + "\n"


class _Histogram:
    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges, self.counts, self.total = edges, [0] * (len(edges) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def lines(self, name: str, help_text: str) -> list[str]:
        found, below = [f"# HELP {name} {help_text}", f"# TYPE {name} histogram"], 0
        for edge, count in zip((*map(str, self.edges), "+Inf"), self.counts, strict=True):
            below += count
            found.append(f'{name}_bucket{{le="{edge}"}} {below}')
        return [*found, f"{name}_sum {self.total:.6f}", f"{name}_count {below}"]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
