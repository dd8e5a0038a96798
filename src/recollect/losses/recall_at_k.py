"""RS@k: recall@k itself, made differentiable."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from recollect.common.errors import ConfigError
from recollect.common.text import check_flag, check_number, check_whole
from recollect.losses.checks import TEMPERATURES
from recollect.losses.engine.soft_rank import Ranks
from recollect.losses.engine.steps import Asymmetric, Sigmoid, Step, saturation
from recollect.losses.rank_loss import RankLoss

K = (1, 2, 4, 8, 16)
"""The paper's values of k."""

K_SIMIX = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32)
"""The paper's values of k with SiMix."""


class RecallAtK(RankLoss):
    """The recall@k surrogate RS@k of *Three Things to Know about Deep Metric Learning* (Patel, Tolias, Matas).

    With ``rank(q, x) = 1 + Σ_z σ_tau2(s_qz − s_qx)``, ``hits_k = Σ_x σ_tau1(k − rank(q, x))`` over the positives x:
    ``loss = mean_q mean_k 1 − min(hits_k, k) / min(k, |P_q|)``.

    Args:
        k: values of k to average over; by default the paper's, which differ with and without SiMix.
        tau1: temperature of the step on ranks, one for all k or one for each.
        tau2: temperature of the step on similarities.
        simix: enlarge the batch by SiMix.
        count_query: rank over the batch with the query in it, as the authors' released code does; the paper, and the
            default, ranks over the batch without it. ``"positive"``: the query is a positive of itself too, as in SupRank.
        step: ``"sigmoid"``, ``"asymmetric"`` (ROADMAP's, with its published constants and ``tau2``), or a step object
            of ``recollect.losses.engine.steps``, whose own ``tau`` is used instead of ``tau2``.
        **options: see ``recollect.losses.rank_loss.RankOptions``; with ``calibration_weight`` ROADMAP's calibration.

    Raises:
        ConfigError: (a ``ValueError``) for a k that is not a whole number from 1 to 1,000,000, more than 1,000 of them,
            or a temperature out of range (tau1 1e-6 to 1e6, tau2 1e-8 to 1e8).

    Examples:
        >>> import torch
        >>> loss = RecallAtK()
        >>> embeddings = torch.nn.functional.normalize(torch.randn(8, 16), dim=1).requires_grad_()
        >>> loss(embeddings, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])).backward()
    """

    def __init__(
        self,
        k: int | Sequence[int] | None = None,
        tau1: float | Sequence[float] = 1.0,
        tau2: float = 0.01,
        simix: bool = False,
        count_query: bool | Literal["positive"] = False,
        step: Literal["sigmoid", "asymmetric"] | Step = "sigmoid",
        **options: Any,
    ) -> None:
        k_values = _check_k((K_SIMIX if check_flag("simix", simix) else K) if k is None else k)
        each = tuple(check_number("tau1", v, 1e-6, 1e6) for v in (tau1 if isinstance(tau1, list | tuple) else [tau1]))
        if len(each) not in (1, len(k_values)):
            raise ConfigError(
                f"tau1 has {len(each)} values, but k has {len(k_values)}: give one for each k, or one for all."
            )
        # A positive this far behind every k has σ_tau1(k − rank) below rounding, in float64 too.
        limit = max(k_values) + max(each) * saturation(torch.float64)
        query: Literal["ranked", "excluded", "positive"] = "positive"
        if count_query != "positive":
            query = "ranked" if check_flag("count_query", count_query) else "excluded"
        tau2 = check_number("tau2", tau2, *TEMPERATURES)
        super().__init__(step=make_step(step, tau2), query=query, rank_limit=limit, simix=simix, **options)
        self.k, self.tau1, self.tau2 = k_values, each if len(each) > 1 else each[0], tau2

    def query_loss(self, ranks: Ranks) -> Tensor:
        """``mean_k 1 − min(hits_k, k) / min(k, |P_q|)``, T."""
        k, tau1 = (_column(values, ranks.all.dtype, ranks.all.device) for values in (self.k, self.tau1))
        # Beyond ±60 the sigmoid is 0 or 1 in float64 too; far beyond, it and its gradient would be subnormal.
        ahead = ((k[:, None] - ranks.all) / tau1[:, None]).clamp(-60, 60)
        hits = (torch.sigmoid(ahead) * ranks.mask).sum(1)  # number of k × T
        return (1 - torch.minimum(hits, k) / torch.minimum(k, ranks.count)).mean(0)

    def extra_repr(self) -> str:
        """What ``print(loss)`` shows."""
        return f"k={self.k}, tau1={self.tau1}, tau2={self.tau2}, simix={self.simix}, step={self.step}"


@functools.cache
def _column(values: float | tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The values as rows; once per device, because each copy to a GPU would make the host wait for it."""
    with torch.inference_mode(False):  # or a later gradient could not use it
        return torch.tensor(values, dtype=dtype, device=device).reshape(-1, 1)


_STEPS: dict[str, Callable[[float], Step]] = {"sigmoid": Sigmoid, "asymmetric": Asymmetric}


def _check_k(k: Any) -> tuple[int, ...]:
    values = [k] if isinstance(k, int) else k
    if not isinstance(values, Sequence) or isinstance(values, str) or not 1 <= len(values) <= 1000:
        raise ConfigError(f"k must be 1 to 1,000 whole numbers, but is {reprlib.repr(k)}.")
    return tuple(check_whole("k", value, 1, 10**6) for value in values)


def make_step(step: str | Step, tau: float) -> Step:
    """The step of that name with temperature ``tau``; a step object is returned unchanged."""
    if isinstance(step, str) and step in _STEPS:
        return _STEPS[step](tau)
    if not hasattr(step, "bind"):
        raise ConfigError(
            f"step {step!r} is unknown: use 'sigmoid', 'asymmetric' or a step of recollect.losses.engine.steps."
        )
    return cast(Step, step)
