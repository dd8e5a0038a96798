"""Backbones from outside: maps, vectors, timm models; what cannot be one is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from recollect.common.errors import ConfigError, WeightsError
from recollect.models import Embedder
from recollect.models.backbones import CodeOrigin, CustomBackbone


class Maps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, stride=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).relu()


class Vectors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 16 * 16, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.flatten(1))


def test_maps_are_pooled_and_vectors_are_not() -> None:
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    maps, vectors = Embedder.create(Maps(), size=16, dim=None), Embedder.create(Vectors(), size=16, dim=None)
    direct = vectors.backbone.module(vectors.normalize(pixels))  # type: ignore[operator]
    assert torch.allclose(vectors(pixels), nn.functional.normalize(direct, dim=1))
    assert (vectors.feature_dim, vectors.takes_any_size) == (12, False)
    assert (maps.feature_dim, maps.takes_any_size) == (8, True)
    assert Embedder.create(Maps(), size=16).config.pooling == "gem"
    assert Embedder.create(Vectors(), size=16).config.pooling == "native"


def test_a_split_is_the_whole() -> None:
    embedder = Embedder.create(Maps(), size=16, dim=4).eval()
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    for upto in ("backbone", "pooling"):
        frozen, rest = embedder.split(upto)
        assert torch.equal(rest(frozen(pixels)), embedder(pixels))


def test_a_timm_model_is_taken_as_it_is() -> None:
    from recollect.models.backbones import timm_library

    model = timm_library().create_model("resnet18", pretrained=False, num_classes=0)
    embedder = Embedder.create(model, size=32)
    assert embedder.backbone is model
    assert embedder.feature_dim == 512


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Linear(3, 3), "fails on images of 16 px"),
        (nn.Flatten(2), "must return B×C×H×W or B×C"),
        (nn.Identity(), None),
    ],
)
def test_what_cannot_be_a_backbone(module: nn.Module, words: str | None) -> None:
    if words is None:
        assert CustomBackbone(module, 16, "x").num_features == 3
        return
    with pytest.raises(ConfigError, match=words):
        CustomBackbone(module, 16, "x")


def test_options_and_weights_belong_to_whom_they_belong() -> None:
    with pytest.raises(ConfigError, match="remove them"):
        Embedder.create("tiny", options={"width": 3})
    with pytest.raises(ConfigError, match="no weights file"):
        Embedder.create(Maps(), weights="x.pth", size=16)


def test_a_description_that_may_be_anything(tmp_path: Path) -> None:
    Embedder.create(Maps(), size=16).save(tmp_path)
    file = tmp_path / "embedder.json"
    whole = file.read_text()
    assert CodeOrigin("a:b", "c").architecture != CodeOrigin("a:b", "d").architecture
    for part, other in (('"reference": "', '"reference": 3, "x": "'), ('"options": {}', '"options": [1]')):
        assert part in whole
        file.write_text(whole.replace(part, other))
        with pytest.raises(WeightsError):
            Embedder.load(tmp_path, backbone=Maps())
    file.write_text(whole)
    assert torch.equal(Embedder.load(tmp_path, backbone=Maps()).head.linear.weight, _head(tmp_path))  # type: ignore[union-attr]


def _head(folder: Path) -> torch.Tensor:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")["head.linear.weight"]
