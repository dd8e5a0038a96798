"""A loss over the similarities of each query, computed tile by tile with its gradient, so that memory stays bounded.

For losses that read one query's whole row of similarities at once (Blackbox-AP sorts it, binned AP makes a histogram of
it). Such a loss is a function of one tile of rows; ``tiled_loss`` makes the tiles, leaves out queries without a
positive, and accumulates ``∂loss/∂embeddings`` in the same pass: no matrix of similarities outlives its tile.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recollect.common.errors import ConfigError
from recollect.losses.checks import check_inputs

MEMORY = 512 * 2**20
"""Default memory budget of a tile in bytes."""

# Beyond this a tile only falls out of the processor's caches; it never gets faster.
_TILE_BYTES = 32 * 2**20


class Tile(NamedTuple):
    """Rows of similarities; each has at least one positive."""

    similarities: Tensor  # rows × N, may be overwritten
    positives: Tensor  # rows × N, bool; the query itself is not among them
    num_positives: Tensor  # rows, in the similarities' type
    own: Tensor | None  # rows: the column of the query itself; None with a separate reference set
    num_queries: int  # Q, over all tiles: what the loss is averaged over


# A tile to the loss of each row, and ∂(Σ losses / Q)/∂similarities.
RowLoss = Callable[[Tile], tuple[Tensor, Tensor]]


def tiled_loss(
    row_loss: RowLoss,
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    *,
    bytes_per_pair: int,
    memory: int,
) -> Tensor:
    """The mean of ``row_loss`` over all queries that have a positive.

    Args:
        row_loss: the loss of a tile and its gradient.
        embeddings: M × d queries.
        labels: M integers.
        ref_emb: N × d references; None (or ``embeddings`` itself) ranks the batch against itself without the query.
        ref_labels: N integers.
        bytes_per_pair: what ``row_loss`` holds for one similarity, in float32.
        memory: the most that a tile may take, in bytes.
    """
    check_inputs(embeddings, labels, ref_emb, ref_labels)
    if memory <= 0:
        raise ConfigError(f"memory is {memory}: give the number of bytes a tile may take, e.g. 512 * 2**20.")
    if same_set(embeddings, labels, ref_emb, ref_labels):
        ref_emb = ref_labels = None
    dtype = compute_dtype(embeddings, ref_emb)
    device = embeddings.device
    ids = labels.to(device, torch.int64)
    ref_ids = ids if ref_labels is None else ref_labels.to(device, torch.int64)
    num_positives = count_matches(ids, ref_ids) - (1 if ref_emb is None else 0)
    if not bool((num_positives > 0).any()):
        return zero_loss(embeddings, ref_emb)
    tile_bytes = min(memory, _TILE_BYTES)
    rows = max(1, int(tile_bytes / (len(ref_ids) * bytes_per_pair * (dtype.itemsize / 4))))
    references = None if ref_emb is None else ref_emb.to(dtype)
    loss: Tensor = _Tiled.apply(embeddings.to(dtype), references, ids, ref_ids, num_positives, row_loss, rows)
    return loss


def same_set(embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None) -> bool:
    """Whether the batch is its own reference set, so that a query is not to be compared with itself."""
    if ref_emb is None or ref_labels is None:
        return True
    return ref_emb is embeddings and (ref_labels is labels or torch.equal(ref_labels, labels))


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The widest floating type among the tensors, float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def count_matches(ids: Tensor, ref_ids: Tensor) -> Tensor:
    """For each id, how many of ``ref_ids`` equal it."""
    ordered = ref_ids.sort().values
    return torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)


def zero_loss(embeddings: Tensor, ref_emb: Tensor | None = None) -> Tensor:
    """0 with a zero gradient, for a batch in which nothing has a positive; warns, since it trains nothing."""
    warnings.warn(
        "No image of this batch has a positive, so the loss is 0: sample at least 2 images a class.", stacklevel=3
    )
    zero = (embeddings * 0).sum(dtype=compute_dtype(embeddings))
    return zero if ref_emb is None else zero + (ref_emb * 0).sum()


class _Tiled(torch.autograd.Function):
    """Value and gradient in one pass; ``backward`` only scales what ``forward`` has found."""

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        references: Tensor | None,
        ids: Tensor,
        ref_ids: Tensor,
        num_positives: Tensor,
        row_loss: RowLoss,
        rows: int,
    ) -> Tensor:
        same = references is None
        R = embeddings if references is None else references
        wanted = any(ctx.needs_input_grad[:2])
        grad = torch.zeros_like(embeddings) if wanted else None
        ref_grad = torch.zeros_like(R) if wanted and not same else grad
        queries = (num_positives > 0).nonzero().flatten()
        total = torch.zeros((), dtype=torch.float64, device=embeddings.device)
        # Autocast would compute the similarities in half precision.
        with torch.autocast(embeddings.device.type, enabled=False):
            for index in queries.split(rows):
                E = embeddings[index]
                positives = ids[index, None] == ref_ids[None, :]
                if same:
                    positives[torch.arange(len(index), device=index.device), index] = False
                own = index if same else None
                counts = num_positives[index].to(R.dtype)
                values, G = row_loss(Tile(E @ R.T, positives, counts, own, len(queries)))
                total += values.sum(dtype=torch.float64)
                if grad is not None and ref_grad is not None:
                    grad.index_add_(0, index, G @ R)
                    ref_grad.addmm_(G.T, E)
        ctx.save_for_backward(grad, None if same else ref_grad)
        return (total / len(queries)).to(embeddings.dtype)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only with create_graph=True; the graph made would silently miss this loss
            raise RuntimeError("this loss cannot be differentiated twice: leave out create_graph=True.")
        grad, ref_grad = ctx.saved_tensors
        return (
            None if grad is None else grad * scale,
            None if ref_grad is None else ref_grad * scale,
            *(None,) * 5,
        )
