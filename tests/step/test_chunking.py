"""``chunk_size="auto"``: measured, tried, halved, remembered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from training_toys import NPair, batch, convnet, difference, gradients

from recollect.common.errors import ConfigError
from recollect.step import StepInfo, large_batch, large_batch_step


class Limited(nn.Module):
    """A network on a device that holds the graph of ``limit`` images and no more."""

    def __init__(self, limit: int, error: type[Exception] = torch.OutOfMemoryError) -> None:
        super().__init__()
        self.network, self.limit, self.error = convnet().double(), limit, error
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.sizes.append(len(images))
            if len(images) > self.limit:
                raise self.error("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes.")
        return self.network(images)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_halves_until_it_fits_and_remembers(error: type[Exception]) -> None:
    images, labels = batch()
    model, info = Limited(6, error), StepInfo()
    large_batch_step(model, NPair(), images, labels, info=info)
    assert info.chunk_size == 5  # 20, 10, 5
    assert model.sizes == [4, 2, 20, 10, 5] + [5] * 4  # measured on 4 and 2, tried thrice, then the step
    ours = gradients(model)
    model.sizes.clear()
    large_batch_step(model, NPair(), images[:18], labels[:18], info=info)
    assert model.sizes == [3, 5, 5, 5], "found once, it is not searched for again"
    model.zero_grad()
    NPair()(model.network(images), labels).backward()
    assert difference(ours, gradients(model)) < 1e-9


def test_the_search_leaves_no_trace() -> None:
    images, labels = batch()
    model = Limited(6)
    model.network.append(nn.Dropout(0.2))
    torch.manual_seed(9)
    large_batch_step(model, NPair(), images, labels)
    searched, state = gradients(model), torch.get_rng_state()
    model.zero_grad()
    torch.manual_seed(9)
    large_batch_step(model, NPair(), images, labels, 5)
    assert difference(searched, gradients(model)) == 0
    assert torch.equal(state, torch.get_rng_state())


def test_other_errors_are_not_swallowed() -> None:
    class Broken(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        large_batch_step(Broken(), NPair(), *batch())


def test_nothing_fits() -> None:
    class Tight(Limited):
        def forward(self, images: Tensor) -> Tensor:
            if len(self.sizes) == 2:  # after the measurements
                self.limit = 0
            return super().forward(images)

    with pytest.raises(ConfigError, match="one image fits"):
        large_batch_step(Tight(6), NPair(), *batch())


def _cast_weights(count: int) -> tuple[nn.Module, Callable[[int], Tensor], large_batch.GraphWeight]:
    """A network whose weights, cast to bf16, are heavy beside what an image adds; and what that weighs."""
    model = nn.Sequential(nn.Linear(400, 300, bias=False), nn.Tanh())
    images = torch.randn(count, 400, requires_grad=True)

    def forward(number: int) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            return model(images[:number])

    return model, forward, large_batch.GraphWeight(2 * 400 * 300, 2 * (400 + 300))


@pytest.mark.parametrize("count", [2, 3, 4, 16])
def test_what_does_not_grow_with_the_images_is_told_apart(count: int) -> None:
    model, forward, weight = _cast_weights(16)
    assert large_batch.graph_weight(forward, model, count) == weight


def test_the_chunk_fills_what_fixed_costs_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    model, forward, weight = _cast_weights(64)
    monkeypatch.setattr(large_batch, "CPU_BUDGET", int(weight.fixed + 40.5 * weight.each))
    assert large_batch.fitting_chunk(model, forward, 64, torch.device("cpu"), "cast") == 40
    monkeypatch.setattr(large_batch, "CPU_BUDGET", int(weight.fixed / 2))
    assert large_batch.fitting_chunk(model, forward, 64, torch.device("cpu"), "too little") == 1
