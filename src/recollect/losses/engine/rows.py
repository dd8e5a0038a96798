"""Losses that need a query's whole list of similarities at once: Blackbox-AP sorts it, binned AP makes a histogram of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from recollect.losses.engine.layout import TileIndices
from recollect.losses.engine.tile_loop import Term, TileFunction, TileRun

# A larger tile falls out of the processor's caches and is never faster.
_TILE_BYTES = 32 * 2**20


class RowTile(NamedTuple):
    """Lists of similarities, one row per query; each query has at least one positive."""

    similarities: Tensor  # T × N, may be overwritten
    row: Tensor  # for each positive pair, its row
    column: Tensor  # and its column
    num_positives: Tensor  # T, in the similarities' type
    own: Tensor | None  # T: the column of the query itself; None with a separate reference set
    num_queries: int  # Q, over all tiles; the loss is averaged over these


RowLoss = Callable[[RowTile], tuple[Tensor, Tensor]]
"""A tile to the loss of each row, and ∂(Σ losses / Q)/∂similarities."""


class Rows(Term):
    """The mean of a loss over the lists of all queries.

    Args:
        row_loss: the loss of a tile's rows and its gradient.
        bytes_per_pair: memory that ``row_loss`` needs per similarity, in float32.
    """

    def __init__(self, row_loss: RowLoss, bytes_per_pair: int) -> None:
        self.row_loss, self.bytes_per_pair = row_loss, bytes_per_pair

    def width(self, run: TileRun) -> int:
        """As many as the memory and the caches allow."""
        pair = self.bytes_per_pair * run.item_bytes // 4
        return max(1, min(run.memory, _TILE_BYTES) // (run.layout.num_references * pair))

    def start(self, run: TileRun) -> TileFunction:
        """Turn a tile's columns into rows, and the gradient back."""
        queries = run.layout.num_queries

        def of_tile(similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor]:
            slot, row = tile.mask.nonzero(as_tuple=True)
            column = tile.positives[slot, row]
            rows = RowTile(similarities.T.contiguous(), row, column, tile.count, tile.own, queries)
            values, gradient = self.row_loss(rows)
            return values.sum(dtype=torch.float64) / queries, gradient.T

        return of_tile
