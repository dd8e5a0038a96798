"""Tests of ``models/backbones.py``, ``models/backbones.py``."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from recollect.common.errors import ConfigError, InputError
from recollect.common.images import IMAGENET_MEAN
from recollect.models import Embedder

PIXELS = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def lite0() -> Embedder:
    return Embedder.create("lite0-in1k")


def test_the_chain(lite0: Embedder) -> None:
    """Forward is normalization → backbone → GeM → LayerNorm → Linear → L2, written out."""
    embedder = lite0.eval()
    x = (PIXELS.float() / 255 - 0.5) / 0.5
    maps = embedder.backbone.forward_features(x)  # type: ignore[operator]
    pooled = maps.clamp(min=1e-6).pow(3).mean((2, 3)).pow(1 / 3)
    y = embedder.head.linear(embedder.head.norm(pooled))  # type: ignore[misc]
    torch.testing.assert_close(embedder(PIXELS), F.normalize(y), atol=1e-5, rtol=1e-4)
    assert embedder(PIXELS).dtype == torch.float32
    torch.testing.assert_close(embedder(PIXELS).norm(dim=1), torch.ones(3))


def test_floating_images_are_taken_as_normalized(lite0: Embedder) -> None:
    normalized = (PIXELS.float() / 255 - 0.5) / 0.5
    torch.testing.assert_close(lite0.eval()(normalized), lite0(PIXELS), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("wrong", [torch.zeros(3, 8, 8), torch.zeros(1, 1, 8, 8), torch.zeros(1, 3, 8, 8).long()])
def test_images_of_another_kind_are_refused(lite0: Embedder, wrong: torch.Tensor) -> None:
    with pytest.raises(InputError):
        lite0(wrong)


def test_float32_and_unit_length_under_autocast(lite0: Embedder) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = lite0.eval()(PIXELS)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3), atol=1e-6, rtol=0)
    assert (vectors * lite0(PIXELS)).sum(1).min() > 0.98


def test_init_rows_are_the_pretrained_features_themselves() -> None:
    embedder = Embedder.create("lite0-in1k", dim=None).eval()
    assert embedder.dim == 1280
    assert embedder.head.linear is None
    maps = embedder.backbone.forward_features((PIXELS.float() / 255 - 0.5) / 0.5)  # type: ignore[operator]
    torch.testing.assert_close(embedder(PIXELS), F.normalize(maps.mean((2, 3))), atol=1e-5, rtol=1e-4)


def test_options_of_the_papers_code() -> None:
    with torch.device("meta"):
        vit = Embedder.create("vit-b16-in21k", weights="none", layer_norm=True, normalization="imagenet")
        plain = Embedder.create("vit-b16-in21k", weights="none")
    assert isinstance(vit.head.norm, nn.LayerNorm)
    assert plain.head.norm is None
    assert vit.preprocessing.mean == IMAGENET_MEAN
    assert plain.preprocessing.mean == (0.5, 0.5, 0.5)


def test_sizes() -> None:
    with torch.device("meta"):
        vit = Embedder.create("vit-b16-in21k", weights="none", size=384)
    assert (vit.preprocessing.size, vit.preprocessing.resize) == (384, 439)
    assert vit.backbone.pos_embed.shape == (1, 24 * 24 + 1, 768)  # type: ignore[union-attr]
    assert Embedder.create("tiny", size=32).preprocessing.resize == 32
    assert Embedder.create("tiny", resize=None).preprocessing.resize is None
    for wrong in ({"size": 0}, {"resize": 8}, {"interpolation": "magic"}, {"normalization": "mine"}):
        with pytest.raises(ConfigError):
            Embedder.create("tiny", **wrong)  # type: ignore[arg-type]


def norms(embedder: Embedder) -> list[nn.Module]:
    return [module for module in embedder.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize(
    ("policy", "statistics_move", "affine_trained"),
    [("frozen", False, False), ("statistics", False, True), ("trained", True, True)],
)
def test_batch_norm(policy: str, statistics_move: bool, affine_trained: bool) -> None:
    embedder = Embedder.create("lite0-in1k", weights="none", batch_norm=policy)
    embedder.eval().train()  # the usual dance of a training loop
    assert embedder.training
    assert len(norms(embedder)) == 49
    before = [norm.running_mean.clone() for norm in norms(embedder)]  # type: ignore[operator,union-attr]
    embedder(PIXELS).sum().backward()
    after = [norm.running_mean for norm in norms(embedder)]
    moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]  # type: ignore[arg-type]
    assert all(moved) if statistics_move else not any(moved)
    grads = [norm.weight.grad is not None for norm in norms(embedder)]
    assert all(grads) if affine_trained else not any(grads)
    # The same holds for the parts of a split, which a training loop puts into training mode by themselves.
    for part in embedder.split("blocks.2"):
        part.train()
        assert all(n.training == statistics_move for n in part.modules() if isinstance(n, nn.BatchNorm2d))


def test_unknown_policy() -> None:
    with pytest.raises(ConfigError, match="frozen, statistics, trained"):
        Embedder.create("tiny", batch_norm="off")


def groups(embedder: Embedder, **options: Any) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in embedder.parameter_groups(1e-4, 4e-4, **options)}


def test_parameter_groups_hold_every_trained_parameter_once(lite0: Embedder) -> None:
    for options in ({}, {"decay_norm_and_bias": False}):
        held = [id(p) for group in lite0.parameter_groups(1e-4, 4e-4, **options) for p in group["params"]]  # type: ignore[arg-type]
        assert len(held) == len(set(held))
        assert set(held) == {id(p) for p in lite0.parameters() if p.requires_grad}


def test_parameter_groups_have_the_papers_settings(lite0: Embedder) -> None:
    plain = groups(lite0)
    assert {name: (g["lr"], g["weight_decay"]) for name, g in plain.items()} == {
        "backbone": (1e-4, 4e-4),
        "head": (1e-4, 4e-4),
        "gem_p": (1e-4, 0.0),
    }
    instance = groups(lite0, p_multiplier=10, head_multiplier=5)
    assert instance["gem_p"]["lr"] == pytest.approx(1e-3)
    assert instance["head"]["lr"] == pytest.approx(5e-4)
    assert [p.shape for p in instance["gem_p"]["params"]] == [(1,)]
    assert groups(lite0, decay_p=True)["gem_p"]["weight_decay"] == 4e-4
    spared = groups(lite0, decay_norm_and_bias=False)
    assert spared["head_no_decay"]["weight_decay"] == 0
    assert all(p.ndim == 1 for p in spared["head_no_decay"]["params"])
    assert all(p.ndim > 1 for p in spared["head"]["params"])
    torch.optim.Adam(lite0.parameter_groups(1e-4, 4e-4))


def test_freeze() -> None:
    embedder = Embedder.create("tiny")
    embedder.freeze("block2")
    frozen = {name for name, p in embedder.named_parameters() if not p.requires_grad}
    assert frozen
    assert all("block1" in name or "block2" in name for name in frozen)
    embedder.freeze("backbone")
    assert set(groups(embedder)) == {"head", "gem_p"}


@pytest.mark.parametrize(
    ("init", "size", "options", "stages"),
    [
        ("tiny", 32, {}, ["block1", "block2", "block3", "block4"]),
        ("lite0-in1k", 64, {}, ["stem", *(f"blocks.{i}" for i in range(7)), "conv_head"]),
        ("lite0-in1k", 64, {"dim": None}, ["stem", *(f"blocks.{i}" for i in range(7)), "conv_head"]),
        ("timm:resnet18.a1_in1k", 64, {"pooling": "gem"}, ["stem", "layer1", "layer2", "layer3", "layer4"]),
        ("timm:vit_tiny_patch16_224.augreg_in21k", 64, {}, ["embed", *(f"blocks.{i}" for i in range(12)), "norm"]),
        ("timm:convnext_atto.d2_in1k", 64, {}, ["features"]),
    ],
)
def test_split_parts_compose_to_forward(init: str, size: int, options: dict[str, Any], stages: list[str]) -> None:
    embedder = Embedder.create(init, weights="none", size=size, **options).eval()
    assert [name for name, _ in embedder.stages()] == ["input", *stages, "pooling", "head", "unit"]
    pixels = PIXELS[:, :, :size, :size]
    own = {id(parameter) for parameter in embedder.parameters()}
    with torch.no_grad():
        expected = embedder(pixels)
        for upto in ["input", *stages, "backbone", "pooling", "head"]:
            frozen, rest = embedder.split(upto)
            assert torch.equal(rest(frozen(pixels)), expected)
            first, second = ({id(p) for p in part.parameters()} for part in (frozen, rest))
            assert first | second == own
            assert not first & second
    with pytest.raises(ConfigError, match="no stage 'nowhere'"):
        embedder.split("nowhere")


def test_split_shares_parameters() -> None:
    embedder = Embedder.create("tiny")
    frozen, rest = embedder.split()
    rest(frozen(PIXELS)).sum().backward()
    gradient = embedder.head.linear.weight.grad  # type: ignore[union-attr]
    assert gradient is not None
    frozen.to(torch.float64)
    assert embedder.backbone.blocks[0][0].weight.dtype == torch.float64  # type: ignore[index,union-attr]


def test_tiny_treats_each_image_by_itself() -> None:
    embedder = Embedder.create("tiny").train()
    together = embedder(PIXELS)
    alone = torch.cat([embedder(PIXELS[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-5)


def test_tiny_grey_sees_luma_only() -> None:
    embedder = Embedder.create("tiny-grey").eval()
    luma = (PIXELS.float() * torch.tensor([0.299, 0.587, 0.114]).reshape(3, 1, 1)).sum(1, keepdim=True)
    grey = (luma.expand(-1, 3, -1, -1) / 255 - 0.5) / 0.5
    torch.testing.assert_close(embedder(PIXELS), embedder(grey), atol=1e-5, rtol=1e-4)
    assert embedder.backbone.blocks[0][1].in_channels == 1  # type: ignore[index,union-attr]


def test_tiny_learns() -> None:
    embedder = Embedder.create("tiny", size=32)
    optimizer = torch.optim.Adam(embedder.parameter_groups(1e-3, 0.0))
    labels = torch.arange(16) // 4
    centres = torch.randint(0, 256, (4, 3, 32, 32), generator=torch.Generator().manual_seed(2))
    noise = torch.randint(-90, 90, (16, 3, 32, 32), generator=torch.Generator().manual_seed(3))
    images = (centres[labels] + noise).clamp(0, 255).to(torch.uint8)
    same = (labels[:, None] == labels) & ~torch.eye(16, dtype=torch.bool)
    losses = []
    for _ in range(12):
        e = embedder(images)
        s = e @ e.T
        loss = s[labels[:, None] != labels].mean() - s[same].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3


def test_deepcopy_is_independent() -> None:
    embedder = Embedder.create("tiny").eval()
    other = copy.deepcopy(embedder)
    assert torch.equal(other(PIXELS), embedder(PIXELS))
    with torch.no_grad():
        other.head.linear.weight.mul_(-1)  # type: ignore[union-attr]
    assert not torch.equal(other(PIXELS), embedder(PIXELS))


@pytest.mark.slow
@pytest.mark.parametrize("init", ["r50-in1k", "r101-in1k", "vit-b32-in21k", "vit-b16-in21k", "clip400m-b32"])
@pytest.mark.release
def test_the_papers_networks_run_forward_and_backward(init: str) -> None:
    embedder = Embedder.create(init, weights="none", size=64, resize=None)
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    vectors = embedder(pixels)
    assert vectors.shape == (2, embedder.dim)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))
    vectors[0].dot(vectors[1]).backward()
    for group in embedder.parameter_groups(1e-4, 4e-4):
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in group["params"])
    trained_norms = [p.requires_grad for m in norms(embedder) for p in m.parameters()]
    assert not any(trained_norms)


@pytest.mark.parametrize(("init", "dim"), [("tiny", "default"), ("lite0-in1k", None)])
def test_shortened_gives_the_first_numbers_at_length_one(init: str, dim: Any) -> None:
    embedder = Embedder.create(init, dim=dim).eval()
    short = embedder.shortened(7)
    torch.testing.assert_close(short(PIXELS), F.normalize(embedder(PIXELS)[:, :7]), atol=1e-6, rtol=1e-5)
    assert short.dim == short.config.dim == 7
    assert not short.training
    assert embedder.shortened(embedder.dim) is embedder
    with pytest.raises(ConfigError, match="from 1 to"):
        embedder.shortened(embedder.dim + 1)
