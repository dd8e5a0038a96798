"""Every rank loss as its equation: slow, plain, one query at a time.

Nothing here is tiled, pruned or fused. Tests compare the fast losses with these functions in float64, gradients included; read
them to learn what a loss computes. All take embeddings (M × d) and labels (M), optionally a separate reference set, and
return a differentiable scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from recollect.losses.engine.simix import Mixing

StepFunction = Callable[[Tensor], Tensor]


def sigmoid_step(tau: float) -> StepFunction:
    """``σ_τ(u) = 1 / (1 + exp(−u/τ))``."""
    return lambda u: torch.sigmoid(u / tau)


def asymmetric_step(
    tau: float = 0.01, rho: float = 100.0, delta: float = 0.05, start: float = 0.5, offset: float = 1.44
) -> StepFunction:
    """ROADMAP's step against a negative."""

    def step(u: Tensor) -> Tensor:
        near = torch.sigmoid(u / tau)
        return torch.where(u <= 0, near, torch.where(u <= delta, start + near, rho * (u - delta) + offset))

    return step


def heaviside_step(u: Tensor) -> Tensor:
    """The true step, without gradient."""
    return (u >= 0).to(u.dtype)


def mixed_batch(embeddings: Tensor, labels: Tensor, mixing: Mixing) -> tuple[Tensor, Tensor]:
    """SiMix with explicit embeddings: ``v = α x + (1 − α) z``."""
    alpha = mixing.alpha.to(embeddings.dtype)[:, None]
    mixed = alpha * embeddings[mixing.first] + (1 - alpha) * embeddings[mixing.second]
    return mixed, labels[mixing.first]


def queries(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    own_positive: bool = False,
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """For each query with a positive: similarities to positives, to negatives, and to itself (None for two sets).

    With ``own_positive`` a query that has a positive is a positive of itself.
    """
    same = ref_emb is None or ref_labels is None
    references = embeddings if ref_emb is None else ref_emb
    others = labels if ref_labels is None else ref_labels
    for q in range(len(embeddings)):
        s = references @ embeddings[q]
        positive = others == labels[q]
        if same:
            positive[q] = own_positive and bool(positive.sum() > 1)
        if positive.any():
            yield s[positive], s[others != labels[q]], s[q] if same else None


def ranks(
    positives: Tensor, negatives: Tensor, step: StepFunction, step_positives: StepFunction | None = None
) -> tuple[Tensor, Tensor]:
    """``rank(q, x)`` among all and ``rank⁺(q, x)`` among the positives, for every positive x."""
    x = positives[:, None]
    among = (step_positives or step)(positives - x)
    among = among.masked_fill(torch.eye(len(positives), dtype=torch.bool), 0)
    rank_positives = 1 + among.sum(1)
    return rank_positives + step(negatives - x).sum(1), rank_positives


def recall_at_k(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    k: tuple[int, ...] = (1, 2, 4, 8, 16),
    tau1: float | tuple[float, ...] = 1.0,
    tau2: float = 0.01,
    count_query: bool | str = False,
    step: StepFunction | None = None,
    step_positives: StepFunction | None = None,
) -> Tensor:
    """RS@k: ``mean_q mean_k 1 − min(Σ_x σ_τ1(k − rank(q, x)), k) / min(k, |P_q|)``; τ1 may differ for each k."""
    temperatures = tau1 if isinstance(tau1, tuple) else (tau1,) * len(k)
    step = step or sigmoid_step(tau2)
    losses = []
    own = count_query == "positive"
    for positives, negatives, itself in queries(embeddings, labels, ref_emb, ref_labels, own_positive=own):
        rank, _ = ranks(positives, negatives, step, step_positives)
        if count_query and not own and itself is not None:
            rank = rank + (step_positives or step)(itself - positives)
        for cut, tau in zip(k, temperatures, strict=True):
            hits = torch.sigmoid((cut - rank) / tau).sum()
            losses.append(1 - hits.clamp(max=cut) / min(cut, len(positives)))
    return torch.stack(losses).mean() if losses else embeddings.sum() * 0


def smooth_ap(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    tau: float = 0.01,
    count_query: bool = False,
    step: StepFunction | None = None,
    step_positives: StepFunction | None = None,
) -> Tensor:
    """Smooth-AP: ``1 − mean_q mean_x rank⁺(q, x) / rank(q, x)``; with ROADMAP's two steps, SupAP."""
    losses = []
    for positives, negatives, _ in queries(embeddings, labels, ref_emb, ref_labels, own_positive=count_query):
        rank, rank_positives = ranks(positives, negatives, step or sigmoid_step(tau), step_positives)
        losses.append(1 - (rank_positives / rank).mean())
    return torch.stack(losses).mean() if losses else embeddings.sum() * 0


def hierarchical_ap(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    coarse: Tensor,
    alpha: float = 1.0,
    step: StepFunction | None = None,
    step_positives: StepFunction | None = None,
) -> Tensor:
    """``1 − mean_q Σ_x Hrank(q, x) / rank(q, x) / Σ_x rel(x)``, graded relevance; ``coarse`` holds each label's coarser one."""
    step = step or sigmoid_step(0.01)
    references, others = (embeddings, labels) if ref_emb is None or ref_labels is None else (ref_emb, ref_labels)
    losses = []
    for q in range(len(embeddings)):
        s = references @ embeddings[q]
        level = (coarse[others] == coarse[labels[q]]).long() + (others == labels[q]).long()
        is_other = torch.ones(len(s), dtype=torch.bool)
        is_other[q] = ref_emb is not None
        s, level = s[is_other], level[is_other]
        if not (level > 0).any():
            continue
        number = torch.stack([(level == n).sum() for n in range(3)])
        relevance = torch.where(level > 0, (level.to(s.dtype) / 2) ** alpha / number[level], 0.0)
        ap = s.new_zeros(())
        for x in (level > 0).nonzero()[:, 0]:
            ahead = torch.where(level >= level[x], (step_positives or step)(s - s[x]), step(s - s[x]))
            ahead = ahead.masked_fill(torch.arange(len(s)) == x, 0)
            h_rank = relevance[x] + (torch.minimum(relevance, relevance[x]) * ahead).sum()
            ap = ap + h_rank / (1 + ahead.sum())
        losses.append(1 - ap / relevance.sum())
    return torch.stack(losses).mean() if losses else embeddings.sum() * 0


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
    centres = high - width * torch.arange(bins, dtype=embeddings.dtype)
    for positives, negatives, _ in queries(embeddings, labels, ref_emb, ref_labels):
        h_pos, h_neg = (
            (1 - (s.clamp(low, high)[:, None] - centres).abs() / width).clamp(min=0).sum(0)
            for s in (positives, negatives)
        )
        H = (h_pos + h_neg).cumsum(0)
        precision = h_pos.cumsum(0) / torch.where(H > 0, H, 1)  # 0 where there is no similarity so far
        losses.append(1 - (precision * h_pos / len(positives)).sum())
    return torch.stack(losses).mean() if losses else embeddings.sum() * 0


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
    for positives, negatives, _ in queries(embeddings, labels, ref_emb, ref_labels):
        shifted = torch.cat([positives - margin / 2, negatives + margin / 2])
        rank = _Ranking.apply(shifted, lambda_val)[: len(positives)]
        rank_pos = _rk(shifted[: len(positives)].detach()) / len(shifted)
        losses.append(1 - (rank_pos / rank).mean())
    return torch.stack(losses).mean() if losses else embeddings.sum() * 0


def calibration(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    positive_margin: float = 0.9,
    negative_margin: float = 0.6,
    violating: bool = False,
) -> Tensor:
    """ROADMAP's calibration: mean over positive pairs of ``[0.9 − s]₊`` plus mean over negative pairs of ``[s − 0.6]₊``.

    With ``violating`` the means are over the pairs where the hinge is not 0.
    """
    similarities = embeddings @ (embeddings if ref_emb is None else ref_emb).T
    positive = labels[:, None] == (labels if ref_labels is None else ref_labels)
    negative = ~positive
    if ref_emb is None:
        positive = positive & ~torch.eye(len(labels), dtype=torch.bool)
    pull = (positive_margin - similarities[positive]).clamp(min=0)
    push = (similarities[negative] - negative_margin).clamp(min=0)
    if violating:
        pull, push = pull[pull > 0], push[push > 0]
    zero = embeddings.sum() * 0
    return (pull.mean() if len(pull) else zero) + (push.mean() if len(push) else zero)


def matryoshka(
    loss: Callable[..., Tensor],
    embeddings: Tensor,
    labels: Tensor,
    dims: Iterable[int],
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
) -> Tensor:
    """Mean over prefixes of ``loss`` on ``e[:d] / ‖e[:d]‖``; the whole vectors, not normalized again, come last."""
    whole = embeddings.shape[1]
    losses = [loss(embeddings, labels, ref_emb, ref_labels)]
    for d in {*dims} - {whole}:
        short, ref_short = (
            None if full is None else torch.stack([row[:d] / row[:d].pow(2).sum().sqrt() for row in full])
            for full in (embeddings, ref_emb)
        )
        losses.append(loss(short, labels, ref_short, ref_labels))
    return torch.stack(losses).mean()
