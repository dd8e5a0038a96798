"""Smooth-AP: average precision with sigmoids for steps, the main competitor of RS@k."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recollect.common.option_checks import check_flag
from recollect.losses.engine.soft_rank import Ranks
from recollect.losses.engine.steps import Sigmoid, Step
from recollect.losses.rank_loss import RankLoss


class AveragePrecisionLoss(RankLoss):
    """``1 − mean_q 1/|P_q| Σ_x rank⁺(q, x) / rank(q, x)`` with any step.

    Args:
        step: how "z is ahead of x" is smoothed.
        count_query: rank the query among its references, as a positive of itself: the form of all released code. The
            papers', and the default, leaves the query out.
        **options: see ``recollect.losses.rank_loss.RankOptions``.
    """

    def __init__(self, *, step: Step, count_query: bool = False, **options: Any) -> None:
        super().__init__(
            step=step, query="positive" if check_flag("count_query", count_query) else "excluded", **options
        )

    def query_loss(self, ranks: Ranks) -> Tensor:
        """``1 − AP``, T."""
        return 1 - (ranks.positives / ranks.all * ranks.mask).sum(0) / ranks.count


class SmoothAP(AveragePrecisionLoss):
    """Smooth-AP (Brown et al., 2020): ``1 − mean_q mean_x rank⁺(q, x) / rank(q, x)`` over the positives x.

    Args:
        tau: temperature of the step on similarities; 0.01 in its paper.
        count_query: rank the query too, as a positive of itself: the released code's form, not the paper's.
        **options: see ``recollect.losses.rank_loss.RankOptions``.

    Examples:
        >>> import torch
        >>> embeddings = torch.nn.functional.normalize(torch.randn(4, 16), dim=1)
        >>> bool(SmoothAP()(embeddings, torch.tensor([0, 0, 1, 1])) >= 0)
        True
    """

    def __init__(self, tau: float = 0.01, count_query: bool = False, **options: Any) -> None:
        super().__init__(step=Sigmoid(tau), count_query=count_query, **options)
