"""The published projects' networks, once more as plain functions of their own state dicts.

Each pair ``make_*`` / ``run_*`` writes random tensors under the original's key names and shapes, and computes what the
original computes from them, straight from its block's definition. Nothing here uses timm.
"""

from __future__ import annotations

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
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / (variance + eps).sqrt() * weight + bias


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Scaled dot-product attention, B×N×D each."""
    split = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v)]
    scores = split[0] @ split[1].mT / split[0].shape[-1] ** 0.5
    return (scores.softmax(-1) @ split[2]).transpose(1, 2).flatten(-2)


def patches(x: Tensor, weight: Tensor, bias: Tensor | None, patch: int) -> Tensor:
    """Non-overlapping patches through a linear map, B×N×D."""
    tiles = x.unfold(2, patch, patch).unfold(3, patch, patch)  # B, 3, h, w, p, p
    flat = tiles.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    out = flat @ weight.flatten(1).T
    return out if bias is None else out + bias


# OpenAI-CLIP, OpenCLIP and DiHT ------------------------------------------------------------------------------------


def make_clip(width: int, depth: int, patch: int, grid: int, text: bool = True) -> State:
    state: State = {
        "visual.class_embedding": _random(width),
        "visual.positional_embedding": _random(grid * grid + 1, width),
        "visual.proj": _random(width, 24),
        "visual.conv1.weight": _random(width, 3, patch, patch),
    }
    _norm(state, "visual.ln_pre", width)
    _norm(state, "visual.ln_post", width)
    towers = [("visual.transformer", width)] + ([("transformer", 16)] if text else [])
    for tower, size in towers:
        for number in range(depth):
            block = f"{tower}.resblocks.{number}"
            _norm(state, f"{block}.ln_1", size)
            _norm(state, f"{block}.ln_2", size)
            state[f"{block}.attn.in_proj_weight"] = _random(3 * size, size)
            state[f"{block}.attn.in_proj_bias"] = _random(3 * size)
            _linear(state, f"{block}.attn.out_proj", size, size)
            _linear(state, f"{block}.mlp.c_fc", 4 * size, size)
            _linear(state, f"{block}.mlp.c_proj", size, 4 * size)
    if text:
        state |= {
            "positional_embedding": _random(77, 16),
            "text_projection": _random(16, 24),
            "logit_scale": torch.tensor(2.6),
            "token_embedding.weight": _random(100, 16),
        }
        _norm(state, "ln_final", 16)
    return state


def run_clip(state: State, x: Tensor, heads: int, activation: str) -> Tensor:
    """The [CLS] token after ln_post, before the projection."""
    act = {"gelu": gelu, "quickgelu": quick_gelu}[activation]
    eps = 1e-5
    conv = state["visual.conv1.weight"]
    x = patches(x, conv, None, conv.shape[-1])
    x = torch.cat([state["visual.class_embedding"].expand(len(x), 1, -1), x], dim=1)
    x = x + state["visual.positional_embedding"]
    x = layer_norm(x, state["visual.ln_pre.weight"], state["visual.ln_pre.bias"], eps)
    depth = 1 + max(int(key.split(".")[3]) for key in state if key.startswith("visual.transformer"))
    for number in range(depth):
        b = f"visual.transformer.resblocks.{number}"
        y = layer_norm(x, state[f"{b}.ln_1.weight"], state[f"{b}.ln_1.bias"], eps)
        q, k, v = (y @ state[f"{b}.attn.in_proj_weight"].T + state[f"{b}.attn.in_proj_bias"]).chunk(3, dim=-1)
        y = attention(q, k, v, heads)
        x = x + y @ state[f"{b}.attn.out_proj.weight"].T + state[f"{b}.attn.out_proj.bias"]
        y = layer_norm(x, state[f"{b}.ln_2.weight"], state[f"{b}.ln_2.bias"], eps)
        y = act(y @ state[f"{b}.mlp.c_fc.weight"].T + state[f"{b}.mlp.c_fc.bias"])
        x = x + y @ state[f"{b}.mlp.c_proj.weight"].T + state[f"{b}.mlp.c_proj.bias"]
    return layer_norm(x[:, 0], state["visual.ln_post.weight"], state["visual.ln_post.bias"], eps)


# SWAG and torchvision ViT -------------------------------------------------------------------------------------------


def make_swag(width: int, depth: int, patch: int, grid: int, torchvision: bool = False) -> State:
    positions = _random(grid * grid + 1, 1, width)
    state: State = {
        "class_token": _random(1, 1, width),
        "conv_proj.weight": _random(width, 3, patch, patch),
        "conv_proj.bias": _random(width),
        "encoder.pos_embedding": positions.transpose(0, 1).contiguous() if torchvision else positions,
    }
    for number in range(depth):
        block = f"encoder.layers.{'encoder_' if torchvision else ''}layer_{number}"
        _norm(state, f"{block}.ln_1", width)
        _norm(state, f"{block}.ln_2", width)
        state[f"{block}.self_attention.in_proj_weight"] = _random(3 * width, width)
        state[f"{block}.self_attention.in_proj_bias"] = _random(3 * width)
        _linear(state, f"{block}.self_attention.out_proj", width, width)
        _linear(state, f"{block}.mlp.{'0' if torchvision else 'linear_1'}", 4 * width, width)
        _linear(state, f"{block}.mlp.{'3' if torchvision else 'linear_2'}", width, 4 * width)
    _norm(state, "encoder.ln", width)
    return state


def run_swag(state: State, x: Tensor, heads: int, torchvision: bool = False) -> Tensor:
    eps = 1e-6
    x = patches(x, state["conv_proj.weight"], state["conv_proj.bias"], state["conv_proj.weight"].shape[-1])
    x = torch.cat([state["class_token"].expand(len(x), 1, -1), x], dim=1)
    positions = state["encoder.pos_embedding"]
    x = x + (positions if torchvision else positions.transpose(0, 1))
    depth = sum(key.endswith(".ln_1.weight") for key in state)
    for number in range(depth):
        b = f"encoder.layers.{'encoder_' if torchvision else ''}layer_{number}"
        one, two = (f"{b}.mlp.0", f"{b}.mlp.3") if torchvision else (f"{b}.mlp.linear_1", f"{b}.mlp.linear_2")
        y = layer_norm(x, state[f"{b}.ln_1.weight"], state[f"{b}.ln_1.bias"], eps)
        qkv = y @ state[f"{b}.self_attention.in_proj_weight"].T + state[f"{b}.self_attention.in_proj_bias"]
        y = attention(*qkv.chunk(3, dim=-1), heads)
        x = x + y @ state[f"{b}.self_attention.out_proj.weight"].T + state[f"{b}.self_attention.out_proj.bias"]
        y = layer_norm(x, state[f"{b}.ln_2.weight"], state[f"{b}.ln_2.bias"], eps)
        y = gelu(y @ state[f"{one}.weight"].T + state[f"{one}.bias"])
        x = x + y @ state[f"{two}.weight"].T + state[f"{two}.bias"]
    return layer_norm(x, state["encoder.ln.weight"], state["encoder.ln.bias"], eps)[:, 0]


# DINOv2 -------------------------------------------------------------------------------------------------------------


def make_dinov2(width: int, depth: int, patch: int, grid: int, chunks: bool = False) -> State:
    state: State = {
        "cls_token": _random(1, 1, width),
        "pos_embed": _random(1, grid * grid + 1, width),
        "mask_token": _random(1, width),
        "patch_embed.proj.weight": _random(width, 3, patch, patch),
        "patch_embed.proj.bias": _random(width),
    }
    for number in range(depth):
        block = f"blocks.0.{number}" if chunks else f"blocks.{number}"
        _norm(state, f"{block}.norm1", width)
        _norm(state, f"{block}.norm2", width)
        _linear(state, f"{block}.attn.qkv", 3 * width, width)
        _linear(state, f"{block}.attn.proj", width, width)
        state[f"{block}.ls1.gamma"] = _random(width)
        state[f"{block}.ls2.gamma"] = _random(width)
        _linear(state, f"{block}.mlp.fc1", 4 * width, width)
        _linear(state, f"{block}.mlp.fc2", width, 4 * width)
    _norm(state, "norm", width)
    return state


def run_dinov2(state: State, x: Tensor, heads: int, chunks: bool = False) -> Tensor:
    eps = 1e-6
    weight = state["patch_embed.proj.weight"]
    x = patches(x, weight, state["patch_embed.proj.bias"], weight.shape[-1])
    x = torch.cat([state["cls_token"].expand(len(x), 1, -1), x], dim=1) + state["pos_embed"]
    depth = sum(key.endswith(".ls1.gamma") for key in state)
    for number in range(depth):
        b = f"blocks.0.{number}" if chunks else f"blocks.{number}"
        y = layer_norm(x, state[f"{b}.norm1.weight"], state[f"{b}.norm1.bias"], eps)
        y = attention(*(y @ state[f"{b}.attn.qkv.weight"].T + state[f"{b}.attn.qkv.bias"]).chunk(3, dim=-1), heads)
        y = y @ state[f"{b}.attn.proj.weight"].T + state[f"{b}.attn.proj.bias"]
        x = x + state[f"{b}.ls1.gamma"] * y
        y = layer_norm(x, state[f"{b}.norm2.weight"], state[f"{b}.norm2.bias"], eps)
        y = gelu(y @ state[f"{b}.mlp.fc1.weight"].T + state[f"{b}.mlp.fc1.bias"])
        x = x + state[f"{b}.ls2.gamma"] * (y @ state[f"{b}.mlp.fc2.weight"].T + state[f"{b}.mlp.fc2.bias"])
    return layer_norm(x, state["norm.weight"], state["norm.bias"], eps)[:, 0]


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
        weights = torch.einsum("bhne,bhme->bhnm", q / q.shape[-1] ** 0.5, k).softmax(-1)
        mixed = torch.einsum("bhnm,bhme->bnhe", weights, v)
        x = x + torch.einsum("bnhe,hed->bnd", mixed, state[f"{a}/out/kernel"]) + state[f"{a}/out/bias"]
        y = layer_norm(x, state[f"{b}/LayerNorm_2/scale"], state[f"{b}/LayerNorm_2/bias"], eps)
        y = gelu(y @ state[f"{b}/MlpBlock_3/Dense_0/kernel"] + state[f"{b}/MlpBlock_3/Dense_0/bias"])
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
