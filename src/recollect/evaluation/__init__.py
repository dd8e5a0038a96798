"""Ranks to metrics: one streaming pass, every metric a short function of what it found."""

from recollect.evaluation.result import Evaluation
from recollect.evaluation.retrieval import evaluate

__all__ = ["Evaluation", "evaluate"]
