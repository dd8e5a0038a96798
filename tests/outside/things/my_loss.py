"""A rank loss of one's own: how far down the list the positives of a query are, on a logarithmic scale."""

from torch import Tensor

from recollect.losses import RankLoss, Ranks, Sigmoid


class LogRank(RankLoss):
    """The mean logarithm of the positives' ranks.

    Args:
        tau: temperature of the sigmoid that smooths ranks.
    """

    def __init__(self, tau: float = 0.05, **options) -> None:
        super().__init__(step=Sigmoid(tau), **options)

    def query_loss(self, ranks: Ranks) -> Tensor:
        # ranks.all: positives × queries, from 1; ranks.mask: which of them there are; ranks.count: how many per query.
        return (ranks.all.log() * ranks.mask).sum(0) / ranks.count
