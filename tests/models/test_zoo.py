from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recollect.common.errors import ConfigError
from recollect.models import Embedder, backbones, zoo
from recollect.models.zoo import ZOO

# init → model, timm id, mean/std, feature size, non-commercial: the published starting points, spelled out once more.
PUBLISHED = {
    "r50-in1k": ("ResNet-50", "resnet50.tv_in1k", "imagenet", 2048, False),
    "r101-in1k": ("ResNet-101", "resnet101.tv_in1k", "imagenet", 2048, False),
    "vit-b32-in21k": ("ViT-B/32", "vit_base_patch32_224.augreg_in21k", "half", 768, False),
    "vit-b16-in21k": ("ViT-B/16", "vit_base_patch16_224.augreg_in21k", "half", 768, False),
    "vit-l16-in21k": ("ViT-L/16", "vit_large_patch16_224.augreg_in21k", "half", 1024, False),
    "clip400m-b32": ("ViT-B/32", "vit_base_patch32_clip_quickgelu_224.laion400m_e32", "clip", 768, False),
    "clip400m-b16": ("ViT-B/16", "vit_base_patch16_clip_224.laion400m_e32", "clip", 768, False),
    "clip400m-l14": ("ViT-L/14", "vit_large_patch14_clip_224.laion400m_e32", "clip", 1024, False),
    "clip2b-b32": ("ViT-B/32", "vit_base_patch32_clip_224.laion2b", "clip", 768, False),
    "clip2b-b16": ("ViT-B/16", "vit_base_patch16_clip_224.laion2b", "clip", 768, False),
    "clip2b-l14": ("ViT-L/14", "vit_large_patch14_clip_224.laion2b", "half", 1024, False),
    "diht-b32": ("ViT-B/32", "vit_base_patch32_clip_224", "clip", 768, True),
    "diht-b16": ("ViT-B/16", "vit_base_patch16_clip_224", "clip", 768, True),
    "diht-l14": ("ViT-L/14", "vit_large_patch14_clip_224", "clip", 1024, True),
    "swag-b16": ("ViT-B/16", "vit_base_patch16_224", "imagenet", 768, True),
    "swag-l16": ("ViT-L/16", "vit_large_patch16_224", "imagenet", 1024, True),
    "dinov2-l14": ("ViT-L/14", "vit_large_patch14_dinov2.lvd142m", "imagenet", 1024, False),
    "lite0-in1k": ("EfficientNet-Lite0", "tf_efficientnet_lite0.in1k", "half", 1280, False),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_are_the_published_ones(name: str) -> None:
    row = ZOO[name]
    described = (row.architecture, row.timm_id, row.normalization, row.feature_dim, row.non_commercial)
    assert described == PUBLISHED[name]
    assert row.size == 224
    assert row.non_commercial == ("NC" in row.licence)


@pytest.mark.parametrize("name", ZOO)
def test_rows_describe_what_is_built(name: str) -> None:
    row = ZOO[name]
    with torch.device("meta"):
        embedder = Embedder.create(name, weights="none")
    backbone = embedder.backbone
    assert sum(parameter.numel() for parameter in backbone.parameters()) == row.parameters
    assert embedder.feature_dim == row.feature_dim
    assert embedder.dim == row.dim
    activations = {type(module).__name__.lower() for module in backbone.modules()}
    assert ("quickgelu" in activations) == (row.activation == "quickgelu")
    assert ("gelu" in activations) == (row.activation == "gelu")
    assert embedder(torch.zeros(2, 3, row.size, row.size, dtype=torch.uint8, device="meta")).shape == (2, row.dim)


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.timm_id and "." in row.timm_id])
def test_mean_and_deviation_agree_with_timm(name: str) -> None:
    cfg = backbones.timm_library().get_pretrained_cfg(ZOO[name].timm_id)
    assert ZOO[name].preprocessing.mean == tuple(cfg.mean)
    assert ZOO[name].preprocessing.std == tuple(cfg.std)
    if not ZOO[name].paper_row and name != "lite0-in1k":
        assert ZOO[name].interpolation == cfg.interpolation
        assert ZOO[name].licence.lower() == cfg.license or name == "aimv2-l14"


def test_licences_that_forbid_commercial_use_are_marked() -> None:
    for name in ("aimv2-l14", "diht-b32", "timm:vit_base_patch16_dinov3_qkvb.eupe_lvd1689m"):
        assert zoo.find(name).non_commercial
    assert not any(zoo.find(name).non_commercial for name in ("dinov3-b16", "unicom-b32", "siglip2-b16"))


def test_the_papers_heads() -> None:
    assert (ZOO["r50-in1k"].pooling, ZOO["r50-in1k"].layer_norm, ZOO["r50-in1k"].dim) == ("gem", True, 512)
    assert (ZOO["vit-b16-in21k"].pooling, ZOO["vit-b16-in21k"].layer_norm) == ("cls", False)
    deep = ZOO["r101-caffe"]
    assert (deep.pooling, deep.layer_norm, deep.l2_before_head, deep.dim) == ("gem", False, True, 2048)
    assert deep.preprocessing.resize is None
    assert deep.preprocessing.max_side == 1024


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("r50-in1", "Did you mean r50-in1k"),
        ("nothing-like-it", "recollect models"),
        ("timm:vit_base_patch16_224", r"full tag.*vit_base_patch16_224\.augreg_in21k"),
        ("timm:no_such_model.at_all", "has no model"),
    ],
)
def test_names_that_name_no_weights_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        zoo.find(name)


@pytest.mark.parametrize(
    ("tag", "features"),
    [
        ("timm:vit_base_patch16_siglip_224.v2_webli", 768),
        ("swin_tiny_patch4_window7_224.ms_in1k", 768),
        ("mobilenetv3_small_100.lamb_in1k", 1024),
    ],
)
def test_any_timm_model_by_its_tag(tag: str, features: int) -> None:
    row = zoo.find(tag)
    assert row.feature_dim == features
    assert row.pooling == "native"
    with torch.device("meta"):
        embedder = Embedder.create(tag, weights="none", dim=64)
        assert embedder(torch.zeros(2, 3, row.size, row.size, dtype=torch.uint8)).shape == (2, 64)
        frozen, rest = embedder.split("backbone")
        assert rest(frozen(torch.zeros(2, 3, row.size, row.size, dtype=torch.uint8))).shape == (2, 64)


def test_the_table_needs_neither_torch_nor_timm() -> None:
    code = (
        "import sys, recollect.models.zoo, recollect.models.weight_files; print({'torch', 'timm'} & set(sys.modules))"
    )
    source = str(Path(zoo.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "set()"
