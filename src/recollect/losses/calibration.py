"""ROADMAP's calibration term, in tiles: two hinges on similarities, with their gradient in the same pass.

It is no function of ranks, so it does not go through the soft-rank engine; it shares the rule that nothing M × M is held.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from recollect.losses.one_pass import (
    MEMORY,
    compute_dtype,
    same_set,
    save_gradients,
    scaled_gradients,
)


def calibration_loss(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    margins: tuple[float, float] = (0.9, 0.6),
    memory: int = MEMORY,
    share: tuple[int, int] = (0, 1),
) -> Tensor:
    """Mean over positive pairs of ``[margins[0] − s]₊`` plus mean over negative pairs of ``[s − margins[1]]₊``.

    ``share`` = (r, W) takes every W-th row of queries; the W results add up to the whole.
    """
    same = same_set(embeddings, labels, ref_emb, ref_labels)
    others = labels if same or ref_labels is None else ref_labels
    references = embeddings if ref_emb is None else ref_emb
    value: Tensor = _Calibration.apply(embeddings, references, labels, others, same, margins, memory, share)
    return value


class _Calibration(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        embeddings: Tensor,
        references: Tensor,
        labels: Tensor,
        ref_labels: Tensor,
        same: bool,
        margins: tuple[float, float],
        memory: int,
        share: tuple[int, int],
    ) -> Tensor:
        dtype, device = compute_dtype(embeddings, references), embeddings.device
        labels, ref_labels = labels.detach().to(device).long(), ref_labels.detach().to(device).long()
        positives, negatives = _pair_counts(labels, ref_labels, same)
        queries, others = embeddings.detach().to(dtype), references.detach().to(dtype)
        value = queries.new_zeros((), dtype=torch.float64)
        of_queries, of_others = torch.zeros_like(queries), torch.zeros_like(others)
        width = max(1, min(512, memory // (4 * len(others) * queries.element_size())))
        with torch.autocast(device.type, enabled=False):
            for begin in range(share[0] * width, len(queries), share[1] * width):
                rows = slice(begin, min(begin + width, len(queries)))
                similarities = queries[rows] @ others.T
                is_positive = labels[rows, None] == ref_labels
                short = margins[0] - similarities  # how much a positive lacks
                excess = similarities - margins[1]  # how much a negative has too much
                if same:  # a query is no pair with itself
                    short.scatter_(1, torch.arange(begin, rows.stop).to(device)[:, None], -1.0)
                pull, push = is_positive & (short > 0), is_positive.logical_not() & (excess > 0)
                value += (short * pull).sum() / positives + (excess * push).sum() / negatives
                gradient = push.to(dtype) / negatives - pull.to(dtype) / positives
                of_queries[rows] += gradient @ others
                of_others += gradient.T @ queries[rows]
        if same:
            of_queries += of_others
        save_gradients(ctx, (embeddings, references), (of_queries, None if same else of_others))
        return value.to(dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return (*scaled_gradients(ctx, grad_outputs[0]), None, None, None, None, None, None)


def _pair_counts(labels: Tensor, ref_labels: Tensor, same: bool) -> tuple[int, int]:
    """Numbers of positive and of negative pairs, at least 1 each so that they can divide."""
    classes, group = torch.unique(ref_labels, return_inverse=True)
    sizes = torch.bincount(group, minlength=len(classes))
    place = torch.searchsorted(classes, labels).clamp_(max=len(classes) - 1)
    matches = int(torch.where(classes[place] == labels, sizes[place], 0).sum())
    return max(1, matches - (len(labels) if same else 0)), max(1, len(labels) * len(ref_labels) - matches)
