"""SupAP and ROADMAP: average precision with an asymmetric step, and the calibration that goes with it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recollect.losses.calibration import calibration_loss
from recollect.losses.checks import check_number
from recollect.losses.rank_loss import RankLoss
from recollect.losses.smooth_ap import average_precision_loss
from recollect.losses.soft_rank import Ranks
from recollect.losses.steps import Asymmetric


class SupAP(RankLoss):
    """SupAP (Ramzi et al., 2021): Smooth-AP with a step that is an upper bound and never saturates ahead.

    Args:
        tau, rho, delta, start, offset: the step, see ``recollect.losses.steps.Asymmetric``. The defaults are the
            published ones; for iNaturalist its authors use ``start=0, offset=1``.
        **options: ``simix``, ``max_pairs``, ``generator``, ``memory``, ``prune``: see ``RankLoss``.
    """

    def __init__(
        self,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        start: float = 0.5,
        offset: float = 1.44,
        **options: Any,
    ) -> None:
        super().__init__(Asymmetric(tau, rho, delta, start, offset), False, None, **options)

    def query_loss(self, ranks: Ranks) -> Tensor:
        """``1 − AP`` with the asymmetric ranks, T."""
        return average_precision_loss(ranks)


class Roadmap(SupAP):
    """ROADMAP (Ramzi et al., 2021): ``(1 − λ) · SupAP + λ · calibration``.

    The calibration draws positives above one similarity and negatives below another, so that scores of different
    queries can be compared: mean over positive pairs of ``[0.9 − s]₊`` plus mean over negative pairs of ``[s − 0.6]₊``.

    Args:
        calibration_weight: λ.
        positive_margin, negative_margin: the two similarities.
        **options: those of ``SupAP``. SiMix enlarges the ranking part; calibration is of the images themselves.
    """

    def __init__(
        self,
        calibration_weight: float = 0.5,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.calibration_weight = check_number("calibration_weight", calibration_weight, 0, 1)
        self.margins = (
            check_number("positive_margin", positive_margin, -1e6, 1e6),
            check_number("negative_margin", negative_margin, -1e6, 1e6),
        )

    def _compute(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        share: tuple[int, int],
    ) -> Tensor:
        ranking = super()._compute(embeddings, labels, ref_emb, ref_labels, share)
        memory = self._settings.memory
        calibration = calibration_loss(embeddings, labels, ref_emb, ref_labels, self.margins, memory, share)
        return (1 - self.calibration_weight) * ranking + self.calibration_weight * calibration
