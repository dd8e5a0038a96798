"""Parameter groups for an optimizer: backbone, head and GeM's exponent. Used by ``Embedder.parameter_groups``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from recollect.models.pooling import GeM

if TYPE_CHECKING:
    from recollect.models.embedder import Embedder


def parameter_groups(
    embedder: Embedder,
    lr: float,
    weight_decay: float,
    *,
    head_multiplier: float,
    p_multiplier: float,
    decay_norm_and_bias: bool,
    decay_p: bool,
) -> list[dict[str, Any]]:
    """See ``Embedder.parameter_groups``."""
    exponents = {id(module.p) for module in embedder.modules() if isinstance(module, GeM)}
    in_head = {id(parameter) for parameter in embedder.head.parameters()}
    members: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for parameter in embedder.parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in exponents:
            key = ("gem_p", decay_p)
        else:
            decayed = decay_norm_and_bias or parameter.ndim > 1
            key = ("head" if id(parameter) in in_head else "backbone", decayed)
        members.setdefault(key, []).append(parameter)
    multipliers = {"backbone": 1.0, "head": head_multiplier, "gem_p": p_multiplier}
    return [
        {
            "name": name if decayed or name == "gem_p" else f"{name}_no_decay",
            "params": members[name, decayed],
            "lr": lr * multiplier,
            "weight_decay": weight_decay if decayed else 0.0,
        }
        for name, multiplier in multipliers.items()
        for decayed in (True, False)
        if (name, decayed) in members
    ]
