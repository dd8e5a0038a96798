"""The smooth steps that replace ``1 if z is ahead of x else 0`` in a rank.

A step is bound to one tile of similarities and then computes, block by block, its values ("how much is z ahead of x")
and its slopes. ``t = (s_qz − s_qx) / tau`` throughout, so similarities arrive here already divided by ``tau``.

Shapes: n reference rows, P positives, T queries (one column each). A block is P × n × T, sized to stay in the cache.

To add a step, write a class with ``tau``, ``positive`` (the step used between two positives), ``at_zero`` and ``bind``.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from recollect.common.text import check_number
from recollect.losses.checks import TEMPERATURES, largest_similarity


def hidden(dtype: torch.dtype) -> float:
    """A similarity, in units of tau, that is behind (−) or ahead of (+) every true one; x of this size are padding."""
    return 4 * largest_similarity(dtype)


class Bound(Protocol):
    """A step bound to the similarities of a tile: ``z`` (N × T) against ``x`` (P × T)."""

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        """Write step(z − x) for these rows of z and the first ``slots`` of x into ``out``."""
        ...

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        """Write weights · step′(z − x) for these rows of z and as many slots of x as ``weights`` has."""
        ...


class Step(Protocol):
    """What the engine needs from a step."""

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
        check_number("tau", self.tau, *TEMPERATURES)

    at_zero = 0.5

    @property
    def positive(self) -> Sigmoid:
        """Positives are compared by the same sigmoid."""
        return self

    def bind(self, z: Tensor, x: Tensor, lowest: Tensor, highest: Tensor) -> Bound:
        """Bind to a tile, in the form that is fastest there."""
        if z.device.type == "cpu":
            groups = _windows(x, lowest, highest)
            if 2 * len(groups) <= len(x) + 1:
                return _SigmoidOfRatio(z, x, groups)
        return _SigmoidOfDifference(z, x)


class _RatioRange(NamedTuple):
    """Limits that keep ``_SigmoidOfRatio`` within the range of a type; in float32: 105, 37, 86, 17."""

    window: float  # how far apart the x of a group may be
    log_a: float
    exponent: float  # the largest one; nearer to the maximum exp() is 10 × slower
    above: float  # how far above x a z adds exactly 1

    @classmethod
    def of(cls, dtype: torch.dtype) -> _RatioRange:
        kind, below, above = torch.finfo(dtype), saturation(dtype), 1.0 - math.log(torch.finfo(dtype).eps)
        exponent, smallest = math.log(kind.max) - 3, math.log(kind.tiny)
        # u_z of the lowest z and a·u_x of the highest x are finite, a·u_x·u_z of lowest x and highest z not subnormal.
        log_a = (2 * exponent + smallest + above - below) / 2
        return cls(2 * exponent - below - log_a - 2, log_a, exponent, above)


def _windows(x: Tensor, lowest: Tensor, highest: Tensor) -> list[slice]:
    """Runs of x (descending in each column) that are close enough to share one exponential of z."""
    widest = _RatioRange.of(x.dtype).window
    true = torch.where(x > highest, lowest, x)  # padding counts as the lowest
    starts = [0]
    while starts[-1] < len(x):
        near = (true[starts[-1]] - true[starts[-1] :]).amax(1) <= widest
        starts.append(starts[-1] + int(near.sum()))
    return [slice(begin, end) for begin, end in itertools.pairwise(starts)]


class _SigmoidOfRatio:
    """The sigmoid as ``a / (a + a·u_x·u_z)``, ``u_x = exp(x)``, ``u_z = exp(−z)``: an exponential per similarity, not per pair.

    Similarities that are saturated against every x of a group are drawn in to the edge of the group's window, which
    keeps the exponentials in range. Where z is far behind x, a·u_x·u_z overflows and the ratio is exactly 0; ``a`` is
    chosen so that this happens long before the ratio would be subnormal (its least value is 3e-23 in float32). A
    division that ends subnormal takes 14 times as long on some processors. Measured on a CPU: a multiplication, an
    addition and a division take a quarter of the time of a sigmoid.
    """

    def __init__(self, z: Tensor, x: Tensor, groups: list[slice]) -> None:
        self.groups = []
        below, fit, padding = saturation(z.dtype), _RatioRange.of(z.dtype), hidden(z.dtype) / 2
        self.a = torch.tensor(math.exp(fit.log_a), dtype=z.dtype)
        for group in groups:
            members = x[group]
            # The last valid x of each column bounds the window from below; padding is above everything.
            high = torch.where(members[:1] < padding, members[:1], 0.0)
            low = torch.where(members < padding, members, high).amin(0, keepdim=True)
            centre = low - below + fit.exponent  # as high as u_z of the lowest z allows, so that a·u_x has room
            u_z = torch.clamp(z, low - below, high + fit.above, out=z if group is groups[-1] else None)
            u_x = torch.minimum(members, high).sub_(centre - fit.log_a).exp_()
            self.groups.append((group, torch.sub(centre, u_z, out=u_z).exp_(), u_x))

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        for group, u_z, u_x in self.groups:
            here = out[group]
            if len(here):
                torch.addcmul(self.a, u_z[rows], u_x[: len(here), None], out=here)
                torch.div(self.a, here, out=here)
        return out

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        value = self.rise(rows, len(weights), out)
        return _sigmoid_slope(weights, value, out)


class _SigmoidOfDifference:
    """The plain sigmoid, for any spread of similarities and any device."""

    def __init__(self, z: Tensor, x: Tensor) -> None:
        self.z, self.x = z, x

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        return _clear_sigmoid_(torch.sub(self.z[rows], self.x[:slots, None], out=out))

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        return _sigmoid_slope(weights, self.rise(rows, len(weights), out), out)


def _clear_sigmoid_(t: Tensor) -> Tensor:
    """The sigmoid in place, 0 and 1 to rounding beyond saturation: neither it nor its exponential is subnormal."""
    edge = saturation(t.dtype)
    return t.clamp_(-edge, edge).sigmoid_()


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
        """Positives are compared by the same step."""
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
        check_number("tau", self.tau, *TEMPERATURES)
        check_number("rho", self.rho, 1e-6, 1e6)
        for name in ("delta", "start", "offset"):
            check_number(name, getattr(self, name), 0, 1e6)

    @property
    def at_zero(self) -> float:
        """Its value where z and x coincide."""
        return 0.5

    def bind(self, z: Tensor, x: Tensor, lowest: Tensor, highest: Tensor) -> Bound:
        """Bind to a tile."""
        return _BoundAsymmetric(self, z, x)


class _BoundAsymmetric:
    def __init__(self, step: Asymmetric, z: Tensor, x: Tensor) -> None:
        self.z, self.x, self.start, self.offset = z, x, step.start, step.offset
        self.incline, self.bend = step.rho * step.tau, step.delta / step.tau  # in units of tau

    def rise(self, rows: slice, slots: int, out: Tensor) -> Tensor:
        t = torch.sub(self.z[rows], self.x[:slots, None], out=out)
        near = _clear_sigmoid_(t.clone()).add_(t > 0, alpha=self.start)
        beyond = t > self.bend
        t.sub_(self.bend).mul_(self.incline).add_(self.offset)
        return torch.where(beyond, t, near, out=out)

    def slope(self, rows: slice, weights: Tensor, out: Tensor) -> Tensor:
        t = torch.sub(self.z[rows], self.x[: len(weights), None], out=out)
        beyond = t > self.bend
        slope = _sigmoid_slope(weights, _clear_sigmoid_(t), out)
        return torch.where(beyond, self.incline * weights[:, None], slope, out=out)
