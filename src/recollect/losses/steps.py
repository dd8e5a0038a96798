"""The smooth steps that replace ``1 if z is ahead of x else 0`` in a rank.

A step is bound to one tile of similarities and then asked, block by block, for its values ("how much is z ahead of x")
and its slopes. ``t = (s_qz − s_qx) / tau`` throughout, so similarities arrive here already divided by ``tau``.

Shapes: n reference rows, P positives, T queries (one column each). A block is P × n × T, sized to stay in the cache.

To add a step, write a class with ``tau``, ``positive`` (the step used between two positives), ``at_zero`` and ``bind``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.losses.checks import check_positive


class Bound(Protocol):
    """A step bound to the similarities of a tile: ``z`` (N × T) against ``x`` (P × T)."""

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        """Write step(z − x) for these rows of z and the first ``slots`` of x into ``out``."""
        ...

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        """Write weights · step′(z − x) for these rows of z and as many slots of x as ``weights`` has."""
        ...


class Step(Protocol):
    """What the engine needs to know of a step."""

    @property
    def tau(self) -> float:
        """The temperature that similarities are divided by."""
        ...

    @property
    def positive(self) -> Step:
        """The step between two positives."""
        ...

    @property
    def at_zero(self) -> float:
        """Its value where z and x coincide."""
        ...

    def bind(self, z: Tensor, x: Tensor, lowest: Tensor, highest: Tensor) -> Bound:
        """Bind to a tile; ``lowest`` and ``highest`` (T) bound the valid x of each query. May overwrite ``z``."""
        ...


def saturation(dtype: torch.dtype) -> float:
    """How far (in units of tau) below x a z adds nothing: exp(−this), times any real batch size, is under rounding."""
    return -math.log(torch.finfo(dtype).eps) + 12.0


@dataclass(frozen=True)
class Sigmoid:
    """``1 / (1 + exp(−t))``: the step of RS@k and Smooth-AP."""

    tau: float = 0.01

    def __post_init__(self) -> None:
        check_positive("tau", self.tau)

    at_zero = 0.5

    @property
    def positive(self) -> Sigmoid:
        """Positives are compared by the same sigmoid."""
        return self

    def bind(self, z: Tensor, x: Tensor, lowest: Tensor, highest: Tensor) -> Bound:
        """Bind to a tile, in the form that is fastest and safe there."""
        margin = saturation(z.dtype)
        # exp() of both sides must neither overflow nor reach subnormal numbers, whose arithmetic is 15 × slower.
        widest = -math.log(torch.finfo(z.dtype).tiny) - margin
        if z.device.type == "cpu" and float((highest - lowest).amax()) <= widest:
            return _SigmoidOfRatio(z, x, lowest - margin, highest + margin)
        return _SigmoidOfDifference(torch.maximum(z, lowest - margin, out=z), x)


class _SigmoidOfRatio:
    """The sigmoid as ``u_z / (u_z + u_x)`` with ``u = exp(s)``: one exponential a similarity instead of one a pair.

    Similarities beyond ``low`` and ``high`` are saturated against every x and are drawn in to them, which keeps ``u`` in
    range. Measured on a CPU: a sixth of the time of the exponential a pair.
    """

    def __init__(self, z: Tensor, x: Tensor, low: Tensor, high: Tensor) -> None:
        centre = (low + high) / 2
        self.u_z = torch.clamp(z, low, high, out=z).sub_(centre).exp_()
        self.u_x = x.clamp(low, high).sub_(centre).exp_()

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        u_z = self.u_z[rows]
        torch.add(u_z, self.u_x[:slots, None], out=out)
        return torch.div(u_z, out, out=out)

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        value = self.rise(rows, len(weights), out)
        return _sigmoid_slope(weights, value, out)


class _SigmoidOfDifference:
    """The sigmoid as written, for any spread of similarities and any device."""

    def __init__(self, z: Tensor, x: Tensor) -> None:
        self.z, self.x = z, x

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        return torch.sub(self.z[rows], self.x[:slots, None], out=out).sigmoid_()

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        return _sigmoid_slope(weights, self.rise(rows, len(weights), out), out)


def _sigmoid_slope(weights: Tensor, value: Tensor, out: Tensor) -> Tensor:
    """weights · value · (1 − value), in one pass over memory."""
    grad: Tensor = torch.ops.aten.sigmoid_backward.grad_input(weights[:, None].expand_as(value), value, grad_input=out)
    return grad


@dataclass(frozen=True)
class Heaviside:
    """The true step, 1 where z is at least as similar as x; it has no gradient."""

    tau: float = 1.0
    at_zero = 1.0

    @property
    def positive(self) -> Heaviside:
        """The same."""
        return self

    def bind(self, z: Tensor, x: Tensor, lowest: Tensor, highest: Tensor) -> Bound:
        """Bind to a tile."""
        return _BoundHeaviside(z, x)


class _BoundHeaviside:
    def __init__(self, z: Tensor, x: Tensor) -> None:
        self.z, self.x = z, x

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        return torch.ge(self.z[rows], self.x[:slots, None], out=out)

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        return out.zero_()


@dataclass(frozen=True)
class Asymmetric:
    """ROADMAP's step: an upper bound of the true one that keeps pushing negatives that are far ahead.

    Against a negative z, with u = s_qz − s_qx: ``σ(u/tau)`` for u ≤ 0; ``start + σ(u/tau)`` for 0 < u ≤ delta;
    ``rho (u − delta) + offset`` beyond. Between positives: the true step, without gradient.

    Defaults are those of Ramzi et al. (2021) for SOP and CUB; for iNaturalist they use start 0 and offset 1.
    """

    tau: float = 0.01
    rho: float = 100.0
    delta: float = 0.05
    start: float = 0.5
    offset: float = 1.44
    positive: Heaviside = field(default_factory=Heaviside)

    def __post_init__(self) -> None:
        check_positive("tau", self.tau)
        check_positive("rho", self.rho)
        if self.delta < 0 or self.start < 0 or self.offset < 0:
            raise InputError(
                f"delta, start and offset must not be negative, but are {self.delta}, {self.start} and {self.offset}."
            )

    @property
    def at_zero(self) -> float:
        """Its value where z and x coincide."""
        return 0.5

    def bind(self, z: Tensor, x: Tensor, lowest: Tensor, highest: Tensor) -> Bound:
        """Bind to a tile; only the lower side saturates."""
        return _BoundAsymmetric(self, torch.maximum(z, lowest - saturation(z.dtype), out=z), x)


class _BoundAsymmetric:
    def __init__(self, step: Asymmetric, z: Tensor, x: Tensor) -> None:
        self.z, self.x, self.start, self.offset = z, x, step.start, step.offset
        self.incline, self.bend = step.rho * step.tau, step.delta / step.tau  # in units of tau

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        t = torch.sub(self.z[rows], self.x[:slots, None], out=out)
        near = torch.sigmoid(t).add_(t > 0, alpha=self.start)
        beyond = t > self.bend
        t.sub_(self.bend).mul_(self.incline).add_(self.offset)
        return torch.where(beyond, t, near, out=out)

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        t = torch.sub(self.z[rows], self.x[: len(weights), None], out=out)
        beyond = t > self.bend
        t.sigmoid_()
        slope = torch.where(beyond, self.incline, t.mul_(1 - t))
        return torch.mul(slope, weights[:, None], out=out)
