"""Evaluation: one streaming pass computes ranks, and every metric is a short function of the ranks.

This package needs only vectors and labels, no model. Start with ``evaluate``.
"""

from recollect.common import lazy_names
from recollect.evaluation.metrics import Metric as Metric, default_ks as default_ks
from recollect.evaluation.protocols import (
    ReidResult as ReidResult,
    RevisitedResult as RevisitedResult,
    evaluate_rankings as evaluate_rankings,
    evaluate_reid as evaluate_reid,
    evaluate_revisited as evaluate_revisited,
)
from recollect.evaluation.retrieval import Evaluation as Evaluation, evaluate as evaluate
from recollect.evaluation.verdict import (
    Changes as Changes,
    Comparison as Comparison,
    Interval as Interval,
    MetricChange as MetricChange,
    Verdict as Verdict,
    changed_queries as changed_queries,
    confidence_interval as confidence_interval,
    metric_name as metric_name,
    paired_bootstrap as paired_bootstrap,
    verdict as verdict,
)

__all__ = lazy_names(__name__, __file__)[2]
