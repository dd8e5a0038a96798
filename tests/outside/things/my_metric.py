"""A metric of one's own: a function of the ranks of each query's positives."""

from torch import Tensor


def hit_share(ranks: Tensor, positives: Tensor) -> Tensor:
    """The share of a query's positives among its first five.

    Args:
        ranks: queries × positives, ascending, 1 for the top, infinite after a query's last positive.
        positives: how many positives each query has.
    """
    return (ranks <= 5).sum(dim=1) / positives.clamp(max=5).double()
