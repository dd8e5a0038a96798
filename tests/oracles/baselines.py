"""Blackbox-AP and binned AP as their equations: slow, plain, for tests and for reading.

Each function takes embeddings, labels and optionally a reference set, goes
through the queries one by one and lets autograd do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def _queries(
    embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """For every query with a positive: its similarities s_qz to all z ≠ q, and y_z = 1 where z is a positive."""
    for q in range(len(embeddings)):
        if ref_emb is None or ref_labels is None:
            others = torch.arange(len(embeddings), device=embeddings.device) != q
            s, y = (embeddings @ embeddings[q])[others], (labels == labels[q])[others]
        else:
            s, y = ref_emb @ embeddings[q], ref_labels == labels[q]
        if y.any():
            yield s, y


def binned_ap(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    bins: int = 25,
    low: float = -1.0,
    high: float = 1.0,
) -> Tensor:
    """Revaud et al. 2019: AP = Σ_m precision_m · Δrecall_m over soft histogram bins, from the most similar down."""
    losses = []
    width = (high - low) / (bins - 1)
    centres = high - width * torch.arange(bins, dtype=embeddings.dtype, device=embeddings.device)
    for s, y in _queries(embeddings, labels, ref_emb, ref_labels):
        delta = (1 - (s.clamp(low, high)[:, None] - centres).abs() / width).clamp(min=0)  # N × bins
        h, h_pos = delta.sum(0), delta[y].sum(0)
        H = h.cumsum(0)
        precision = h_pos.cumsum(0) / torch.where(H > 0, H, 1)  # 0 where there is no similarity so far
        recall_step = h_pos / y.sum()
        losses.append(1 - (precision * recall_step).sum())
    return torch.stack(losses).mean()


class _Ranking(torch.autograd.Function):
    """rk(y) / n, with the gradient of Rolínek et al.'s interpolation in place of its own, which is 0."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, lambda_val: float) -> Tensor:
        ctx.save_for_backward(y)
        ctx.lambda_val = lambda_val
        return _rk(y) / len(y)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return -(_rk(y) - _rk(y + ctx.lambda_val * g)) / len(y) / ctx.lambda_val, None


def _rk(y: Tensor) -> Tensor:
    """1 + the number of higher scores."""
    return 1 + (y[None, :] > y[:, None]).sum(1).to(y.dtype)


def blackbox_ap(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    lambda_val: float = 4.0,
    margin: float = 0.02,
) -> Tensor:
    """Rolínek et al. 2020: AP = mean over positives of rk⁺ / rk, on scores shifted by the margin."""
    losses = []
    for s, y in _queries(embeddings, labels, ref_emb, ref_labels):
        shifted = s - margin * (y.to(s.dtype) - 0.5)
        rank = _Ranking.apply(shifted, lambda_val)[y]
        rank_pos = _rk(shifted[y].detach()) / len(s)
        losses.append(1 - (rank_pos / rank).mean())
    return torch.stack(losses).mean()
