"""Losses on soft ranks, and the baseline losses they are compared with.

Losses are imported when first used: ``available`` lists them without torch. Build your own
rank loss from ``RankLoss``, ``Ranks`` and ``Sigmoid``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.losses.average_precision import Roadmap as Roadmap, SmoothAP as SmoothAP, SupAP as SupAP
    from recollect.losses.engine.soft_rank import Ranks as Ranks
    from recollect.losses.engine.steps import Sigmoid as Sigmoid
    from recollect.losses.hierarchical_ap import HierarchicalAP as HierarchicalAP
    from recollect.losses.matryoshka import Matryoshka as Matryoshka
    from recollect.losses.rank_loss import RankLoss as RankLoss
    from recollect.losses.recall_at_k import RecallAtK as RecallAtK
    from recollect.losses.registry import available as available, create as create

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
