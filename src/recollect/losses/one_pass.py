"""Losses that find value and gradient in one pass: what their autograd functions share.

``forward`` computes the gradient beside the value and saves it; ``backward`` only scales it. Used by the soft-rank engine,
the tiled row losses and the calibration term.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

MEMORY = 512 * 2**20
"""Default memory budget of a loss in bytes, beside the embeddings and their gradient."""


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The widest floating type among the tensors, float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def same_set(embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None) -> bool:
    """Whether the batch is its own reference set, so that a query is not to be compared with itself."""
    if ref_emb is None or ref_labels is None:
        return True
    return ref_emb is embeddings and (ref_labels is labels or torch.equal(ref_labels, labels))


def zero_loss(embeddings: Tensor, ref_emb: Tensor | None = None) -> Tensor:
    """0 with a zero gradient, for a batch in which nothing has a positive; warns, since it trains nothing."""
    warnings.warn(
        "No image of this batch has a positive, so the loss is 0: sample at least 2 images a class.", stacklevel=3
    )
    zero = (embeddings * 0).sum(dtype=compute_dtype(embeddings))
    return zero if ref_emb is None else zero + (ref_emb * 0).sum(dtype=compute_dtype(ref_emb))


def gradient_wanted(*tensors: Tensor | None) -> bool:
    """Whether anything will ask for a gradient: if not, forward need not find one."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def save_gradients(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor], gradients: tuple[Tensor, Tensor | None]) -> None:
    """Keep what forward has found and the inputs it depends on, for ``scaled_gradients``.

    The second gradient is None where both inputs are one set, and the first is then of both. Both stay in the type
    they were computed in: for float16 inputs a loss scale must reach them before they are rounded to float16.
    """
    ctx.save_for_backward(*inputs, *gradients)  # type: ignore[arg-type]


def scaled_gradients(ctx: FunctionCtx, factor: Tensor) -> list[Tensor | None]:
    """The saved gradients times ``factor``, in their inputs' types.

    They know their inputs, so differentiating them again is refused in words.
    """
    queries, references, of_queries, of_references = ctx.saved_tensors  # type: ignore[attr-defined]
    scaled = _Once.apply(of_queries, factor, queries, references).to(queries.dtype)
    if of_references is None:
        return [scaled, None]
    return [scaled, _Once.apply(of_references, factor, queries, references).to(references.dtype)]


class _Once(torch.autograd.Function):
    """``gradient · factor``; a second derivative would be wrong, so there is a sentence instead."""

    @staticmethod
    def forward(ctx: FunctionCtx, gradient: Tensor, factor: Tensor, queries: Tensor, references: Tensor) -> Tensor:
        return gradient * factor.to(gradient.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Tensor) -> Tensor:
        raise RuntimeError(
            "recollect's losses give first derivatives only: a second backward through one is not supported."
        )
