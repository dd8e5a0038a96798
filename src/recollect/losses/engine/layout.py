"""Which items are positives of which queries: labels turned into the index tables of a tile.

Everything here depends only on labels and is computed on the CPU once per call. Queries with too few positives are left
out; the rest are ordered by the size of their class, so that a tile's queries have similar numbers of positives and little
padding. With SiMix, rows are those of the mixed batch: the originals, then the virtual examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.losses.engine.simix import Mixing


@dataclass(frozen=True)
class TileIndices:
    """The indices of T queries.

    Args:
        rows: rows of the query embeddings the tile needs: the T queries, or with SiMix their parents (U).
        mixing: with SiMix, U × T weights that turn columns of parents into columns of queries.
        positives: P × T rows of the (mixed) references; padding repeats a query's first positive.
        mask: P × T, False for padding.
        own: T rows of the references that are the queries themselves; None if these are ordinary references.
        count: T numbers of positives.
        queries: T rows of the (mixed) queries.
    """

    rows: Tensor
    mixing: Tensor | None
    positives: Tensor
    mask: Tensor
    own: Tensor | None
    count: Tensor
    queries: Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> TileIndices:
        """The same indices where they are needed, with weights and counts in the type of the computation."""
        return TileIndices(
            self.rows.to(device),
            None if self.mixing is None else self.mixing.to(device, dtype),
            self.positives.to(device),
            self.mask.to(device),
            None if self.own is None else self.own.to(device),
            self.count.to(device, dtype),
            self.queries.to(device),
        )


@dataclass(frozen=True)
class LabelLayout:
    """The index tables of a batch.

    Args:
        queries: rows of the (mixed) queries that take part, smallest classes first.
        start, size: for each of those, where its class begins in ``members`` and how many references it has.
        members: rows of the (mixed) references, class by class.
        own: for each of those queries, its own row among the references, which is not a positive; None if there is none.
        place: for each of those queries, the position of its own row in its class.
        mixing: SiMix of queries and references, or None.
    """

    queries: Tensor
    start: Tensor
    size: Tensor
    members: Tensor
    own: Tensor | None
    place: Tensor | None
    mixing: tuple[Mixing, Mixing] | None

    @classmethod
    def of(
        cls,
        labels: Tensor,
        ref_labels: Tensor,
        *,
        own: Tensor | None = None,
        least: int = 1,
        mixing: tuple[Mixing, Mixing] | None = None,
    ) -> LabelLayout:
        """Work out the tables.

        Args:
            labels: of the queries.
            ref_labels: of the references.
            own: for each query, the row of the references that is the query itself; with SiMix both are one set.
            least: how many references of its class a query needs to take part, including its own row.
            mixing: SiMix of queries and of references.
        """
        labels, others = labels.detach().cpu().long(), ref_labels.detach().cpu().long()
        if mixing is not None:
            labels, others = labels[mixing[0].first], others[mixing[1].first]
            own = None if own is None else torch.arange(len(labels))
        classes, others = torch.unique(others, return_inverse=True)
        members = torch.argsort(others, stable=True)
        sizes = torch.bincount(others, minlength=len(classes))
        starts = sizes.cumsum(0) - sizes
        group = torch.searchsorted(classes, labels).clamp_(max=len(classes) - 1)
        size = torch.where(classes[group] == labels, sizes[group], 0)
        queries = (size >= least).nonzero()[:, 0]
        queries = queries[torch.argsort(size[queries] * len(classes) + group[queries], stable=True)]
        start, place = starts[group[queries]], None
        if own is not None:
            own = own.cpu()[queries]
            place = torch.empty_like(members)
            place[members] = torch.arange(len(members))
            place = place[own] - start
        return cls(queries, start, size[queries], members, own, place, mixing)

    @property
    def num_queries(self) -> int:
        """How many queries take part; the loss is averaged over these."""
        return len(self.queries)

    @property
    def num_references(self) -> int:
        """How many (mixed) references there are."""
        return len(self.members)

    @property
    def num_pairs(self) -> tuple[int, int]:
        """How many positive and how many negative pairs of a query and a reference there are."""
        same_class = int(self.size.sum())
        positives = same_class - (0 if self.own is None else self.num_queries)
        return positives, self.num_queries * self.num_references - same_class

    def tiles(self, width: int, share: tuple[int, int]) -> Iterator[TileIndices]:
        """Tiles of at most ``width`` queries, on the CPU; share ``(r, W)`` takes every W-th, which spreads large classes."""
        rank, world = share
        width = max(1, min(width, -(-self.num_queries // world)))
        for begin in range(rank * width, self.num_queries, world * width):
            yield self._tile(slice(begin, begin + width))

    def _tile(self, part: slice) -> TileIndices:
        start, size, queries = self.start[part], self.size[part], self.queries[part]
        count = size if self.place is None else size - 1
        slot = torch.arange(int(count.max()))[:, None]
        mask = slot < count
        position = torch.where(mask, slot, 0)
        if self.place is not None:
            position = position + (position >= self.place[part])  # step over the query itself
        # The padding of a query without positives still needs a valid row.
        positives = self.members[(start + position).clamp_(max=len(self.members) - 1)]
        rows, mixing = queries, None
        if self.mixing is not None:
            rows, mixing = self.mixing[0].dense(queries)
        own = None if self.own is None else self.own[part]
        return TileIndices(rows, mixing, positives, mask, own, count, queries)


def count_matches(ids: Tensor, ref_ids: Tensor) -> Tensor:
    """For each id, how many of ``ref_ids`` equal it."""
    ordered = ref_ids.sort().values
    return torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)
