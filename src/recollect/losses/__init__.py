"""Losses on soft ranks, and the baseline losses they are compared with.

Losses are imported when first used: ``available`` lists them without torch. Build your own
rank loss from ``RankLoss``, ``Ranks`` and ``Sigmoid``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names
from recollect.losses.registry import available, create

if TYPE_CHECKING:
    from recollect.losses.average_precision import Roadmap, SmoothAP, SupAP
    from recollect.losses.engine.soft_rank import Ranks
    from recollect.losses.engine.steps import Sigmoid
    from recollect.losses.hierarchical_ap import HierarchicalAP
    from recollect.losses.matryoshka import Matryoshka
    from recollect.losses.rank_loss import RankLoss
    from recollect.losses.recall_at_k import RecallAtK

__all__ = [
    "HierarchicalAP",
    "Matryoshka",
    "RankLoss",
    "Ranks",
    "RecallAtK",
    "Roadmap",
    "Sigmoid",
    "SmoothAP",
    "SupAP",
    "available",
    "create",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "HierarchicalAP": "recollect.losses.hierarchical_ap",
        "Matryoshka": "recollect.losses.matryoshka",
        "RankLoss": "recollect.losses.rank_loss",
        "Ranks": "recollect.losses.engine.soft_rank",
        "RecallAtK": "recollect.losses.recall_at_k",
        "Roadmap": "recollect.losses.average_precision",
        "Sigmoid": "recollect.losses.engine.steps",
        "SmoothAP": "recollect.losses.average_precision",
        "SupAP": "recollect.losses.average_precision",
    },
)
