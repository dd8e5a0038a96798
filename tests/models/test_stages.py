"""Features of several stages: their values, and that an embedder with them is one like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import make_images
from torch import Tensor, nn

from recollect.common.errors import ConfigError
from recollect.data import load
from recollect.inference import vectors
from recollect.inference.vectors import embed_set, part_rows
from recollect.models import Embedder
from recollect.search.encoder import fingerprint
from recollect.step.large_batch import large_batch_step

NETWORKS = {
    "lite0-in1k": "blocks.{}",
    "timm:resnet50.a1_in1k": "layer{}",
    "timm:vit_tiny_patch16_224.augreg_in21k": "blocks.{}",
    "timm:convnext_atto.d2_in1k": "stages.{}",
}
LAST = {"lite0-in1k": (6, 5, 4), "timm:resnet50.a1_in1k": (3, 2, 1), "timm:convnext_atto.d2_in1k": (2, 1, 0)}


def embedder(init: str = "lite0-in1k", stages: int = 2, size: int = 64) -> Embedder:
    torch.manual_seed(0)
    weights = None if init.startswith("lite0") else "none"
    return Embedder.create(init, weights=weights, stages=stages, size=size, dim=16, layer_norm=False).eval()


def pixels(size: int = 64, count: int = 3) -> Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("init", NETWORKS)
@torch.no_grad()
def test_features_are_those_of_the_last_stages_each_of_length_1(init: str) -> None:
    model, size = embedder(init, stages=3), 224 if "vit" in init else 64
    outputs: dict[int, Tensor] = {}
    numbers = LAST.get(init, (11, 10, 9))
    for number in numbers:
        module: nn.Module = model.backbone.get_submodule(NETWORKS[init].format(number))
        module.register_forward_hook(lambda _, inputs, output, number=number: outputs.__setitem__(number, output))
    inputs = model.embed(model.normalize(pixels(size)), before_head=True, progress=False)
    plain = embedder(init, stages=0).embed(model.normalize(pixels(size)), before_head=True, progress=False)
    expected = [plain]
    for number in numbers:
        x = outputs[number]
        if x.ndim == 3:
            expected.append(torch.cat([x[:, 0], x[:, 1:].mean(1)], dim=1))
        else:
            expected.append(torch.cat([x.mean((2, 3)), x.flatten(2).std(2, unbiased=False)], dim=1))
    torch.testing.assert_close(inputs, torch.cat([nn.functional.normalize(group) for group in expected], dim=1))


def test_it_is_split_saved_shortened_and_known_as_another_model(tmp_path: Path) -> None:
    model = embedder()
    vectors_ = model(pixels())
    features, head = model.split("pooling")
    assert torch.equal(head.eval()(features.eval()(pixels())), vectors_)
    model.save(tmp_path / "model")
    loaded = Embedder.load(tmp_path / "model")
    assert torch.equal(loaded(pixels()), vectors_)
    torch.testing.assert_close(model.shortened(8)(pixels()), nn.functional.normalize(vectors_[:, :8]))
    assert fingerprint(loaded) == fingerprint(model) != fingerprint(embedder(stages=0))


def test_a_batch_in_chunks_has_the_gradient_of_the_whole_batch() -> None:
    images, weight = pixels(count=6), torch.randn(6, 16, generator=torch.Generator().manual_seed(1))

    def gradients(chunk: int) -> list[Tensor]:
        model = embedder().train()
        large_batch_step(model, lambda rows, _: (rows * weight).sum().square(), images, torch.arange(6), chunk)
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for one, other in zip(gradients(6), gradients(4), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * float(one.abs().max()))


def test_a_channel_without_variance_has_a_finite_gradient() -> None:
    model = embedder()
    model(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


def test_one_pass_stores_the_features_of_the_last_layer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    images = load("folder", str(make_images(tmp_path, classes=3)), "train")
    model, plain = embedder(), embedder(stages=0)
    expected = part_rows(plain, images, keep=False).rows
    wide = part_rows(model, images, frozen="pooling").rows
    assert wide.shape == (len(images), model.pooled_dim)
    monkeypatch.setattr(vectors._Pixels, "rows", None)  # no image is embedded again
    assert np.array_equal(part_rows(plain, images).rows, expected)
    untrained = Embedder.create("lite0-in1k", dim=None, size=64).eval()
    assert embed_set(untrained, images).rows.shape == (len(images), 1280)
    model.set_stages(1)
    assert np.array_equal(part_rows(model, images).rows, wide)


def test_a_network_without_outputs_of_stages_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set model\.stages=0"):
        Embedder.create("tiny", stages=1)
