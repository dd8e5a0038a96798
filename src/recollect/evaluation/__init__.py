"""Evaluation: one streaming pass computes ranks, and every metric is a short function of the ranks.

This package needs only vectors and labels, no model. Start with ``evaluate``.
"""

from recollect.evaluation.metrics import Metric, default_ks
from recollect.evaluation.protocols import (
    ReidResult,
    RevisitedResult,
    evaluate_rankings,
    evaluate_reid,
    evaluate_revisited,
)
from recollect.evaluation.retrieval import Evaluation, evaluate
from recollect.evaluation.verdict import (
    Changes,
    Comparison,
    Interval,
    MetricChange,
    Verdict,
    changed_queries,
    confidence_interval,
    metric_name,
    paired_bootstrap,
    verdict,
)

__all__ = [
    "Changes",
    "Comparison",
    "Evaluation",
    "Interval",
    "Metric",
    "MetricChange",
    "ReidResult",
    "RevisitedResult",
    "Verdict",
    "changed_queries",
    "confidence_interval",
    "default_ks",
    "evaluate",
    "evaluate_rankings",
    "evaluate_reid",
    "evaluate_revisited",
    "metric_name",
    "paired_bootstrap",
    "verdict",
]
