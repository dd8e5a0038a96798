"""ROADMAP's calibration: two hinges on the similarities of pairs, so that scores of different queries can be compared."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.losses.engine.layout import TileIndices
from recollect.losses.engine.tile_loop import Term, TileFunction, TileRun


class Calibration(Term):
    """Mean over positive pairs of ``[margins[0] − s]₊`` plus mean over negative pairs of ``[s − margins[1]]₊``.

    Args:
        margins: a positive pair should be above the first, a negative pair below the second.
        violating: average over the pairs beyond their margin only, as ROADMAP's released code does, and not over all
            pairs. Their number is counted in a separate pass, by every process for all queries.
    """

    mixes, every_query = False, True

    def __init__(self, margins: tuple[float, float], violating: bool = False) -> None:
        self.margins, self.violating = margins, violating

    def width(self, run: TileRun) -> int:
        """Besides the similarities, a tile needs their excess and the gradient."""
        return max(1, min(512, run.memory // (4 * run.layout.num_references * run.item_bytes)))

    def start(self, run: TileRun) -> TileFunction:
        """Count the pairs first: the gradient of each mean depends on the number of pairs."""
        if self.violating:
            positives = negatives = 0
            for similarities, tile in run.tiles():
                short, excess, _ = self._hinges(similarities, tile)
                positives, negatives = positives + int((short > 0).sum()), negatives + int((excess > 0).sum())
        else:
            positives, negatives = run.layout.num_pairs
        positives, negatives = max(1, positives), max(1, negatives)

        def of_tile(similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor]:
            short, excess, positions = self._hinges(similarities, tile)
            value = short.sum(dtype=torch.float64) / positives + excess.sum(dtype=torch.float64) / negatives
            gradient = (excess > 0).to(excess.dtype).div_(negatives)
            return value, gradient.scatter_add_(0, positions, (short > 0).to(excess.dtype).div_(-positives))

        return of_tile

    def _hinges(self, similarities: Tensor, tile: TileIndices) -> tuple[Tensor, Tensor, Tensor]:
        """How far positives are below their margin (P × T), negatives above theirs (N × T), and the positives' rows."""
        short = (self.margins[0] - similarities.gather(0, tile.positives)).clamp_(min=0).mul_(tile.mask)
        # Padding repeats a query's first positive, or is on an arbitrary row for a query without positives: skip it.
        keep = torch.where(tile.mask, -torch.inf, similarities.gather(0, tile.positives))
        similarities.scatter_reduce_(0, tile.positives, keep, "amin")
        if tile.own is not None:
            similarities.scatter_(0, tile.own[None], -torch.inf)
        return short, similarities.sub_(self.margins[1]).clamp_(min=0), tile.positives
