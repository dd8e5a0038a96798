"""Who is positive to whom: labels turned into the index tables a tile of queries needs.

Everything here depends on labels alone and is worked out on the CPU once a call. Queries without a positive are left out;
the rest are ordered by the size of their class, so that a tile's queries have about as many positives and padding is rare.
With SiMix, rows are those of the mixed batch: the originals, then the virtual examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.losses.simix import Mixing


@dataclass(frozen=True)
class Tile:
    """The indices of T queries.

    Args:
        rows: rows of the query embeddings the tile needs: the T queries, or with SiMix their parents (U).
        mixing: with SiMix, U × T weights that turn columns of parents into columns of queries.
        positives: P × T rows of the (mixed) references; padding repeats a query's first positive.
        mask: P × T, whether it is one.
        own: T rows of the references that are the queries themselves; None where the two sets differ.
        count: T numbers of positives.
    """

    rows: Tensor
    mixing: Tensor | None
    positives: Tensor
    mask: Tensor
    own: Tensor | None
    count: Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> Tile:
        """The same indices where they are needed, with weights and counts in the type of the computation."""
        return Tile(
            self.rows.to(device),
            None if self.mixing is None else self.mixing.to(device, dtype),
            self.positives.to(device),
            self.mask.to(device),
            None if self.own is None else self.own.to(device),
            self.count.to(device, dtype),
        )


@dataclass(frozen=True)
class Layout:
    """The index tables of a batch.

    Args:
        queries: rows of the (mixed) queries that have a positive, smallest classes first.
        start, size: for each of those, where its class begins in ``members`` and how many references it has.
        members: rows of the (mixed) references, class by class.
        place: for each of those queries, its own position in its class; None where the two sets differ.
        mixing: SiMix of queries and references, or None.
    """

    queries: Tensor
    start: Tensor
    size: Tensor
    members: Tensor
    place: Tensor | None
    mixing: tuple[Mixing, Mixing] | None

    @classmethod
    def of(cls, labels: Tensor, ref_labels: Tensor | None, mixing: tuple[Mixing, Mixing] | None) -> Layout:
        """Work out the tables; ``ref_labels`` is None where queries and references are one set."""
        same = ref_labels is None
        labels = labels.detach().cpu().long()
        others = labels if ref_labels is None else ref_labels.detach().cpu().long()
        if mixing is not None:
            labels, others = labels[mixing[0].first], others[mixing[1].first]
        classes, others = torch.unique(others, return_inverse=True)
        members = torch.argsort(others, stable=True)
        sizes = torch.bincount(others, minlength=len(classes))
        starts = sizes.cumsum(0) - sizes
        group = torch.searchsorted(classes, labels).clamp_(max=len(classes) - 1)
        size = torch.where(classes[group] == labels, sizes[group], 0)
        place = None
        if same:
            place = torch.empty_like(members)
            place[members] = torch.arange(len(members))
            place -= starts[group]
        queries = (size > (1 if same else 0)).nonzero()[:, 0]
        queries = queries[torch.argsort(size[queries] * len(classes) + group[queries], stable=True)]
        return cls(
            queries,
            starts[group[queries]],
            size[queries],
            members,
            None if place is None else place[queries],
            mixing,
        )

    @property
    def num_queries(self) -> int:
        """How many queries have a positive: what the loss is averaged over."""
        return len(self.queries)

    @property
    def num_references(self) -> int:
        """How many (mixed) references there are."""
        return len(self.members)

    def tiles(self, width: int, share: tuple[int, int] = (0, 1)) -> Iterator[Tile]:
        """Tiles of at most ``width`` queries, on the CPU; share ``(r, W)`` takes every W-th, which spreads large classes."""
        rank, world = share
        width = max(1, min(width, -(-self.num_queries // world)))
        for begin in range(rank * width, self.num_queries, world * width):
            yield self._tile(slice(begin, begin + width))

    def _tile(self, part: slice) -> Tile:
        start, size, queries = self.start[part], self.size[part], self.queries[part]
        count = size if self.place is None else size - 1
        slot = torch.arange(int(count.max()))[:, None]
        mask = slot < count
        position = torch.where(mask, slot, 0)
        own = None
        if self.place is not None:
            position = position + (position >= self.place[part])  # step over the query itself
            own = queries
        rows, mixing = queries, None
        if self.mixing is not None:
            rows, mixing = self.mixing[0].dense(queries)
        return Tile(rows, mixing, self.members[start + position], mask, own, count)
