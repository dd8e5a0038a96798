"""Smooth-AP: average precision with sigmoids for steps, the main competitor of RS@k."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recollect.losses.rank_loss import RankLoss
from recollect.losses.soft_rank import Ranks
from recollect.losses.steps import Sigmoid


class SmoothAP(RankLoss):
    """Smooth-AP (Brown et al., 2020): ``1 − mean_q mean_x rank⁺(q, x) / rank(q, x)`` over the positives x.

    Args:
        tau: temperature of the step on similarities; 0.01 in its paper.
        **options: ``simix``, ``max_pairs``, ``generator``, ``memory``, ``prune``: see ``RankLoss``.

    Example:
        >>> import torch
        >>> embeddings = torch.nn.functional.normalize(torch.randn(4, 16), dim=1)
        >>> bool(SmoothAP()(embeddings, torch.tensor([0, 0, 1, 1])) >= 0)
        True
    """

    def __init__(self, tau: float = 0.01, **options: Any) -> None:
        super().__init__(Sigmoid(tau), False, None, **options)

    def query_loss(self, ranks: Ranks) -> Tensor:
        """``1 − AP``, T."""
        return average_precision_loss(ranks)


def average_precision_loss(ranks: Ranks) -> Tensor:
    """``1 − 1/|P_q| Σ_x rank⁺(q, x) / rank(q, x)`` of each query, T."""
    return 1 - (ranks.positives / ranks.all * ranks.mask).sum(0) / ranks.count
