"""Loads weights files into backbones, strictly: every tensor must fit, or an error names those that do not.

Reading is safe (no pickled code is ever run) and nothing is guessed: the layout is recognised by its anchor key
(``LAYOUTS``), classifiers and text towers are left out, position embeddings are resampled, and then nothing may be
missing, left over or of another shape. ``Embedder.create`` calls ``load_weights``.

One entry of ``LAYOUTS`` per layout: the anchor key that identifies it and the function that renames. A function only
renames and reshapes, leaves out what the image encoder does not have, and returns every other key unchanged, so that
unexpected keys can be refused. To read a new kind of file, add an entry and a test that compares it with a plain forward
pass of the original.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common.errors import DataError, WeightsError, in_one_line
from recollect.common.reading import open_regular, read_npz, read_torch, sha256
from recollect.models.weight_files import check_digest
from recollect.models.zoo import Initialization, is_timm_tag

State = dict[str, Tensor]
Converted = tuple[State, State]
"""Tensors by timm's names, and separately the classifier of the file."""


@dataclass(frozen=True)
class Layout:
    """A file layout: keys that must all be present, and the function that renames."""

    name: str
    anchors: tuple[str, ...]
    convert: Callable[[Mapping[str, Tensor], nn.Module], Converted]
    project: str


def recognise(keys: Mapping[str, object]) -> Layout:
    """The layout whose anchor keys are all present; timm's own when none is."""
    return next(layout for layout in LAYOUTS if set(layout.anchors) <= keys.keys())


def _rename(state: Mapping[str, Tensor], rules: list[tuple[str, str]], drop: str, head: str) -> Converted:
    """Apply the first matching rule to each key; ``drop`` and ``head`` are patterns of keys to leave out."""
    tensors, classifier = {}, {}
    for key, value in state.items():
        if re.match(head, key):
            classifier[key] = value
        elif not re.match(drop, key):
            renamed = (re.sub(pattern, names, key) for pattern, names in rules if re.search(pattern, key))
            tensors[next(renamed, key)] = value
    return tensors, classifier


_NEVER = r"(?!)"

_CLIP_TEXT = (
    r"(positional_embedding|text_projection|logit_scale|logit_bias|attn_mask|token_embedding\.weight|"
    r"ln_final\.(weight|bias)|transformer\.resblocks\..*|input_resolution|context_length|vocab_size)$"
)
_CLIP_RULES = [
    (r"^visual\.class_embedding$", "cls_token"),
    (r"^visual\.positional_embedding$", "pos_embed"),
    (r"^visual\.conv1\.weight$", "patch_embed.proj.weight"),
    (r"^visual\.ln_pre\.", "norm_pre."),
    (r"^visual\.ln_post\.", "norm."),
    (r"^visual\.transformer\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)$", r"blocks.\1.attn.qkv.\2"),
    (r"^visual\.transformer\.resblocks\.(\d+)\.attn\.out_proj\.", r"blocks.\1.attn.proj."),
    (r"^visual\.transformer\.resblocks\.(\d+)\.ln_([12])\.", r"blocks.\1.norm\2."),
    (r"^visual\.transformer\.resblocks\.(\d+)\.mlp\.c_fc\.", r"blocks.\1.mlp.fc1."),
    (r"^visual\.transformer\.resblocks\.(\d+)\.mlp\.c_proj\.", r"blocks.\1.mlp.fc2."),
]


def _clip(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    # The projection to the text space is CLIP's head; the paper puts its own linear layer on the [CLS] token.
    tensors, head = _rename(state, _CLIP_RULES, drop=_CLIP_TEXT, head=r"visual\.proj$")
    tensors["cls_token"] = tensors["cls_token"].reshape(1, 1, -1)
    if "pos_embed" in tensors and tensors["pos_embed"].ndim == 2:
        tensors["pos_embed"] = tensors["pos_embed"][None]
    return tensors, head


_HF_LAYER = r"^vision_model\.encoder\.layers\.(\d+)\."
_HF_CLIP_RULES = [
    (r"^vision_model\.embeddings\.class_embedding$", "cls_token"),
    (r"^vision_model\.embeddings\.position_embedding\.weight$", "pos_embed"),
    (r"^vision_model\.embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"^vision_model\.pre_layrnorm\.", "norm_pre."),  # its own spelling
    (r"^vision_model\.post_layernorm\.", "norm."),
    (_HF_LAYER + r"self_attn\.([qkv])_proj\.", r"blocks.\1.attn.\2."),
    (_HF_LAYER + r"self_attn\.out_proj\.", r"blocks.\1.attn.proj."),
    (_HF_LAYER + r"layer_norm([12])\.", r"blocks.\1.norm\2."),
    (_HF_LAYER + r"mlp\.", r"blocks.\1.mlp."),
]


def _hf_clip(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    text = r"text_model\.|text_projection\.|logit_scale$|.*\.position_ids$"
    tensors, head = _rename(state, _HF_CLIP_RULES, drop=text, head=r"visual_projection\.")
    tensors["cls_token"], tensors["pos_embed"] = tensors["cls_token"].reshape(1, 1, -1), tensors["pos_embed"][None]
    return _with_qkv(tensors, ("q", "k", "v")), head


def _with_qkv(tensors: State, names: tuple[str, str, str]) -> State:
    """Query, key and value of each attention as one matrix."""
    for key in [key for key in tensors if f".attn.{names[0]}." in key]:
        parts = [tensors.pop(key.replace(f".{names[0]}.", f".{name}."), None) for name in names]
        joined = torch.cat([part for part in parts if part is not None])
        tensors[key.replace(f".{names[0]}.", ".qkv.")] = joined
    return tensors


_BLOCK = r"^encoder\.layers\.(?:encoder_)?layer_(\d+)\."
_TORCHVISION_VIT_RULES = [
    (r"^class_token$", "cls_token"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.ln\.", "norm."),
    (_BLOCK + r"ln_([12])\.", r"blocks.\1.norm\2."),
    (_BLOCK + r"self_attention\.in_proj_(weight|bias)$", r"blocks.\1.attn.qkv.\2"),
    (_BLOCK + r"self_attention\.out_proj\.", r"blocks.\1.attn.proj."),
    (_BLOCK + r"mlp\.(?:linear_1|0)\.", r"blocks.\1.mlp.fc1."),
    (_BLOCK + r"mlp\.(?:linear_2|3)\.", r"blocks.\1.mlp.fc2."),
]


def _torchvision_vit(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    tensors, head = _rename(state, _TORCHVISION_VIT_RULES, drop=_NEVER, head=r"heads?\.")
    positions = tensors["pos_embed"]
    if positions.ndim == 3 and positions.shape[1] == 1:  # SWAG keeps positions first: S×1×D
        tensors["pos_embed"] = positions.transpose(0, 1)
    return tensors, head


def _dinov2(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    # Some releases number blocks within chunks for sharding: blocks.<chunk>.<block>.
    rules = [(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."), (r"^register_tokens$", "reg_token")]
    tensors, head = _rename(state, rules, drop=r"mask_token$", head=r"head\.")
    if "reg_token" in tensors and "pos_embed" in tensors:  # timm has no position of the class token here: it is added
        tensors["cls_token"] = tensors["cls_token"] + tensors["pos_embed"][:, :1]
        tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
    return tensors, head


def _unicom(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    return _rename(state, [(r"^(?!feature\.)", "transformer.")], drop=_NEVER, head=_NEVER)


def _mobile_sam(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    # Only the encoder, without the neck and the classifier. timm has a downsampling at the start of the next stage.
    tensors: State = {}
    for key, value in state.items():
        if re.match(r"image_encoder\.(?!head\.|neck\.)", key):
            key = key.removeprefix("image_encoder.").replace(".c.", ".conv.").replace("norm_head.", "head.norm.")
            key = re.sub(r"^patch_embed\.seq\.([02])", lambda hit: f"patch_embed.conv{1 + int(hit[1]) // 2}", key)
            key = re.sub(r"^layers\.(\d+)\.downsample", lambda hit: f"stages.{1 + int(hit[1])}.downsample", key)
            tensors[re.sub(r"^layers\.", "stages.", key)] = value
    return tensors, {}


_CAFFE_RULES = [(r"^0\.", "conv1."), (r"^1\.", "bn1.")] + [
    (rf"^{number}\.(\d+)\.", rf"layer{number - 3}.\1.") for number in (4, 5, 6, 7)
]


def _caffe_resnet(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    return _rename(state, _CAFFE_RULES, drop=_NEVER, head=_NEVER)


_LITE_RULES = [(r"^_conv_(stem|head)\.", r"conv_\1."), (r"^_bn0\.", "bn1."), (r"^_bn1\.", "bn2.")]
_LITE_BLOCK = {"depthwise_conv": "conv_dw", "bn1": "bn1", "project_conv": "conv_pw", "bn2": "bn2"}
# A block without expansion has no _bn0, and timm counts only the existing norms.
_LITE_EXPANDED = {
    "expand_conv": "conv_pw", "bn0": "bn1", "depthwise_conv": "conv_dw", "bn1": "bn2", "project_conv": "conv_pwl",
    "bn2": "bn3",
}  # fmt: skip


def _efficientnet_lite(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    # The original numbers all blocks consecutively; timm numbers them within stages.
    flat = [f"{stage}.{block}" for stage, blocks in enumerate(backbone.blocks) for block in range(len(blocks))]  # type: ignore[arg-type]
    rules = [*_LITE_RULES]
    for number, name in enumerate(flat):
        names = _LITE_EXPANDED if f"_blocks.{number}._expand_conv.weight" in state else _LITE_BLOCK
        rules += [(rf"^_blocks\.{number}\._{theirs}\.", f"blocks.{name}.{ours}.") for theirs, ours in names.items()]
    return _rename(state, rules, drop=_NEVER, head=r"_fc\.")


_JAX_BLOCK = r"^Transformer/encoderblock_(\d+)/"
_JAX_RULES = [
    (r"^cls$", "cls_token"),
    (r"^embedding/", "patch_embed.proj/"),
    (r"^Transformer/posembed_input/pos_embedding$", "pos_embed"),
    (r"^Transformer/encoder_norm/", "norm/"),
    (_JAX_BLOCK + r"LayerNorm_0/", r"blocks.\1.norm1/"),
    (_JAX_BLOCK + r"LayerNorm_2/", r"blocks.\1.norm2/"),
    (_JAX_BLOCK + r"MultiHeadDotProductAttention_1/(query|key|value)/", r"blocks.\1.attn.\2/"),
    (_JAX_BLOCK + r"MultiHeadDotProductAttention_1/out/", r"blocks.\1.attn.proj/"),
    (_JAX_BLOCK + r"MlpBlock_3/Dense_0/", r"blocks.\1.mlp.fc1/"),
    (_JAX_BLOCK + r"MlpBlock_3/Dense_1/", r"blocks.\1.mlp.fc2/"),
]
_JAX_KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def _jax_vit(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    plain = {key.removeprefix("opt/target/"): value for key, value in state.items()}
    renamed, head = _rename(plain, _JAX_RULES, drop=r"pre_logits/", head=r"head/")
    tensors: State = {}
    for key, value in renamed.items():
        name, slash, kind = key.rpartition("/")
        if slash and kind in _JAX_KINDS:
            key, value = f"{name}.{_JAX_KINDS[kind]}", _from_flax(name, kind, value)
        tensors[key] = value
    classifier = {"head.weight": head["head/kernel"].T} if "head/kernel" in head else {}
    return _with_qkv(tensors, ("query", "key", "value")), classifier


def _from_flax(name: str, kind: str, value: Tensor) -> Tensor:
    if re.search(r"attn\.(query|key|value)$", name):  # D×heads×d and heads×d
        return value.flatten(1).T if kind == "kernel" else value.flatten()
    if kind != "kernel":
        return value
    if name.endswith("attn.proj"):  # heads×d×D
        return value.flatten(0, 1).T
    return value.permute(3, 2, 0, 1) if value.ndim == 4 else value.T


def _timm(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    cfg = getattr(backbone, "pretrained_cfg", None) or {}
    classifier = cfg.get("classifier") or ()
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    heads = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")} - backbone.state_dict().keys()
    head = {key: value for key, value in state.items() if key in heads}
    return {key: value for key, value in state.items() if key not in heads}, head


LAYOUTS = (
    Layout("clip", ("visual.class_embedding",), _clip, "OpenAI-CLIP, OpenCLIP or DiHT"),
    Layout("clip-hf", ("vision_model.embeddings.class_embedding",), _hf_clip, "a CLIP of the transformers library"),
    Layout("torchvision-vit", ("encoder.pos_embedding",), _torchvision_vit, "SWAG or a torchvision ViT"),
    Layout("dinov2", ("mask_token",), _dinov2, "DINOv2"),
    Layout("unicom", ("feature.0.weight", "pos_embed"), _unicom, "UNICOM"),
    Layout("mobile-sam", ("image_encoder.patch_embed.seq.0.c.weight",), _mobile_sam, "MobileSAM"),
    Layout("caffe-resnet", ("0.weight", "4.0.conv1.weight"), _caffe_resnet, "the Caffe-ported ResNets"),
    Layout("efficientnet-lite", ("_conv_stem.weight",), _efficientnet_lite, "EfficientNet-Lite"),
    Layout("jax-vit", ("embedding/kernel",), _jax_vit, "the original ViT (JAX)"),
    Layout("jax-vit", ("opt/target/embedding/kernel",), _jax_vit, "the original ViT (JAX)"),
    Layout("timm", (), _timm, "timm or torchvision"),
)
"""Tried in this order; the last one has no anchor and matches all remaining files."""


PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".torch")
_WRAPPERS = ("state_dict", "model", "model_state_dict")
_NAMES_LISTED = 6

# Counters that BatchNorm keeps for a rarely used momentum setting; old files do not have them.
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Provenance:
    """The origin of a model's starting weights; kept with every model trained from them."""

    file: str | None = None
    sha256: str | None = None
    layout: str | None = None
    licence: str = ""
    non_commercial: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as written into ``embedder.json``."""
        return asdict(self)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a weights file, unwrapped, on the CPU. No code in the file is run.

    ``.pth``, ``.pt``, ``.bin``, ``.ckpt`` and ``.torch`` are read with ``weights_only=True``; ``.safetensors`` and
    ``.npz`` (plain arrays) cannot contain code.

    Raises:
        WeightsError: another suffix, a damaged file, or one with anything but tensors and plain values.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".safetensors":
            from safetensors.torch import load_file

            open_regular(path).close()  # opening a pipe would block
            return dict(load_file(path))
        if suffix == ".npz":
            return {name: torch.from_numpy(np.asarray(array)) for name, array in read_npz(path).items()}
        if suffix in PICKLED:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # other pickle protocols and TorchScript raise an error below
                return _unwrap(read_torch(path), path)
    except WeightsError:
        raise
    except DataError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):
            raise WeightsError(
                f"{path}: refused, because it contains more than tensors, and opening it could run code from the file. "
                "Ask its author for a plain state dict or a .safetensors file."
            ) from error
        raise WeightsError(f"{error} A TorchScript archive has to be saved again as a state dict.") from error
    except Exception as error:  # damaged archives fail in zip, struct, json, safetensors or torch code
        raise WeightsError(
            f"{path}: cannot be read as weights ({in_one_line(error)}). A TorchScript archive has to be saved again as a "
            "state dict."
        ) from error
    raise WeightsError(
        f"{path}: files with the suffix {suffix!r} are not weights. Known: {', '.join(PICKLED)}, .safetensors, .npz."
    )


def load_weights(backbone: nn.Module, path: Path, init: Initialization) -> Provenance:
    """Fill ``backbone`` from ``path``, or change nothing and raise an error.

    Raises:
        WeightsError: the file belongs to another model; the message names the tensors that are missing, unexpected or
            of another shape.
    """
    digest = sha256(path)
    if path.name in init.files[:1]:
        check_digest(path, digest, init.sha256)
    state = read_tensors(path)
    layout = recognise(state)
    if init.layouts and layout.name not in init.layouts:
        raise WeightsError(
            f"{path}: its keys are those of {layout.project}, but {init.name} takes {', '.join(init.layouts)}. "
            f"It belongs to another model; the right file is described at {init.page}"
        )
    if layout.name == "timm" and is_timm_tag(init.name):
        state = _timm_filter(state, backbone)
    tensors, head = layout.convert(state, backbone)
    _check_head(path, head, init)
    if "pos_embed" in tensors:
        tensors["pos_embed"] = _resample_positions(tensors["pos_embed"], backbone)
    fill_strictly(backbone, tensors, f"{path} (layout {layout.name})", init.name)
    say_licence(init.name, init.licence, init.non_commercial)
    return Provenance(path.name, digest, layout.name, init.licence, init.non_commercial)


def fill_strictly(module: nn.Module, tensors: Mapping[str, Tensor], source: str, model: str) -> None:
    """Copy ``tensors`` into ``module``; none may be missing, unexpected, of another shape or not finite."""
    own = module.state_dict()
    wrong: dict[str, list[str]] = {}
    for key in sorted({*own, *tensors}):
        if key not in tensors or key not in own:
            if not key.endswith(_COUNTER):
                wrong.setdefault("missing" if key in own else "not expected", []).append(key)
        elif (shape := tensors[key].shape) != own[key].shape:
            shapes = f"{key} {tuple(shape)} instead of {tuple(own[key].shape)}"
            wrong.setdefault("of another shape", []).append(shapes)
        elif not bool(torch.isfinite(tensors[key]).all()):
            wrong.setdefault("with NaN or infinite values", []).append(key)
    if wrong:
        problems = ""
        for what, names in wrong.items():
            more = f" and {len(names) - _NAMES_LISTED} more" if len(names) > _NAMES_LISTED else ""
            problems += f" {len(names)} {what}: {', '.join(names[:_NAMES_LISTED])}{more}."
        raise WeightsError(f"{source}: does not fit {model}.{problems} Nothing was loaded.")
    with torch.no_grad():
        for key in own.keys() & tensors.keys():
            own[key].copy_(tensors[key])


def _unwrap(value: Any, path: Path) -> dict[str, Tensor]:
    for _ in range(3):  # training checkpoints nest at most {"state_dict": {"model": ...}}
        if not isinstance(value, Mapping):
            break
        inner = next((name for name in _WRAPPERS if isinstance(value.get(name), Mapping)), None)
        if inner is None:
            break
        value = value[inner]
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise WeightsError(f"{path}: contains a {type(value).__name__}, not a state dict (names with tensors).")
    tensors = {key: item for key, item in value.items() if isinstance(item, Tensor)}
    if not tensors:
        raise WeightsError(f"{path}: contains no tensors.")
    if all(key.startswith("module.") for key in tensors):  # saved from DataParallel
        tensors = {key.removeprefix("module."): item for key, item in tensors.items()}
    return tensors


def _timm_filter(state: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    """timm's own renaming for the many models outside our table; what it returns is still checked strictly."""
    rename = getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None)
    if rename is None:
        return state
    try:
        return dict(rename(dict(state), backbone))
    except (KeyError, RuntimeError, AttributeError):
        return state  # a file that timm does not know; the strict check names what does not fit


def _check_head(path: Path, head: Mapping[str, Tensor], init: Initialization) -> None:
    weight = next((value for key, value in head.items() if key.endswith("weight")), None)
    if init.head_classes is None or weight is None or weight.shape[0] == init.head_classes:
        return
    expected = f"one of {init.head_classes:,}" if init.head_classes else "none"
    raise WeightsError(
        f"{path}: has a classifier of {weight.shape[0]:,} classes, but the file of {init.name} has {expected}. "
        f"It was fine-tuned and is a different starting point; the right file is described at {init.page}"
    )


def _resample_positions(positions: Tensor, backbone: nn.Module) -> Tensor:
    """Position embeddings resampled (bicubic) to the grid of this model; unchanged if something else differs."""
    own = getattr(backbone, "pos_embed", None)
    if own is None or positions.shape == own.shape or positions.ndim != 3 or positions.shape[-1] != own.shape[-1]:
        return positions
    prefix = 0 if getattr(backbone, "no_embed_class", False) else int(backbone.num_prefix_tokens)  # type: ignore[arg-type]
    if math.isqrt(positions.shape[1] - prefix) ** 2 != positions.shape[1] - prefix:
        return positions
    from timm.layers import resample_abs_pos_embed

    grid = list(backbone.patch_embed.grid_size)  # type: ignore[union-attr,arg-type]
    resampled: Tensor = resample_abs_pos_embed(positions, new_size=grid, num_prefix_tokens=prefix)
    return resampled


_announced: set[str] = set()


def say_licence(name: str, licence: str, non_commercial: bool) -> None:
    """Print a non-commercial licence, once per process and model."""
    if non_commercial and name not in _announced:
        _announced.add(name)
        print(f"recollect: the weights of {name} are licensed {licence}: not for commercial use.", file=sys.stderr)


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names, shapes and values of everything in the ``state_dict`` of ``model``."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return digest.hexdigest()
