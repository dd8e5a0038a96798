"""A loss over the similarities of each query, computed tile by tile with its gradient, so that memory stays bounded.

For losses that read one query's whole row of similarities at once (Blackbox-AP sorts it, binned AP makes a histogram of
it). Such a loss is a function of one tile of rows; ``tiled_loss`` makes the tiles, leaves out queries without a
positive, and accumulates ``∂loss/∂embeddings`` in the same pass: no matrix of similarities outlives its tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from recollect.losses.checks import check_inputs, check_memory
from recollect.losses.one_pass import (
    MEMORY,
    compute_dtype,
    gradient_wanted,
    same_set,
    save_gradients,
    scaled_gradients,
    zero_loss,
)

# Beyond this a tile only falls out of the processor's caches; it never gets faster.
_TILE_BYTES = 32 * 2**20


class Tile(NamedTuple):
    """Rows of similarities; each has at least one positive."""

    similarities: Tensor  # rows × N, may be overwritten
    positives: Tensor  # rows × N, bool; the query itself is not among them
    num_positives: Tensor  # rows, in the similarities' type
    own: Tensor | None  # rows: the column of the query itself; None with a separate reference set
    num_queries: int  # Q, over all tiles: what the loss is averaged over


class TiledLoss(nn.Module):
    """A loss that is the mean of its queries' losses, computed tile by tile. A subclass says what a tile's rows lose.

    Args:
        memory: the most that a tile may take, in bytes.
    """

    bytes_per_pair: int
    """What ``rows`` holds for one similarity, in float32."""

    def __init__(self, memory: int = MEMORY) -> None:
        super().__init__()
        self.memory = check_memory(memory)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        """The loss of M × d embeddings, ranked against themselves or against N × d references."""
        return tiled_loss(
            self.rows,
            embeddings,
            labels,
            ref_emb,
            ref_labels,
            bytes_per_pair=self.bytes_per_pair,
            memory=self.memory,
        )

    def rows(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """The loss of each row of a tile, and its gradient as ``RowLoss`` says."""
        raise NotImplementedError


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
    references = embeddings if ref_emb is None else ref_emb
    wanted = gradient_wanted(embeddings, references)
    loss: Tensor = _Tiled.apply(embeddings, references, ids, ref_ids, num_positives, row_loss, rows, wanted)
    return loss


def count_matches(ids: Tensor, ref_ids: Tensor) -> Tensor:
    """For each id, how many of ``ref_ids`` equal it."""
    ordered = ref_ids.sort().values
    return torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)


class _Tiled(torch.autograd.Function):
    """Value and gradient in one pass; ``backward`` only scales what ``forward`` has found."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        embeddings: Tensor,
        references: Tensor,
        ids: Tensor,
        ref_ids: Tensor,
        num_positives: Tensor,
        row_loss: RowLoss,
        rows: int,
        wanted: bool,
    ) -> Tensor:
        same, dtype = references is embeddings, compute_dtype(embeddings, references)
        Q = embeddings.detach().to(dtype)
        R = Q if same else references.detach().to(dtype)
        grad = torch.zeros_like(Q) if wanted else None
        ref_grad = torch.zeros_like(R) if wanted and not same else grad
        queries = (num_positives > 0).nonzero().flatten()
        total = torch.zeros((), dtype=torch.float64, device=embeddings.device)
        # Autocast would compute the similarities in half precision.
        with torch.autocast(embeddings.device.type, enabled=False):
            for index in queries.split(rows):
                E = Q[index]
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
        if grad is not None:
            save_gradients(ctx, (embeddings, references), (grad, None if same else ref_grad))
        return (total / len(queries)).to(dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return (*scaled_gradients(ctx, grad_outputs[0]), *(None,) * 6)
