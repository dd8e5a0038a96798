"""Every layout: a file with random weights in the original's names agrees with the original's forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recollect.models import backbones, zoo
from recollect.models.weights import load_weights, read_tensors

from . import originals

WIDTH, DEPTH, HEADS, GRID = 48, 2, 4, 2
AGREE = {"atol": 1e-9, "rtol": 1e-9}  # both sides in float64


def small(init: str, **options: Any) -> nn.Module:
    """The architecture of ``init`` with its own activation, norms and flags, but narrow and shallow."""
    row = zoo.find(init)
    patch = int(row.architecture.rsplit("/", 1)[1])
    return backbones.timm_library().create_model(
        row.timm_id,
        pretrained=False,
        num_classes=0,
        img_size=GRID * patch,
        dynamic_img_size=True,
        **({"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS} | options),
    )


def patch_of(init: str) -> int:
    return int(zoo.find(init).architecture.rsplit("/", 1)[1])


def double(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.double() for key, value in state.items()}


def picture(side: int) -> Tensor:
    return torch.randn(2, 3, side, side, dtype=torch.float64)


def check(backbone: nn.Module, image: Tensor, expected: Tensor) -> None:
    ours = backbone.double().eval()(image)
    assert expected.std() > 0.1  # a reference of zeros would agree with anything
    torch.testing.assert_close(ours, expected, **AGREE)


@pytest.mark.parametrize("init", ["clip400m-b32", "clip400m-l14", "clip2b-b16", "clip2b-l14", "diht-b32", "diht-b16"])
@pytest.mark.parametrize("text", [True, False])
def test_clip(init: str, text: bool, tmp_path: Path) -> None:
    state = originals.make_clip(WIDTH, DEPTH, patch_of(init), GRID, text)
    torch.save(state, tmp_path / "clip.pt")
    backbone = small(init)
    assert load_weights(backbone, tmp_path / "clip.pt", zoo.find(init)).layout == "clip"
    image = picture(GRID * patch_of(init))
    activation = "quickgelu" if init == "clip400m-b32" else "gelu"
    check(backbone, image, originals.run_clip(double(state), image, HEADS, activation))


def test_the_name_decides_the_activation_not_the_file(tmp_path: Path) -> None:
    state = originals.make_clip(WIDTH, DEPTH, 32, GRID)
    torch.save(state, tmp_path / "either.pt")
    image = picture(GRID * 32)
    outputs = []
    for init, activation in (("clip400m-b32", "quickgelu"), ("clip2b-b32", "gelu")):
        backbone = small(init)
        load_weights(backbone, tmp_path / "either.pt", zoo.find(init))
        check(backbone, image, originals.run_clip(double(state), image, HEADS, activation))
        outputs.append(backbone(image))
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3


@pytest.mark.parametrize("torchvision", [False, True])
def test_swag_and_torchvision(torchvision: bool, tmp_path: Path) -> None:
    state = originals.make_swag(WIDTH, DEPTH, 16, GRID, torchvision)
    torch.save(state, tmp_path / "vit.torch")
    backbone = small("swag-b16")
    assert load_weights(backbone, tmp_path / "vit.torch", zoo.find("swag-b16")).layout == "torchvision-vit"
    image = picture(GRID * 16)
    check(backbone, image, originals.run_swag(double(state), image, HEADS, torchvision))


@pytest.mark.parametrize("chunks", [False, True])
def test_dinov2(chunks: bool, tmp_path: Path) -> None:
    state = originals.make_dinov2(WIDTH, DEPTH, 14, GRID, chunks)
    torch.save(state, tmp_path / "dino.pth")
    backbone = small("dinov2-l14")
    assert load_weights(backbone, tmp_path / "dino.pth", zoo.find("dinov2-l14")).layout == "dinov2"
    image = picture(GRID * 14)
    check(backbone, image, originals.run_dinov2(double(state), image, HEADS, chunks))


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
def test_jax_vit(prefix: str, tmp_path: Path) -> None:
    state = originals.make_jax_vit(WIDTH, DEPTH, 16, GRID, HEADS)
    np.savez(tmp_path / "vit.npz", **{prefix + key: value.numpy() for key, value in state.items()})
    backbone = small("vit-b16-in21k")
    assert load_weights(backbone, tmp_path / "vit.npz", zoo.find("vit-b16-in21k")).layout == "jax-vit"
    image = picture(GRID * 16)
    check(backbone, image, originals.run_jax_vit(double(state), image))


@pytest.mark.parametrize(("init", "caffe"), [("r101-caffe", True), ("r101-in1k", False), ("r50-in1k", False)])
def test_resnets(init: str, caffe: bool, tmp_path: Path) -> None:
    layers = (1, 2, 1, 1)
    state = originals.make_resnet(layers, caffe)
    torch.save(state, tmp_path / "resnet.pth")
    row = zoo.find(init)
    backbone = backbones.timm_library().create_model(row.timm_id, pretrained=False, num_classes=0, layers=layers)
    assert load_weights(backbone, tmp_path / "resnet.pth", row).layout == ("caffe-resnet" if caffe else "timm")
    image = picture(64)
    expected = originals.run_resnet(double(state), image, layers, caffe)
    ours = backbone.double().eval().forward_features(image)  # type: ignore[operator]
    assert expected.std() > 0.05
    torch.testing.assert_close(ours, expected, **AGREE)


# The first five and the three largest logits of the bundled weights on the input below, from the plain forward pass in
# originals.py in float64.
LITE0_LOGITS = {
    0: -0.530417,
    1: 0.223932,
    2: -0.804973,
    3: -0.785423,
    4: -2.994986,
    398: 13.105301,
    772: 11.219849,
    906: 11.188713,
}


def lite0_input() -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")
    waves = [torch.sin(rows / (5 + i)) * torch.cos(columns / (9 - i)) for i in range(3)]
    return torch.stack(waves)[None].double()


def test_lite0_logits_are_pinned() -> None:
    from recollect.models.weight_files import find_weights

    row = zoo.find("lite0-in1k")
    path = find_weights(row)
    assert path is not None
    state = double(read_tensors(path))
    backbone = backbones.build_backbone("tf_efficientnet_lite0.in1k", 224)
    assert load_weights(backbone, path, row).layout == "efficientnet-lite"
    image = lite0_input()
    features = backbone.double().eval()(image)
    logits = (features @ state["_fc.weight"].T + state["_fc.bias"])[0]
    torch.testing.assert_close(logits, originals.run_lite0(state, image)[0], **AGREE)
    for index, value in LITE0_LOGITS.items():
        assert logits[index].item() == pytest.approx(value, abs=2e-6)
