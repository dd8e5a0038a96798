"""No tensor that a rank loss writes holds a subnormal number: some processors take ten times as long for each.

Every tensor is looked at, not a clock: blocks of values and slopes, products, weights, sums, gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recollect.losses import RecallAtK, Roadmap, SmoothAP, SupAP
from recollect.losses.engine.steps import Asymmetric

LOSSES: dict[str, Callable[..., torch.nn.Module]] = {
    "recall_at_k": RecallAtK,
    "recall_at_k, query counted": lambda **o: RecallAtK(count_query=True, **o),
    "recall_at_k, asymmetric": lambda **o: RecallAtK(step="asymmetric", **o),
    "recall_at_k, sharp": lambda **o: RecallAtK(tau1=0.05, tau2=0.004, **o),
    "recall_at_k, wide bend": lambda **o: RecallAtK(step=Asymmetric(delta=1.5), **o),
    "smooth_ap": SmoothAP,
    "sup_ap": SupAP,
    "roadmap": Roadmap,
}
SEPARATIONS = (0.02, 0.5, 2.0, 20.0)
"""Noise of images around the centre of their class."""


def _writes(func: Any) -> bool:
    """Whether an operation fills its result: not a view of another tensor, not memory as it was found."""
    alias = func._schema.returns[0].alias_info if func._schema.returns else None
    return "empty" not in func.__name__ and (alias is None or alias.is_write)


class WrittenTensors(TorchDispatchMode):
    """Counts the values that operations write, and the subnormal ones among them."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0
        self.subnormal: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _writes(func):
            return result
        for tensor in tree_leaves(result):
            # Half precision is only ever an input or an output: what is computed is float32 or better.
            if isinstance(tensor, Tensor) and tensor.dtype in (torch.float32, torch.float64):
                self.values += tensor.numel()
                tiny = (tensor != 0) & (tensor.abs() < torch.finfo(tensor.dtype).tiny)
                if bool(tiny.any()):
                    self.subnormal[str(func)] = self.subnormal.get(str(func), 0) + int(tiny.sum())
        return result


def spread_batch(noise: float, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Classes of 2 to 7 images; in 3 dimensions similarities of every size occur."""
    labels = torch.repeat_interleave(torch.arange(12), torch.arange(12) % 6 + 2)
    centres = normalize(torch.randn(12, dim), dim=1)[labels]
    return normalize(centres + noise * normalize(torch.randn(len(labels), dim), dim=1), dim=1).to(dtype), labels


def assert_nothing_subnormal(loss: torch.nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    leaf = embeddings.clone().requires_grad_()
    with WrittenTensors() as written:
        loss(leaf, labels).backward()
    assert written.values > 1000
    assert written.subnormal == {}
    assert leaf.grad is not None
    assert bool(leaf.grad.isfinite().all())


@pytest.mark.parametrize("name", LOSSES)
def test_no_subnormal_number_is_written(name: str) -> None:
    ways = ((3, False, True, torch.float32), (3, True, False, torch.float64), (64, True, True, torch.bfloat16))
    for noise, (dim, simix, prune, dtype) in itertools.product(SEPARATIONS, ways):
        assert_nothing_subnormal(LOSSES[name](simix=simix, prune=prune), *spread_batch(noise, dim, dtype))


def test_none_where_positives_span_every_similarity() -> None:
    """Positives from 1 down to −1 in even steps: every width of a window, and more windows than one."""
    for images in (3, 4, 8, 40):
        angle = torch.linspace(0, torch.pi, images)
        arc = torch.stack([angle.cos(), angle.sin()], dim=1)
        embeddings = torch.cat([arc, arc.flip(0) * 0.999, -arc])
        labels = torch.arange(3).repeat_interleave(images)
        for loss in (RecallAtK(), RecallAtK(prune=False), SmoothAP(), SupAP(), RecallAtK(tau2=0.03)):
            assert_nothing_subnormal(loss, embeddings, labels)
