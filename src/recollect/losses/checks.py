"""Checks of the input of every loss: shapes, lengths, types, finite numbers. Of its options: ``common/text.py``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recollect.common.errors import InputError

TEMPERATURES = (1e-8, 1e8)
"""The range of a temperature. Beyond it a step is flat, or no number type can hold its slope."""


def check_inputs(
    embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
) -> float:
    """Check the input that every loss takes; returns the greatest similarity that its lengths allow.

    Raises:
        InputError: (a ``ValueError``) for the first problem found; the message names the value.
    """
    longest = longest_reference = _check_pair(embeddings, labels, "embeddings", "labels")
    if (ref_emb is None) != (ref_labels is None):
        missing = "ref_emb" if ref_emb is None else "ref_labels"
        raise InputError(f"ref_emb and ref_labels must be given together, but {missing} is missing.")
    if ref_emb is not None and ref_labels is not None and ref_emb is not embeddings:
        longest_reference = _check_pair(ref_emb, ref_labels, "ref_emb", "ref_labels")
        if ref_emb.shape[1] != embeddings.shape[1]:
            raise InputError(
                f"embeddings have {embeddings.shape[1]} dimensions and ref_emb {ref_emb.shape[1]}: "
                "both must come from the same model."
            )
    return longest * longest_reference


def _check_pair(embeddings: Tensor, labels: Tensor, name: str, labels_name: str) -> float:
    if not isinstance(embeddings, Tensor) or not isinstance(labels, Tensor):
        raise InputError(f"{name} and {labels_name} must be tensors.")
    if embeddings.ndim != 2:
        raise InputError(f"{name} must be a matrix (images × dimensions), but its shape is {tuple(embeddings.shape)}.")
    if not embeddings.is_floating_point():
        raise InputError(f"{name} must be floating point, but are {embeddings.dtype}.")
    if labels.ndim != 1 or labels.is_floating_point():
        raise InputError(
            f"{labels_name} must be a vector of integers, but has shape {tuple(labels.shape)} and type {labels.dtype}."
        )
    if len(labels) != len(embeddings):
        raise InputError(f"{len(embeddings)} {name} but {len(labels)} {labels_name}: give one label per embedding.")
    if embeddings.numel() == 0:
        raise InputError(f"{name} are empty (shape {tuple(embeddings.shape)}): a batch needs at least one image.")
    longest = greatest_length(embeddings)
    if not math.isfinite(longest) and len(rows := (~torch.isfinite(embeddings)).any(dim=1).nonzero()):
        row = int(rows[0])
        raise InputError(
            f"{name} contain NaN or infinite values (first in row {row}): "
            "lower the learning rate, or check the image in that row."
        )
    if longest > 0.1 * torch.finfo(torch.promote_types(embeddings.dtype, torch.float32)).max ** 0.5:
        raise InputError(
            f"{name} have norms of up to {longest:.3g}, so similarities overflow: L2-normalize them "
            "(torch.nn.functional.normalize)."
        )
    return longest


def greatest_length(embeddings: Tensor) -> float:
    """The largest L2 norm of a row; NaN or infinite if any is. In parts, to avoid a float64 copy of the whole matrix."""
    norms = [part.detach().double().norm(dim=1).amax() for part in embeddings.split(1024)]
    return float(torch.stack(norms).amax())


def check_scale(greatest: float, tau: float, dtype: torch.dtype) -> None:
    """Refuse similarities of up to ``greatest`` if ``dtype`` cannot resolve differences of a fraction of ``tau`` in them.

    Raises:
        InputError: the message names the largest possible similarity.
    """
    if greatest / tau > largest_similarity(dtype):
        raise InputError(
            f"the embeddings have similarities of up to {greatest:.3g}, which {str(dtype).removeprefix('torch.')} cannot "
            f"tell apart in steps of tau = {tau:g}: L2-normalize them (torch.nn.functional.normalize), or raise tau."
        )


def largest_similarity(dtype: torch.dtype) -> float:
    """The largest similarity, in units of tau, at which ``dtype`` still resolves steps of 1/16."""
    return 1 / (16 * torch.finfo(dtype).eps)
