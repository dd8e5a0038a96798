"""A loss of one's own in one file: reciprocal ranks of the positives, on the soft ranks of recollect."""

from __future__ import annotations

from torch import Tensor, arange

from recollect.losses import RankLoss, Ranks, Sigmoid


class ReciprocalRank(RankLoss):
    """1 − Σ_x 1/rank(q, x) / (1 + 1/2 + … + 1/n) over the n positives x: 0 when they come first.

    Args:
        tau: temperature of the step on similarities.
        **options: those of every rank loss, such as ``simix``.
    """

    def __init__(self, tau: float = 0.01, **options: object) -> None:
        super().__init__(step=Sigmoid(tau), **options)

    def query_loss(self, ranks: Ranks) -> Tensor:
        """One value per query, from the soft ranks of its positives (positives × queries)."""
        places = arange(1, len(ranks.all) + 1, device=ranks.all.device)[:, None]
        best = (ranks.mask / places).sum(0)  # the mask is filled from the first row on
        return 1 - (ranks.mask / ranks.all).sum(0) / best
