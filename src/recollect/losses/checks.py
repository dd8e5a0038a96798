"""What every loss asks of its input, checked in one place so that each mistake has one sentence.

Every loss calls ``check_inputs`` first; nothing here knows any loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.common.errors import InputError


def check_inputs(
    embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
) -> None:
    """Refuse embeddings and labels no loss can work with.

    Raises:
        InputError: not 2-D, not floating, empty, not finite; labels not 1-D integers of the same length; a reference
            set without labels, without embeddings, or of another dimension.
    """
    _check_pair(embeddings, labels, "embeddings", "labels")
    if (ref_emb is None) != (ref_labels is None):
        given, missing = ("ref_labels", "ref_emb") if ref_emb is None else ("ref_emb", "ref_labels")
        raise InputError(f"{given} was given without {missing}: a reference set needs both.")
    if ref_emb is not None and ref_labels is not None:
        _check_pair(ref_emb, ref_labels, "ref_emb", "ref_labels")
        if ref_emb.shape[1] != embeddings.shape[1]:
            raise InputError(
                f"embeddings have {embeddings.shape[1]} dimensions but ref_emb has {ref_emb.shape[1]}: "
                "both must come from the same model."
            )


def _check_pair(embeddings: Tensor, labels: Tensor, name: str, labels_name: str) -> None:
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise InputError(
            f"{name} must be a 2-D floating-point tensor, one row an image; got shape "
            f"{tuple(embeddings.shape)} of {embeddings.dtype}."
        )
    if embeddings.numel() == 0:
        raise InputError(f"{name} is empty (shape {tuple(embeddings.shape)}): a loss needs at least one embedding.")
    integer = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.ndim != 1 or not integer:
        raise InputError(
            f"{labels_name} must be a 1-D tensor of integers; got shape {tuple(labels.shape)} of {labels.dtype}."
        )
    if len(labels) != len(embeddings):
        raise InputError(
            f"{len(embeddings)} rows in {name} but {len(labels)} in {labels_name}: one label an embedding."
        )
    if not bool(torch.isfinite(embeddings).all()):
        rows = (~torch.isfinite(embeddings).all(dim=1)).nonzero().flatten()
        raise InputError(
            f"{name} has NaN or infinite values in {len(rows)} of {len(embeddings)} rows (first: row {int(rows[0])}): "
            "lower the learning rate or look for a bad image."
        )
