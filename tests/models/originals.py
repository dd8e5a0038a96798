"""The published projects' networks, once more as plain functions of their own state dicts.

Each pair ``make_*`` / ``run_*`` writes random tensors under the original's key names and shapes, and computes what the
original computes from them, straight from its block's definition. Nothing here uses timm.
"""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]


def _random(*shape: int, scale: float = 0.2) -> Tensor:
    return torch.randn(*shape) * scale


def _norm(state: State, name: str, width: int) -> None:
    state[f"{name}.weight"] = 1 + _random(width)
    state[f"{name}.bias"] = _random(width)


def _linear(state: State, name: str, out: int, into: int) -> None:
    state[f"{name}.weight"] = _random(out, into)
    state[f"{name}.bias"] = _random(out)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


ACTIVATIONS = {"gelu": F.gelu, "quickgelu": lambda x: x * torch.sigmoid(1.702 * x), "relu6": F.relu6}


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Scaled dot-product attention, B×N×D each."""
    split = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v)]
    return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(-2)


def patches(x: Tensor, weight: Tensor, bias: Tensor | None, patch: int) -> Tensor:
    """Non-overlapping patches through a linear map, B×N×D."""
    tiles = x.unfold(2, patch, patch).unfold(3, patch, patch)  # B, 3, h, w, p, p
    flat = tiles.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    out = flat @ weight.flatten(1).T
    return out if bias is None else out + bias


# Transformers in PyTorch ---------------------------------------------------------------------------------------------

_TORCHVISION = ("ln_{}", "self_attention.in_proj_", "self_attention.out_proj.")
_TIMM = ("norm{}", "attn.qkv.", "attn.proj.", "mlp.fc1.", "mlp.fc2.")
NAMES = {
    "clip": ("visual.transformer.resblocks.{}", "ln_{}", "attn.in_proj_", "attn.out_proj.", "mlp.c_fc.", "mlp.c_proj."),
    "swag": ("encoder.layers.layer_{}", *_TORCHVISION, "mlp.linear_1.", "mlp.linear_2."),
    "torchvision": ("encoder.layers.encoder_layer_{}", *_TORCHVISION, "mlp.0.", "mlp.3."),
    "dinov2": ("blocks.{}", *_TIMM),
    "dinov2, in chunks": ("blocks.0.{}", *_TIMM),
    "unicom": ("blocks.{}", *_TIMM),
}
"""Of each project: its blocks, and within one its norms, query-key-value, output, and the two layers of the MLP."""
# The names of the patches, the [CLS] token, the positions and the final norm.
STEMS = {
    "clip": ("visual.conv1", "visual.class_embedding", "visual.positional_embedding", "visual.ln_post"),
    "swag": ("conv_proj", "class_token", "encoder.pos_embedding", "encoder.ln"),
    "dinov2": ("patch_embed.proj", "cls_token", "pos_embed", "norm"),
}
STEMS |= {"torchvision": STEMS["swag"], "dinov2, in chunks": STEMS["dinov2"], "unicom": STEMS["dinov2"]}


def make_transformer(project: str, width: int, depth: int, patch: int, grid: int, text: bool = True) -> State:
    """A file of ``project`` with random tensors; ``text``: with CLIP's text tower."""
    conv, token, positions, norm = STEMS[project]
    shapes = {"clip": ((width,), (grid * grid + 1, width)), "swag": ((1, 1, width), (grid * grid + 1, 1, width))}
    token_shape, positions_shape = shapes.get(project, ((1, 1, width), (1, grid * grid + 1, width)))
    state: State = {token: _random(*token_shape), positions: _random(*positions_shape)}
    state[f"{conv}.weight"] = _random(width, 3, patch, patch)
    _norm(state, norm, width)
    towers = [(NAMES[project], width)]
    if project == "clip":
        state["visual.proj"] = _random(width, 24)
        _norm(state, "visual.ln_pre", width)
        if text:
            towers.append((("transformer.resblocks.{}", *NAMES["clip"][1:]), 16))
            state |= {"positional_embedding": _random(77, 16), "text_projection": _random(16, 24)}
            state |= {"logit_scale": torch.tensor(2.6), "token_embedding.weight": _random(100, 16)}
            _norm(state, "ln_final", 16)
    else:
        state[f"{conv}.bias"] = _random(width)
    for (blocks, norms, qkv, proj, fc1, fc2), size in towers:
        for number in range(depth):
            b = blocks.format(number)
            for name, out, into in (
                (qkv, 3 * size, size),
                (proj, size, size),
                (fc1, 4 * size, size),
                (fc2, size, 4 * size),
            ):
                state[f"{b}.{name}weight"], state[f"{b}.{name}bias"] = _random(out, into), _random(out)
            for which in (1, 2):
                _norm(state, f"{b}.{norms.format(which)}", size)
                if project.startswith("dinov2"):
                    state[f"{b}.ls{which}.gamma"] = _random(size)
    if project.startswith("dinov2"):
        state["mask_token"] = _random(1, width)
    return state


def run_transformer(project: str, state: State, x: Tensor, heads: int, activation: str = "gelu") -> Tensor:
    """The [CLS] token after the final norm; for CLIP, before the projection."""
    return run_tokens(project, state, x, heads, activation)[:, 0]


def run_tokens(project: str, state: State, x: Tensor, heads: int, activation: str) -> Tensor:
    """All tokens after the final norm."""
    act = ACTIVATIONS[activation]
    conv, token, positions, final = STEMS[project]
    blocks, norms, qkv, proj, fc1, fc2 = NAMES[project]
    eps = 1e-5 if project in ("clip", "unicom") else 1e-6

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, state[f"{name}weight"], state.get(f"{name}bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x, state[f"{name}.weight"], state[f"{name}.bias"], eps)

    x = patches(x, state[f"{conv}.weight"], state.get(f"{conv}.bias"), state[f"{conv}.weight"].shape[-1])
    if token in state:
        x = torch.cat([state[token].reshape(1, 1, -1).expand(len(x), 1, -1), x], dim=1)
    x = x + state[positions].reshape(1, -1, x.shape[-1])
    if project == "clip":
        x = norm(x, "visual.ln_pre")
    for number in range(sum(key.endswith(f"{qkv}weight") and not key.startswith("transformer") for key in state)):
        b = blocks.format(number)
        first, second = (state.get(f"{b}.ls{which}.gamma", 1.0) for which in (1, 2))
        y = attention(*linear(norm(x, f"{b}.{norms.format(1)}"), f"{b}.{qkv}").chunk(3, dim=-1), heads)
        x = x + first * linear(y, f"{b}.{proj}")
        y = act(linear(norm(x, f"{b}.{norms.format(2)}"), f"{b}.{fc1}"))
        x = x + second * linear(y, f"{b}.{fc2}")
    return norm(x, final)


# UNICOM --------------------------------------------------------------------------------------------------------------


def make_unicom(width: int, depth: int, patch: int, grid: int, out: int) -> State:
    state = make_transformer("dinov2", width, depth, patch, grid)
    unknown = re.compile(r"cls_token|mask_token|.*\.ls\d|.*qkv\.bias")
    state = {name: value for name, value in state.items() if not unknown.match(name)}
    state["pos_embed"] = state["pos_embed"][:, 1:]
    state["feature.0.weight"] = _random(width, width * grid * grid, scale=0.01)
    _batch_norm(state, "feature.1", width)
    state["feature.2.weight"] = _random(out, width)
    _batch_norm(state, "feature.3", out)
    return state


def run_unicom(state: State, x: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """The tokens, and the vector that its head makes of all of them."""

    def batch_norm(x: Tensor, name: str) -> Tensor:
        scale = (state[f"{name}.running_var"] + 2e-5).rsqrt() * state[f"{name}.weight"]
        return (x - state[f"{name}.running_mean"]) * scale + state[f"{name}.bias"]

    tokens = run_tokens("unicom", state, x, heads, "relu6")
    pooled = batch_norm(tokens.flatten(1) @ state["feature.0.weight"].T, "feature.1")
    return tokens, batch_norm(pooled @ state["feature.2.weight"].T, "feature.3")


# The original ViT, as JAX wrote it ----------------------------------------------------------------------------------


def make_jax_vit(width: int, depth: int, patch: int, grid: int, heads: int, classes: int = 21_843) -> State:
    each = width // heads
    state: State = {
        "cls": _random(1, 1, width),
        "embedding/kernel": _random(patch, patch, 3, width),
        "embedding/bias": _random(width),
        "Transformer/posembed_input/pos_embedding": _random(1, grid * grid + 1, width),
        "Transformer/encoder_norm/scale": 1 + _random(width),
        "Transformer/encoder_norm/bias": _random(width),
        "pre_logits/kernel": _random(width, width),
        "pre_logits/bias": _random(width),
        "head/kernel": torch.zeros(width, classes),
        "head/bias": torch.zeros(classes),
    }
    for number in range(depth):
        b = f"Transformer/encoderblock_{number}"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            state[f"{b}/{norm}/scale"] = 1 + _random(width)
            state[f"{b}/{norm}/bias"] = _random(width)
        for which in ("query", "key", "value"):
            state[f"{b}/MultiHeadDotProductAttention_1/{which}/kernel"] = _random(width, heads, each)
            state[f"{b}/MultiHeadDotProductAttention_1/{which}/bias"] = _random(heads, each)
        state[f"{b}/MultiHeadDotProductAttention_1/out/kernel"] = _random(heads, each, width)
        state[f"{b}/MultiHeadDotProductAttention_1/out/bias"] = _random(width)
        state[f"{b}/MlpBlock_3/Dense_0/kernel"] = _random(width, 4 * width)
        state[f"{b}/MlpBlock_3/Dense_0/bias"] = _random(4 * width)
        state[f"{b}/MlpBlock_3/Dense_1/kernel"] = _random(4 * width, width)
        state[f"{b}/MlpBlock_3/Dense_1/bias"] = _random(width)
    return state


def run_jax_vit(state: State, x: Tensor) -> Tensor:
    eps = 1e-6
    kernel = state["embedding/kernel"]
    tiles = x.unfold(2, kernel.shape[0], kernel.shape[0]).unfold(3, kernel.shape[1], kernel.shape[1])
    x = torch.einsum("bchwij,ijcd->bhwd", tiles, kernel).flatten(1, 2) + state["embedding/bias"]
    x = torch.cat([state["cls"].expand(len(x), 1, -1), x], 1) + state["Transformer/posembed_input/pos_embedding"]
    depth = sum(key.endswith("LayerNorm_0/scale") for key in state)
    for number in range(depth):
        b = f"Transformer/encoderblock_{number}"
        a = f"{b}/MultiHeadDotProductAttention_1"
        y = layer_norm(x, state[f"{b}/LayerNorm_0/scale"], state[f"{b}/LayerNorm_0/bias"], eps)
        q, k, v = (
            torch.einsum("bnd,dhe->bhne", y, state[f"{a}/{which}/kernel"]) + state[f"{a}/{which}/bias"][:, None]
            for which in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + torch.einsum("bnhe,hed->bnd", mixed, state[f"{a}/out/kernel"]) + state[f"{a}/out/bias"]
        y = layer_norm(x, state[f"{b}/LayerNorm_2/scale"], state[f"{b}/LayerNorm_2/bias"], eps)
        y = F.gelu(y @ state[f"{b}/MlpBlock_3/Dense_0/kernel"] + state[f"{b}/MlpBlock_3/Dense_0/bias"])
        x = x + y @ state[f"{b}/MlpBlock_3/Dense_1/kernel"] + state[f"{b}/MlpBlock_3/Dense_1/bias"]
    return layer_norm(x, state["Transformer/encoder_norm/scale"], state["Transformer/encoder_norm/bias"], eps)[:, 0]


# ResNet: torchvision's names, and the Caffe port's numbers ----------------------------------------------------------


def _batch_norm(state: State, name: str, width: int) -> None:
    _norm(state, name, width)
    state[f"{name}.running_mean"] = _random(width)
    state[f"{name}.running_var"] = torch.rand(width) + 0.5


def make_resnet(layers: tuple[int, ...], caffe: bool, classes: int = 10) -> State:
    """A bottleneck ResNet; the Caffe port numbers the children of a Sequential and has no classifier."""
    stem, norm = ("0", "1") if caffe else ("conv1", "bn1")
    state: State = {f"{stem}.weight": _random(64, 3, 7, 7, scale=0.1)}
    _batch_norm(state, norm, 64)
    channels = 64
    for number, blocks in enumerate(layers):
        name = str(number + 4) if caffe else f"layer{number + 1}"
        width = 64 * 2**number
        for block in range(blocks):
            b = f"{name}.{block}"
            state[f"{b}.conv1.weight"] = _random(width, channels, 1, 1, scale=0.05)
            state[f"{b}.conv2.weight"] = _random(width, width, 3, 3, scale=0.02)
            state[f"{b}.conv3.weight"] = _random(4 * width, width, 1, 1, scale=0.05)
            for which, size in (("bn1", width), ("bn2", width), ("bn3", 4 * width)):
                _batch_norm(state, f"{b}.{which}", size)
            if block == 0:
                state[f"{b}.downsample.0.weight"] = _random(4 * width, channels, 1, 1, scale=0.05)
                _batch_norm(state, f"{b}.downsample.1", 4 * width)
            channels = 4 * width
    if not caffe:
        _linear(state, "fc", classes, channels)
    return state


def run_resnet(state: State, x: Tensor, layers: tuple[int, ...], caffe: bool) -> Tensor:
    """The last feature map; stride in the 3×3 convolution."""

    def norm(x: Tensor, name: str) -> Tensor:
        shape = (1, -1, 1, 1)
        scale = state[f"{name}.weight"] / (state[f"{name}.running_var"] + 1e-5).sqrt()
        shift = state[f"{name}.bias"] - state[f"{name}.running_mean"] * scale
        return x * scale.reshape(shape) + shift.reshape(shape)

    stem, first = ("0", "1") if caffe else ("conv1", "bn1")
    x = norm(F.conv2d(x, state[f"{stem}.weight"], stride=2, padding=3), first).clamp(min=0)
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    for number, blocks in enumerate(layers):
        name = str(number + 4) if caffe else f"layer{number + 1}"
        for block in range(blocks):
            b, stride = f"{name}.{block}", 2 if number and not block else 1
            y = norm(F.conv2d(x, state[f"{b}.conv1.weight"]), f"{b}.bn1").clamp(min=0)
            y = norm(F.conv2d(y, state[f"{b}.conv2.weight"], stride=stride, padding=1), f"{b}.bn2").clamp(min=0)
            y = norm(F.conv2d(y, state[f"{b}.conv3.weight"]), f"{b}.bn3")
            if block == 0:
                x = norm(F.conv2d(x, state[f"{b}.downsample.0.weight"], stride=stride), f"{b}.downsample.1")
            x = (x + y).clamp(min=0)
    return x


# EfficientNet-Lite0 ---------------------------------------------------------------------------------------------------

# kernel, stride, expansion, repeats of each stage
LITE0_STAGES = ((3, 1, 1, 1), (3, 2, 6, 2), (5, 2, 6, 2), (3, 2, 6, 3), (5, 1, 6, 3), (5, 2, 6, 4), (3, 1, 6, 1))


def run_lite0(state: State, x: Tensor) -> Tensor:
    """Logits. TensorFlow's "same" padding, ReLU6, no squeeze-and-excitation."""

    def conv(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
        kernel, pads = weight.shape[-1], []
        for side in (x.shape[-1], x.shape[-2]):
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads += [total // 2, total - total // 2]
        groups = x.shape[1] if weight.shape[1] == 1 else 1
        return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)

    def norm(x: Tensor, name: str) -> Tensor:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return F.batch_norm(x, mean, variance, state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-3)

    x = norm(conv(x, state["_conv_stem.weight"], 2), "_bn0").clamp(0, 6)
    number = 0
    for _, stride, expansion, repeats in LITE0_STAGES:
        for repeat in range(repeats):
            b, step, y = f"_blocks.{number}", stride if repeat == 0 else 1, x
            if expansion != 1:
                y = norm(conv(y, state[f"{b}._expand_conv.weight"]), f"{b}._bn0").clamp(0, 6)
            y = norm(conv(y, state[f"{b}._depthwise_conv.weight"], step), f"{b}._bn1").clamp(0, 6)
            y = norm(conv(y, state[f"{b}._project_conv.weight"]), f"{b}._bn2")
            x = x + y if step == 1 and x.shape[1] == y.shape[1] else y
            number += 1
    x = norm(conv(x, state["_conv_head.weight"]), "_bn1").clamp(0, 6)
    return x.mean((2, 3)) @ state["_fc.weight"].T + state["_fc.bias"]
