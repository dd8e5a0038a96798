"""What every loss demands of its input, said once: shapes, lengths, types, finite numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.common.errors import InputError

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def check_inputs(
    embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
) -> None:
    """Refuse what no loss can use, with a sentence that says what was given.

    Raises:
        InputError: (a ``ValueError``) for the first thing that is wrong.
    """
    _check_pair(embeddings, labels, "embeddings", "labels")
    if (ref_emb is None) != (ref_labels is None):
        missing = "ref_emb" if ref_emb is None else "ref_labels"
        raise InputError(f"ref_emb and ref_labels go together, but {missing} is missing.")
    if ref_emb is not None and ref_labels is not None and ref_emb is not embeddings:
        _check_pair(ref_emb, ref_labels, "ref_emb", "ref_labels")
        if ref_emb.shape[1] != embeddings.shape[1]:
            raise InputError(
                f"embeddings have {embeddings.shape[1]} dimensions and ref_emb {ref_emb.shape[1]}: "
                "both must come from the same model."
            )
        if ref_emb.device != embeddings.device:
            raise InputError(
                f"embeddings are on {embeddings.device} and ref_emb on {ref_emb.device}: move one of them."
            )


def _check_pair(embeddings: Tensor, labels: Tensor, name: str, labels_name: str) -> None:
    if not isinstance(embeddings, Tensor) or not isinstance(labels, Tensor):
        raise InputError(f"{name} and {labels_name} must be tensors.")
    if embeddings.ndim != 2:
        raise InputError(f"{name} must be a matrix (images × dimensions), but its shape is {tuple(embeddings.shape)}.")
    if not embeddings.is_floating_point():
        raise InputError(f"{name} must be floating point, but are {embeddings.dtype}.")
    if labels.ndim != 1 or labels.dtype not in _INTEGERS:
        raise InputError(
            f"{labels_name} must be a vector of integers, but has shape {tuple(labels.shape)} and type {labels.dtype}."
        )
    if len(labels) != len(embeddings):
        raise InputError(f"{len(embeddings)} {name} but {len(labels)} {labels_name}: one label an embedding is needed.")
    if embeddings.numel() == 0:
        raise InputError(f"{name} are empty (shape {tuple(embeddings.shape)}): a batch needs at least one image.")
    if not bool(torch.isfinite(embeddings).all()):
        row = int((~torch.isfinite(embeddings)).any(dim=1).nonzero()[0])
        raise InputError(
            f"{name} contain NaN or infinite values (first in row {row}): "
            "lower the learning rate, or look at the image of that row."
        )


def check_positive(name: str, value: float) -> float:
    """``value`` if it is a number above zero."""
    if not value > 0 or value == float("inf"):
        raise InputError(f"{name} must be a number above zero, but is {value}.")
    return float(value)
