"""File layouts: maps the key names of the projects that published weights to timm's.

One entry of ``LAYOUTS`` per layout: the anchor key that identifies it and the function that renames. A function only
renames and reshapes, leaves out what the image encoder does not have (classifiers, text towers), and returns every other
key unchanged, so that ``weights.py`` can refuse unexpected keys. To read a new kind of file, add an entry here and a test
that compares it with a plain forward pass of the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


@dataclass
class Converted:
    """Tensors by timm's names, and separately the classifier of the file."""

    tensors: State
    head: State = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """A file layout: keys that must all be present, and the function that renames."""

    name: str
    anchors: tuple[str, ...]
    convert: Callable[[Mapping[str, Tensor], nn.Module], Converted]
    project: str


def recognise(keys: Mapping[str, object]) -> Layout:
    """The layout whose anchor keys are all present; timm's own when none is."""
    return next(layout for layout in LAYOUTS if all(anchor in keys for anchor in layout.anchors))


def _rename(state: Mapping[str, Tensor], rules: list[tuple[str, str]], drop: str, head: str) -> Converted:
    """Apply the first matching rule to each key; ``drop`` and ``head`` are patterns of keys to leave out."""
    converted = Converted({})
    for key, value in state.items():
        if re.match(drop, key):
            continue
        if re.match(head, key):
            converted.head[key] = value
            continue
        for pattern, replacement in rules:
            renamed, hits = re.subn(pattern, replacement, key)
            if hits:
                key = renamed
                break
        converted.tensors[key] = value
    return converted


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
    converted = _rename(state, _CLIP_RULES, drop=_CLIP_TEXT, head=r"visual\.proj$")
    tensors = converted.tensors
    tensors["cls_token"] = tensors["cls_token"].reshape(1, 1, -1)
    if "pos_embed" in tensors and tensors["pos_embed"].ndim == 2:
        tensors["pos_embed"] = tensors["pos_embed"][None]
    return converted


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
    converted = _rename(state, _TORCHVISION_VIT_RULES, drop=_NEVER, head=r"heads?\.")
    positions = converted.tensors["pos_embed"]
    if positions.ndim == 3 and positions.shape[1] == 1:  # SWAG keeps positions first: S×1×D
        converted.tensors["pos_embed"] = positions.transpose(0, 1)
    return converted


def _dinov2(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    # Some releases number blocks within chunks for sharding: blocks.<chunk>.<block>.
    rules = [(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.")]
    return _rename(state, rules, drop=r"mask_token$", head=r"head\.")


_CAFFE_RULES = [(r"^0\.", "conv1."), (r"^1\.", "bn1.")] + [
    (rf"^{number}\.(\d+)\.", rf"layer{number - 3}.\1.") for number in (4, 5, 6, 7)
]


def _caffe_resnet(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    return _rename(state, _CAFFE_RULES, drop=_NEVER, head=_NEVER)


def _efficientnet_lite(state: Mapping[str, Tensor], backbone: nn.Module) -> Converted:
    # The original numbers all blocks consecutively; timm numbers them within stages.
    flat = [f"{stage}.{block}" for stage, blocks in enumerate(backbone.blocks) for block in range(len(blocks))]  # type: ignore[arg-type]
    expanded = {name: f"_blocks.{number}._expand_conv.weight" in state for number, name in enumerate(flat)}
    rules = [
        (r"^_conv_stem\.", "conv_stem."),
        (r"^_bn0\.", "bn1."),
        (r"^_conv_head\.", "conv_head."),
        (r"^_bn1\.", "bn2."),
    ]
    for number, name in enumerate(flat):
        prefix = rf"^_blocks\.{number}\._"
        # A block without expansion has no _bn0, and timm counts only the existing norms.
        names = ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]
        originals = ["expand_conv", "bn0", "depthwise_conv", "bn1", "project_conv", "bn2"]
        if not expanded[name]:
            names, originals = ["conv_dw", "bn1", "conv_pw", "bn2"], originals[2:]
        rules += [
            (rf"{prefix}{original}\.", f"blocks.{name}.{ours}.")
            for original, ours in zip(originals, names, strict=True)
        ]
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
    renamed = _rename(plain, _JAX_RULES, drop=r"pre_logits/", head=r"head/")
    converted = Converted({})
    if "head/kernel" in renamed.head:
        converted.head["head.weight"] = renamed.head["head/kernel"].T
    for key, value in renamed.tensors.items():
        name, slash, kind = key.rpartition("/")
        if slash and kind in _JAX_KINDS:
            key, value = f"{name}.{_JAX_KINDS[kind]}", _from_flax(name, kind, value)
        converted.tensors[key] = value
    tensors = converted.tensors
    for key in [key for key in tensors if ".attn.query." in key]:
        parts = [tensors.pop(key.replace("query", which), None) for which in ("query", "key", "value")]
        tensors[key.replace("query", "qkv")] = torch.cat([part for part in parts if part is not None])
    return converted


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
    own = backbone.state_dict()
    converted = Converted({})
    for key, value in state.items():
        is_head = key not in own and any(key in (f"{name}.weight", f"{name}.bias") for name in names)
        (converted.head if is_head else converted.tensors)[key] = value
    return converted


LAYOUTS = (
    Layout("clip", ("visual.class_embedding",), _clip, "OpenAI-CLIP, OpenCLIP or DiHT"),
    Layout("torchvision-vit", ("encoder.pos_embedding",), _torchvision_vit, "SWAG or a torchvision ViT"),
    Layout("dinov2", ("mask_token",), _dinov2, "DINOv2"),
    Layout("caffe-resnet", ("0.weight", "4.0.conv1.weight"), _caffe_resnet, "the Caffe-ported ResNets"),
    Layout("efficientnet-lite", ("_conv_stem.weight",), _efficientnet_lite, "EfficientNet-Lite"),
    Layout("jax-vit", ("embedding/kernel",), _jax_vit, "the original ViT (JAX)"),
    Layout("jax-vit", ("opt/target/embedding/kernel",), _jax_vit, "the original ViT (JAX)"),
    Layout("timm", (), _timm, "timm or torchvision"),
)
"""Tried in this order; the last one has no anchor and matches all remaining files."""
