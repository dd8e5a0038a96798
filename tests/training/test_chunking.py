"""``chunk_size="auto"``: measured, tried, halved, remembered."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from training_toys import NPair, batch, convnet, difference, gradients

from recollect.common.errors import ConfigError
from recollect.training import StepInfo, chunking, large_batch_step


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
    assert model.sizes == [4, 20, 10, 5] + [5] * 4  # measured on 4, tried thrice, then the step
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
            if self.sizes:
                self.limit = 0
            return super().forward(images)

    with pytest.raises(ConfigError, match="not even one image fits"):
        large_batch_step(Tight(6), NPair(), *batch())


def test_bytes_per_image_counts_what_the_graph_holds() -> None:
    """Linear without a bias saves its input (8 numbers), tanh its output (5); weights do not count."""
    model = nn.Sequential(nn.Linear(8, 5, bias=False), nn.Tanh())
    images = torch.randn(16, 8, requires_grad=True)
    assert chunking.bytes_per_image(lambda count: model(images[:count].clone()), model, 16) == (8 + 5) * 4


def test_cpu_chunk_follows_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = batch()
    model, info = convnet().double(), StepInfo()
    weight = chunking.bytes_per_image(lambda count: model(images[:count]), model)
    monkeypatch.setattr(chunking, "CPU_BUDGET", int(weight * 8.5))
    large_batch_step(model, NPair(), images, labels, info=info)
    assert info.chunk_size == 8
