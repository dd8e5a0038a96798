"""The network: its chain, sizes, BatchNorm, parameter groups, stages; backbones from outside; devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from recollect.common.errors import ConfigError, InputError, WeightsError
from recollect.common.images import IMAGENET_MEAN
from recollect.models import Embedder
from recollect.models.backbones import backbone_layers, timm_library
from recollect.models.embedder import multiscale

CUDA = torch.device("cuda:0")
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
    torch.testing.assert_close(embedder(x), embedder(PIXELS), atol=1e-5, rtol=1e-4)  # floats are normalized already
    for wrong in (torch.zeros(3, 8, 8), torch.zeros(1, 1, 8, 8), torch.zeros(1, 3, 8, 8).long()):
        with pytest.raises(InputError):
            embedder(wrong)


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
    for wrong in (
        {"size": 0},
        {"resize": 8},
        {"interpolation": "magic"},
        {"normalization": "mine"},
        {"batch_norm": "off"},
    ):
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
    embedder.eval().train()
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


def groups(embedder: Embedder, **options: Any) -> dict[str, dict[str, Any]]:
    return {group["name"]: group for group in embedder.parameter_groups(1e-4, 4e-4, **options)}


def test_parameter_groups_have_the_papers_settings(lite0: Embedder) -> None:
    for options in ({}, {"decay_norm_and_bias": False}):
        members = [id(p) for group in lite0.parameter_groups(1e-4, 4e-4, **options) for p in group["params"]]  # type: ignore[arg-type]
        assert sorted(members) == sorted(id(p) for p in lite0.parameters() if p.requires_grad)
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


@pytest.mark.parametrize(
    "name",
    [
        *("vit_small_patch16_dinov3", "vit_base_patch14_reg4_dinov2", "vit_base_patch16_siglip_224"),
        *("vit_pe_core_base_patch16_224", "vit_base_patch14_reg1_tipsv2", "eva02_base_patch16_clip_224"),
        "aimv2_large_patch14_224",
    ],
)
def test_lower_blocks_of_every_transformer_freeze(name: str) -> None:
    narrow = {"embed_dim": 64, "depth": 4, "num_heads": 4, "img_size": 56 if "patch14" in name else 64}
    network = timm_library().create_model(name, pretrained=False, num_classes=0, **narrow)
    embedder = Embedder.create(network, size=narrow["img_size"], dim=8)
    everything = {name for name, _ in network.named_parameters()}
    embedder.freeze("blocks.1")
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    above = ("blocks.2.", "blocks.3.", "norm.", "fc_norm.", "attn_pool.")
    assert trained == {name for name in everything if name.startswith(above)}
    embedder(torch.randint(0, 256, (2, 3, narrow["img_size"], narrow["img_size"]), dtype=torch.uint8)).sum().backward()
    assert {name for name, parameter in network.named_parameters() if parameter.grad is not None} == trained
    with pytest.raises(ConfigError, match=r"no stage 'blocks\.4': .*blocks\.3"):
        embedder.freeze("blocks.4")


def test_layers_of_a_convnet_are_finer_than_its_stages() -> None:
    embedder = Embedder.create("timm:convnext_atto.d2_in1k", weights="none")
    embedder.freeze("stages.2.blocks.1")
    trained = {name for name, parameter in embedder.backbone.named_parameters() if parameter.requires_grad}
    assert all(name.startswith(("stages.2.blocks", "stages.3", "head")) for name in trained)
    assert not any(name.startswith(("stages.2.blocks.0", "stages.2.blocks.1")) for name in trained)
    assert any(name.startswith("stages.2.blocks.2") for name in trained)
    blocks = [f"stages.{stage}.blocks.{block}" for stage, depth in enumerate((2, 2, 6, 2)) for block in range(depth)]
    assert list(backbone_layers(embedder.backbone)) == ["stem", *blocks]


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
        ("timm:convnext_atto.d2_in1k", 64, {}, ["stem", *(f"stages.{i}" for i in range(4)), "norm_pre"]),
        ("tinyvit-sam", 64, {}, ["stem", *(f"stages.{i}" for i in range(4))]),
        ("timm:swin_tiny_patch4_window7_224.ms_in1k", 64, {}, ["stem", *(f"layers.{i}" for i in range(4)), "norm"]),
        ("timm:vit_small_patch16_dinov3.lvd1689m", 64, {}, ["features"]),
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


def test_tiny_grey_sees_luma_only() -> None:
    embedder = Embedder.create("tiny-grey").eval()
    luma = (PIXELS.float() * torch.tensor([0.299, 0.587, 0.114]).reshape(3, 1, 1)).sum(1, keepdim=True)
    grey = (luma.expand(-1, 3, -1, -1) / 255 - 0.5) / 0.5
    torch.testing.assert_close(embedder(PIXELS), embedder(grey), atol=1e-5, rtol=1e-4)
    assert embedder.backbone.blocks[0][1].in_channels == 1  # type: ignore[index,union-attr]


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


def test_a_timm_model_is_taken_as_it_is() -> None:
    model = timm_library().create_model("resnet18", pretrained=False, num_classes=0)
    embedder = Embedder.create(model, size=32)
    assert embedder.backbone is model
    assert embedder.feature_dim == 512


def test_what_cannot_be_a_backbone() -> None:
    for module, message in (
        (nn.Linear(3, 3), "fails on images of 16 px"),
        (nn.Flatten(2), "must return B×C×H×W or B×C"),
    ):
        with pytest.raises(ConfigError, match=message):
            Embedder.create(module, size=16)
    with pytest.raises(ConfigError, match="remove them"):
        Embedder.create("tiny", options={"width": 3})
    with pytest.raises(ConfigError, match="no weights file"):
        Embedder.create(Maps(), weights="x.pth", size=16)


def test_a_description_that_may_be_anything(tmp_path: Path) -> None:
    Embedder.create(Maps(), size=16).save(tmp_path)
    file = tmp_path / "embedder.json"
    whole = file.read_text()
    for part, other in (('"reference": "', '"reference": 3, "x": "'), ('"options": {}', '"options": [1]')):
        assert part in whole
        file.write_text(whole.replace(part, other))
        with pytest.raises(WeightsError):
            Embedder.load(tmp_path, backbone=Maps())
    file.write_text(whole)
    Embedder.load(tmp_path, backbone=Maps())


def to_fake_cuda(module: nn.Module, mode: FakeTensorMode) -> None:
    """Replace the tensors of a module on the meta device by fake ones on CUDA; one left on the CPU is then an error."""
    for child in module.modules():
        for name, value in child._parameters.items():
            if value is not None:
                fake = FakeTensor(mode, value.detach(), CUDA)
                child._parameters[name] = nn.Parameter(fake, requires_grad=value.requires_grad)
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = FakeTensor(mode, buffer, CUDA)


@pytest.mark.parametrize("init", ["lite0-in1k", "vit-b16-in21k"])
def test_forward_stays_on_its_device(init: str) -> None:
    mode = FakeTensorMode()
    with torch.device("meta"):
        embedder = Embedder.create(init, weights="none").eval()
    to_fake_cuda(embedder, mode)
    with mode, torch.no_grad():
        pixels = torch.empty(2, 3, 224, 224, dtype=torch.uint8, device=CUDA)
        vectors = embedder(pixels)
        assert vectors.device == CUDA
        assert vectors.dtype == torch.float32
        if not init.startswith("vit"):  # timm resamples positions by indexing, which needs a CUDA build even for fakes
            scaled = multiscale(embedder, embedder.normalize(pixels), (1.0, 0.7))
            assert scaled.device == CUDA
