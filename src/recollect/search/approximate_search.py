"""Approximate search, on request: build the store's index, then widen its search until it finds enough of the exact results.

The recall is stored with the index and shown wherever the index is used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.search.graph import DEFAULTS
from recollect.search.settings import Generation
from recollect.search.store_protocol import Store

logger = logging.getLogger(__name__)

QUERIES = 200
"""Number of items used as queries to measure the recall."""
K = 10
RECALL = 0.95
"""The recall that a search is widened for, unless another one is given."""
WIDEST = 1000
"""The largest ``ef_search`` that is tried; pgvector takes no larger one."""


def build(store: Store, generation: Generation, settings: Mapping[str, int], recall: float | None = None) -> Generation:
    """The generation with an approximate index and its measured recall.

    Without ``ef_search`` among the settings it starts with the default and is doubled until the recall is reached.

    Args:
        store, generation: where.
        settings: some of ``DEFAULTS``; others keep their defaults.
        recall: the share of the exact first 10 that should be found; ``RECALL`` by default.

    Raises:
        InputError: an unknown setting, an invalid value, or an empty index.
    """
    if unknown := sorted(set(settings) - set(DEFAULTS)):
        raise InputError(
            f"{', '.join(unknown)}: unknown; the settings of approximate search are {', '.join(DEFAULTS)}."
        )
    chosen = {**DEFAULTS, **settings}
    for name, value in chosen.items():
        if not isinstance(value, int) or not 2 <= value <= 10_000:
            raise InputError(f"{name} is {value!r}: it must be a whole number from 2 to 10,000.")
    wanted = RECALL if recall is None else recall
    if not 0 < wanted <= 1:
        raise InputError(f"recall is {wanted!r}: it must be above 0 and at most 1.")
    if "ef_search" in settings and recall is not None:
        raise InputError("ef_search and recall exclude each other: ef_search is what recall chooses. Give one of them.")
    items = store.count(generation.number)
    if not items:
        raise InputError(f"{store.address}: the index is empty; fill it before building approximate search.")
    questions = Questions.of(store, generation)  # before building: beside HNSW, Milvus cannot search exactly
    store.build_approximate(generation.number, chosen)
    found = questions.recall(store)
    while "ef_search" not in settings and found < wanted and chosen["ef_search"] < WIDEST:
        chosen["ef_search"] = min(2 * chosen["ef_search"], WIDEST)
        store.widen_approximate(generation.number, chosen["ef_search"])
        found = questions.recall(store)
    if "ef_search" not in settings and found < wanted:
        logger.warning(
            f"{store.address}: approximate search finds {found:.1%} of the exact results, less than the {wanted:.1%} asked "
            f"for, with the widest search (ef_search {WIDEST}). --exact returns to exact search; a graph with more links "
            f'finds more: Index.approximate({{"m": {2 * chosen["m"]}}}).'
        )
    facts = {**chosen, "recall": round(found, 4), "queries": len(questions.names), "k": K, "items": items}
    return replace(generation, approximate={**facts, "wanted": None if "ef_search" in settings else wanted})


def build_again(store: Store, generation: Generation, facts: Mapping[str, Any]) -> Generation:
    """As ``build``, for what was asked of an earlier approximate index with these ``facts``."""
    fixed = facts.get("wanted", RECALL) is None
    asked = ("m", "ef_construction", "ef_search") if fixed else ("m", "ef_construction")
    settings = {name: int(facts[name]) for name in asked if name in facts}
    return build(store, generation, settings, None if fixed else float(facts.get("wanted", RECALL)))


@dataclass(frozen=True)
class Questions:
    """Items of a generation used as queries, each with its exact first neighbours, itself left out."""

    generation: int
    names: list[str]
    rows: NDArray[np.float32]
    neighbours: list[list[str]]

    @classmethod
    def of(cls, store: Store, generation: Generation, count: int = QUERIES) -> Questions:
        """Items spread evenly over the order in which the store gives them."""
        number = generation.number
        step = max(1, store.count(number) // count)
        asked = [item.id for place, item in enumerate(store.iterate(number)) if place % step == 0][:count]
        items = store.get(number, asked, vectors=True)
        vectors = {name: row for name in asked if name in items and (row := items[name].vector) is not None}
        rows = np.stack(list(vectors.values()))
        exact = store.search(number, rows, K + 1)
        neighbours = [[hit.id for hit in hits if hit.id != name][:K] for name, hits in zip(vectors, exact, strict=True)]
        return cls(number, list(vectors), rows, neighbours)

    def recall(self, store: Store) -> float:
        """Mean share of the exact first neighbours that approximate search finds."""
        found = store.search(self.generation, self.rows, K + 1, approximate=True)
        shares = [
            len({hit.id for hit in hits}.intersection(right)) / len(right)
            for hits, right in zip(found, self.neighbours, strict=True)
            if right
        ]
        return float(np.mean(shares)) if shares else 1.0
