"""Hierarchical average precision: a rank loss for labels with a second, coarser level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from recollect.common.errors import ConfigError, InputError
from recollect.common.option_checks import check_number
from recollect.losses.checks import TEMPERATURES
from recollect.losses.engine.graded_rank import GradedRank, LevelRanks
from recollect.losses.engine.simix import Mixing
from recollect.losses.engine.steps import Step
from recollect.losses.engine.tile_loop import Pairing, Term
from recollect.losses.rank_loss import RankOptions, TiledLoss
from recollect.losses.recall_at_k import make_step


class HierarchicalAP(TiledLoss):
    """Hierarchical AP with smooth steps, after HAPPIER (Ramzi et al., 2022): graded relevance instead of yes or no.

    An item with the query's label is at level 2, one that only has its coarser label at level 1, any other at level 0.
    With ``rel(l) = (l / 2)^alpha / |items at level l|`` and sums over the items x of level 1 and 2:

    ``loss = 1 − mean_q Σ_x Hrank(q, x) / rank(q, x) / Σ_x rel(x)``,
    ``Hrank(q, x) = rel(x) + Σ_z min(rel(x), rel(z)) · step(s_qz − s_qx)``.

    It is the metric ``h_ap`` of the evaluation, made differentiable. HAPPIER itself bounds the two ranks by different
    steps and adds a loss with class vectors; that is not part of this loss.

    Args:
        coarse: for each label 0, 1, …, its coarser label. By default, training uses the coarse labels of the images.
        alpha: how fast relevance falls with the level; larger gives the coarser level less weight.
        tau: temperature of the step on similarities.
        step: ``"sigmoid"``, or ``"asymmetric"``: ROADMAP's, with items at least as relevant compared by the true step.
        **options: see ``recollect.losses.rank_loss.RankOptions``. SiMix mixes images of one label.

    Raises:
        ConfigError: (a ``ValueError``) for a value out of range.

    Example:
        >>> import torch
        >>> loss = HierarchicalAP(coarse=[0, 0, 1])
        >>> embeddings = torch.nn.functional.normalize(torch.randn(6, 16), dim=1).requires_grad_()
        >>> loss(embeddings, torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    """

    options_type = RankOptions

    def __init__(
        self,
        coarse: Sequence[int],
        alpha: float = 1.0,
        tau: float = 0.01,
        step: Literal["sigmoid", "asymmetric"] | Step = "sigmoid",
        **options: Any,
    ) -> None:
        super().__init__(chosen := RankOptions(**options))
        whole = isinstance(coarse, list | tuple) and all(type(number) is int for number in coarse)
        if not whole or not coarse or min(coarse) < 0:
            raise ConfigError("coarse must be a list of whole numbers (0 or more): the coarser label of each label.")
        self.alpha, self.step = (
            check_number("alpha", alpha, 0, 100),
            make_step(step, check_number("tau", tau, *TEMPERATURES)),
        )
        self.prune = chosen.prune
        self.register_buffer("coarse", torch.tensor(coarse), persistent=False)
        self._fine: tuple[Tensor, Tensor] | None = None

    coarse: Tensor

    def of_pairing(self, pairing: Pairing, share: tuple[int, int] = (0, 1)) -> Tensor:
        """The loss of queries against references, already checked; the tile loop gets the coarser labels."""
        self._fine = pairing.labels, pairing.ref_labels
        labels, ref_labels = (self._coarser(labels) for labels in self._fine)
        try:
            return super().of_pairing(replace(pairing, labels=labels, ref_labels=ref_labels), share)
        finally:
            self._fine = None

    def term(self) -> Term:
        """Ranks of two levels, and the loss on them."""
        if self._fine is None:
            raise TypeError("the labels of a batch come first")
        return GradedRank(self.graded_loss, self.step, *self._fine, prune=self.prune)

    def graded_loss(self, coarse: LevelRanks, fine: LevelRanks) -> Tensor:
        """``1 − H-AP``, T."""
        grades = (0.5**self.alpha, 1.0)
        relevances = [grade / level.count.clamp(min=1) for grade, level in zip(grades, (coarse, fine), strict=True)]
        least = torch.minimum(*relevances)
        found, best = torch.zeros_like(least), torch.zeros_like(least)
        for grade, relevance, level in zip(grades, relevances, (coarse, fine), strict=True):
            h_rank = relevance * level.same + least * level.other
            found = found + (h_rank / level.all * level.mask).sum(0)
            best = best + grade * (level.count > 0).to(best.dtype)
        return 1 - found / best

    def _mix(self, labels: Tensor, ref_labels: Tensor | None) -> tuple[Mixing, Mixing]:
        """Only images with the same fine label are mixed."""
        if self._fine is None:
            raise TypeError("the labels of a batch come first")
        return super()._mix(self._fine[0], None if ref_labels is None else self._fine[1])

    def _coarser(self, labels: Tensor) -> Tensor:
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.coarse):
            raise InputError(
                f"the labels range from {int(labels.min())} to {int(labels.max())}, but coarse has {len(self.coarse)} entries: "
                "it needs one for each label, starting with label 0."
            )
        return self.coarse.to(labels.device)[labels.long()]

    def extra_repr(self) -> str:
        """What ``print(loss)`` shows."""
        return f"{len(self.coarse)} labels, alpha={self.alpha}, simix={self.simix}, step={self.step}"
