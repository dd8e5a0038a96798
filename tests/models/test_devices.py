"""Forward passes on fake CUDA tensors: no CUDA needed, and a tensor left on the CPU is an error."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from recollect.models import Embedder, embedder as multiscale

CUDA = torch.device("cuda:0")


def fake_cuda(module: nn.Module, mode: FakeTensorMode) -> None:
    """Replace the tensors of a module on the meta device by fake ones that say they are on CUDA."""
    for child in module.modules():
        for name, value in child._parameters.items():
            if value is not None:
                fake = FakeTensor(mode, value.detach(), CUDA)
                child._parameters[name] = nn.Parameter(fake, requires_grad=value.requires_grad)
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = FakeTensor(mode, buffer, CUDA)


@pytest.mark.parametrize("init", ["lite0-in1k", "tiny-grey", "r101-caffe", "vit-b16-in21k"])
def test_forward_stays_on_its_device(init: str) -> None:
    mode = FakeTensorMode()
    with torch.device("meta"):
        embedder = Embedder.create(init, weights="none").eval()
    fake_cuda(embedder, mode)
    with mode, torch.no_grad():
        pixels = torch.empty(2, 3, 224, 224, dtype=torch.uint8, device=CUDA)
        vectors = embedder(pixels)
        assert vectors.device == CUDA
        assert vectors.dtype == torch.float32
        if not init.startswith("vit"):  # timm resamples positions by indexing, which needs a CUDA build even for fakes
            scaled = multiscale.multiscale(embedder, embedder.normalize(pixels), (1.0, 0.7))
            assert scaled.device == CUDA


def test_a_mixture_of_devices_would_be_noticed() -> None:
    mode = FakeTensorMode()
    with torch.device("meta"):
        embedder = Embedder.create("tiny").eval()
    fake_cuda(embedder, mode)
    embedder.normalize.mean = FakeTensor(mode, torch.empty(3, 1, 1, device="meta"), torch.device("cpu"))
    with mode, torch.no_grad(), pytest.raises(Exception, match="device"):
        embedder(torch.empty(2, 3, 48, 48, dtype=torch.uint8, device=CUDA))
