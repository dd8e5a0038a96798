"""Embeddings and labels to a scalar: losses on soft ranks, and the losses they are compared with."""

from recollect.losses.recall_at_k import RecallAtK
from recollect.losses.registry import available, create
from recollect.losses.smooth_ap import SmoothAP
from recollect.losses.sup_ap import Roadmap, SupAP

__all__ = ["RecallAtK", "Roadmap", "SmoothAP", "SupAP", "available", "create"]
