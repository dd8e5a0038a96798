"""Embeddings and labels to a scalar: losses on soft ranks, and the losses they are compared with.

Losses are imported when first used: ``available`` lists them without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common.imports import lazy_names
from recollect.losses.registry import available, create

if TYPE_CHECKING:
    from recollect.losses.matryoshka import Matryoshka
    from recollect.losses.recall_at_k import RecallAtK
    from recollect.losses.smooth_ap import SmoothAP
    from recollect.losses.sup_ap import Roadmap, SupAP

__all__ = ["Matryoshka", "RecallAtK", "Roadmap", "SmoothAP", "SupAP", "available", "create"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Matryoshka": "recollect.losses.matryoshka",
        "RecallAtK": "recollect.losses.recall_at_k",
        "Roadmap": "recollect.losses.sup_ap",
        "SmoothAP": "recollect.losses.smooth_ap",
        "SupAP": "recollect.losses.sup_ap",
    },
)
