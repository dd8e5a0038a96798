"""The one tile loop: similarities, a term of the loss on them, and the gradient of the embeddings, in a single pass.

For one tile of queries the loop multiplies (all references × the tile's queries, mixed if SiMix is on), gets the value and
``G = ∂loss/∂similarities`` from a term, and multiplies back: ``∂loss/∂E = (G + Gᵀ) E``. Nothing of size M × M is ever
stored: a tile needs only its own columns of S and G. ``backward`` only scales the gradient found by ``forward``.

``LabelLayout`` says which items are positives of which queries, from labels alone, on the CPU, once per call. Queries with
too few positives are left out; the rest are ordered by the size of their class, so that a tile's queries have similar
numbers of positives and little padding. With SiMix, rows are those of the mixed batch: the originals, then the virtual ones.

To add a kind of loss, subclass ``Term``. Add its equation to ``tests/oracles`` and a test that compares the two.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from recollect.common.machine import full_precision
from recollect.losses.checks import check_scale
from recollect.losses.engine.simix import Mixing, move


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
        labels, others = labels.cpu().long(), ref_labels.cpu().long()
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

    def tiles(
        self, width: int, share: tuple[int, int], device: torch.device, dtype: torch.dtype
    ) -> Iterator[TileIndices]:
        """Tiles of at most ``width`` queries, on the device; share ``(r, W)`` takes every W-th, which spreads large classes.

        Counts and weights are of type ``dtype``. Sizes come from the tables on the CPU, so no tile waits for the device.
        """
        rank, world = share
        width = max(1, min(width, -(-self.num_queries // world)))
        parts = [slice(begin, begin + width) for begin in range(rank * width, self.num_queries, world * width)]
        tables = [self.queries, self.start, self.size, self.members]
        if self.own is not None and self.place is not None:
            tables += [self.own, self.place]
        if self.mixing is not None:
            tables += [table for part in parts for table in self.mixing[0].columns(self.queries[part])]
        queries, start, size, members, *others = move(tables, device)
        own, place = (others.pop(0), others.pop(0)) if self.own is not None else (None, None)
        for part in parts:
            count = size[part] if place is None else size[part] - 1
            most = int(self.size[part].max()) - (place is not None)
            slot = torch.arange(most, device=device)[:, None]
            mask = slot < count
            position = torch.where(mask, slot, 0)
            if place is not None:
                position = position + (position >= place[part])  # step over the query itself
            # The padding of a query without positives still needs a valid row.
            positives = members[(start[part] + position).clamp_(max=len(members) - 1)]
            rows, mixing = queries[part], None
            if self.mixing is not None:
                rows, parent, weight = others.pop(0), others.pop(0), others.pop(0).to(dtype)
                mixing = weight.new_zeros(len(rows), weight.shape[1]).scatter_add_(0, parent, weight)
            yield TileIndices(
                rows, mixing, positives, mask, None if own is None else own[part], count.to(dtype), queries[part]
            )


def count_matches(ids: Tensor, ref_ids: Tensor) -> Tensor:
    """For each id, how many of ``ref_ids`` equal it."""
    ordered = ref_ids.sort().values
    return torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)


MEMORY = 512 * 2**20
"""Default memory budget of a loss in bytes, without the embeddings and their gradient."""

TileFunction = Callable[[Tensor, TileIndices], tuple[Tensor, Tensor]]
"""Similarities (references × queries; may be overwritten) and indices of a tile to its part of the loss, and G."""

Gradients = tuple[Tensor, Tensor]


class Term:
    """A part of a loss that is a sum over queries. The defaults are those of a loss on plain similarities."""

    tau: float = 1.0
    """Similarities are divided by this before they are passed on."""
    mixes: bool = True
    """Whether SiMix's virtual examples take part."""
    query: Literal["excluded", "ranked", "positive"] = "excluded"
    """What a query is in its own list: left out, known as ``TileIndices.own``, or a positive like any other."""
    every_query: bool = False
    """Whether queries without a positive take part."""

    def scale(self, dtype: torch.dtype) -> float:
        """The factor by which G is scaled inside the loop."""
        return 1.0

    def width(self, run: TileRun) -> int:
        """Maximum number of queries per tile."""
        raise TypeError(f"{type(self).__name__} must define width(run).")

    def start(self, run: TileRun) -> TileFunction:
        """Make the function that computes each tile; buffers and counts for the whole run are created here."""
        raise TypeError(f"{type(self).__name__} must define start(run).")


@dataclass(frozen=True)
class Pairing:
    """The queries and references to compare.

    Args:
        embeddings: queries, M × d.
        labels: M integers.
        references: N × d; ``embeddings`` itself where the batch is its own reference set.
        ref_labels: N integers.
        own: for each query, the row of the references that is the query itself; None if there is none.
        greatest: the greatest similarity that the lengths of the vectors allow.
    """

    embeddings: Tensor
    labels: Tensor
    references: Tensor
    ref_labels: Tensor
    own: Tensor | None
    greatest: float

    @classmethod
    def of(
        cls, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None, ref_labels: Tensor | None, greatest: float
    ) -> Pairing:
        """The batch with a reference set, or with itself; labels are read on the CPU."""
        if ref_emb is None or ref_labels is None or same_set(embeddings, labels, ref_emb, ref_labels):
            labels = labels.detach().cpu()
            return cls(embeddings, labels, embeddings, labels, torch.arange(len(labels)), greatest)
        return cls(embeddings, labels.detach().cpu(), ref_emb, ref_labels.detach().cpu(), None, greatest)

    @property
    def same(self) -> bool:
        """Whether the batch is its own reference set."""
        return self.references is self.embeddings


def tiled_loss(
    term: Term,
    pairing: Pairing,
    mixing: tuple[Mixing, Mixing] | None = None,
    memory: int = MEMORY,
    share: tuple[int, int] = (0, 1),
) -> Tensor:
    """The term of a batch, differentiable in embeddings and references.

    Args:
        term: what is computed for each tile.
        pairing: queries and references.
        mixing: SiMix of queries and of references; the same object twice when both are one set.
        memory: bytes the computation may use in addition to embeddings and gradient.
        share: ``(r, W)``: only the r-th of W shares of the queries; the W results add up to the whole.

    Returns:
        A scalar in float32, or float64 if the embeddings are.
    """
    layout = LabelLayout.of(
        pairing.labels,
        pairing.ref_labels,
        own=None if term.query == "positive" else pairing.own,
        least=0 if term.every_query else 1 if pairing.own is None else 2,
        mixing=mixing if term.mixes else None,
    )
    embeddings, references = pairing.embeddings, pairing.references
    if not layout.num_queries:
        return zero_loss(embeddings, None if pairing.same else references)
    check_scale(pairing.greatest, term.tau, compute_dtype(embeddings, references))
    wanted = torch.is_grad_enabled() and (embeddings.requires_grad or references.requires_grad)
    value: Tensor = _TiledLoss.apply(embeddings, references, term, layout, memory, share, wanted)
    return value


class _TiledLoss(torch.autograd.Function):
    """Value and gradient in one pass; backward only scales what forward has found."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        embeddings: Tensor,
        references: Tensor,
        term: Term,
        layout: LabelLayout,
        memory: int,
        share: tuple[int, int],
        wanted: bool,
    ) -> Tensor:
        dtype, same = compute_dtype(embeddings, references), references is embeddings
        # Autocast would compute the products in half precision, where a step of tau = 0.01 is lost in rounding.
        with torch.autocast(embeddings.device.type, enabled=False), full_precision():
            queries = embeddings.detach().to(dtype)
            run = TileRun(queries, queries if same else references.detach().to(dtype), term, layout, memory, wanted)
            value, grads = run.total(share)
        if grads is not None:
            # In the type they were computed in: a loss scale must reach them before they are rounded to float16.
            ctx.save_for_backward(embeddings, references, grads[0], None if same else grads[1])  # type: ignore[arg-type]
        return value

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        queries, references, *grads = ctx.saved_tensors  # type: ignore[attr-defined]
        scaled = [
            None if grad is None else _FirstOrderOnly.apply(grad, grad_outputs[0], queries, references).to(side.dtype)
            for grad, side in zip(grads, (queries, references), strict=True)
        ]
        return (*scaled, None, None, None, None, None)


class _FirstOrderOnly(torch.autograd.Function):
    """``gradient · factor``; it keeps its inputs, so that a second derivative raises a clear error."""

    @staticmethod
    def forward(ctx: FunctionCtx, gradient: Tensor, factor: Tensor, queries: Tensor, references: Tensor) -> Tensor:
        return gradient * factor.to(gradient.dtype)

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Tensor) -> Tensor:
        raise RuntimeError(
            "recollect's losses have first derivatives only: a second backward pass through a loss is not supported."
        )


class TileRun:
    """One evaluation of a term: the two sides and the tiles."""

    def __init__(
        self, queries: Tensor, references: Tensor, term: Term, layout: LabelLayout, memory: int, wanted: bool
    ) -> None:
        self.queries, self.references, self.term, self.layout = queries, references, term, layout
        self.memory, self.wanted = memory, wanted
        self.on_cpu, self.item_bytes = queries.device.type == "cpu", queries.element_size()
        self.mixing = None if layout.mixing is None else layout.mixing[1].to(queries.device, queries.dtype)

    def tiles(self, share: tuple[int, int] = (0, 1)) -> Iterator[tuple[Tensor, TileIndices]]:
        """Similarities / tau of (mixed) references to a tile's queries, and the tile's indices."""
        for tile in self.layout.tiles(self.term.width(self), share, self.queries.device, self.queries.dtype):
            queries = self.queries.index_select(0, tile.rows)
            similarities = torch.mm(self.references, queries.T / self.term.tau)
            if tile.mixing is not None and self.mixing is not None:
                similarities = self.mixing.mix_rows(torch.mm(similarities, tile.mixing))
            yield similarities, tile

    def total(self, share: tuple[int, int]) -> tuple[Tensor, Gradients | None]:
        """The share's part of the loss and, if wanted, of the gradient of queries and references."""
        value = self.queries.new_zeros((), dtype=torch.float64)
        of_queries = torch.zeros_like(self.queries) if self.wanted else None
        same = self.references is self.queries
        of_references = of_queries if same or of_queries is None else torch.zeros_like(self.references)
        of_tile = self.term.start(self)
        for similarities, tile in self.tiles(share):
            part, gradient = of_tile(similarities, tile)
            value += part
            if of_queries is not None and of_references is not None:
                self._back(tile, gradient, of_queries, of_references)
        if of_queries is None or of_references is None:
            return value.to(self.queries.dtype), None
        # Once for all tiles; values that would be subnormal become 0.
        unit = 1 / (self.term.tau * self.term.scale(self.queries.dtype))
        for grad in (of_queries,) if same else (of_queries, of_references):
            torch.hardshrink(grad, 2 * torch.finfo(grad.dtype).tiny / unit, out=grad).mul_(unit)
        return value.to(self.queries.dtype), (of_queries, of_references)

    def _back(self, tile: TileIndices, gradient: Tensor, of_queries: Tensor, of_references: Tensor) -> None:
        """Add ``G Q`` to the references' gradient and ``Gᵀ R`` to the queries'."""
        if tile.mixing is not None and self.mixing is not None:
            gradient = self.mixing.unmix_rows(gradient, len(self.references))
            gradient = torch.mm(gradient, tile.mixing.T)
        of_references.addmm_(gradient, self.queries.index_select(0, tile.rows))
        of_queries.index_add_(0, tile.rows, torch.mm(gradient.T, self.references))


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
    """0 with a zero gradient, for a batch without any positive; warns, because such a batch trains nothing."""
    warnings.warn(
        "No image of this batch has a positive, so the loss is 0: sample at least 2 images per class.", stacklevel=3
    )
    zero = (embeddings * 0).sum(dtype=compute_dtype(embeddings))
    return zero if ref_emb is None else zero + (ref_emb * 0).sum(dtype=compute_dtype(ref_emb))
