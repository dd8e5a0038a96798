"""Average precision with smooth steps: Smooth-AP, the main competitor of RS@k, SupAP and ROADMAP."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from recollect.common.text import check_flag
from recollect.losses.engine.soft_rank import Ranks
from recollect.losses.engine.steps import Asymmetric, Sigmoid, Step
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


class SupAP(AveragePrecisionLoss):
    """SupAP (Ramzi et al., 2021): Smooth-AP with a step that is an upper bound and does not saturate for negatives ahead.

    Args:
        tau, rho, delta, start, offset: the step, see ``recollect.losses.engine.steps.Asymmetric``. The defaults are the
            published ones; for iNaturalist its authors use ``start=0, offset=1``.
        count_query: rank the query too, as a positive of itself: the released code's form, not the paper's.
        **options: see ``recollect.losses.rank_loss.RankOptions``.

    Examples:
        >>> import torch
        >>> embeddings = torch.nn.functional.normalize(torch.randn(4, 16), dim=1)
        >>> bool(SupAP()(embeddings, torch.tensor([0, 0, 1, 1])) >= 0)
        True
    """

    def __init__(
        self,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        start: float = 0.5,
        offset: float = 1.44,
        count_query: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(step=Asymmetric(tau, rho, delta, start, offset), count_query=count_query, **options)


class Roadmap(SupAP):
    """ROADMAP (Ramzi et al., 2021): ``(1 − λ) · SupAP + λ · calibration``.

    The calibration draws positives above one similarity and negatives below another, so that scores of different
    queries can be compared: mean over positive pairs of ``[0.9 − s]₊`` plus mean over negative pairs of ``[s − 0.6]₊``.
    SiMix enlarges the ranking part only; calibration uses the images themselves. The released code corresponds to
    ``count_query=True, calibrate="violating"``.

    Args:
        calibration_weight: λ.
        positive_margin, negative_margin: the two similarities.
        calibrate: ``"all"``: means over all pairs (the paper); ``"violating"``: over pairs beyond their margin only.
        tau, rho, delta, start, offset, count_query: see ``SupAP``.
        **options: see ``recollect.losses.rank_loss.RankOptions``.

    Examples:
        >>> import torch
        >>> embeddings = torch.nn.functional.normalize(torch.randn(4, 16), dim=1)
        >>> bool(Roadmap(calibration_weight=0.3)(embeddings, torch.tensor([0, 0, 1, 1])) >= 0)
        True
    """

    def __init__(
        self,
        calibration_weight: float = 0.5,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        calibrate: Literal["all", "violating"] = "all",
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        start: float = 0.5,
        offset: float = 1.44,
        count_query: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            tau,
            rho,
            delta,
            start,
            offset,
            count_query,
            calibration_weight=calibration_weight,
            positive_margin=positive_margin,
            negative_margin=negative_margin,
            calibrate=calibrate,
            **options,
        )
