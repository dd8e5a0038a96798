"""Approximate search, on request: build the store's index, then measure how much of the exact results it finds.

The recall is stored with the index and shown wherever the index is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.search.graph import DEFAULTS
from recollect.search.settings import Generation
from recollect.search.store_protocol import Store

QUERIES = 200
"""Number of items used as queries to measure the recall."""
K = 10


def build(store: Store, generation: Generation, settings: Mapping[str, int]) -> Generation:
    """The generation with an approximate index and its measured recall.

    Args:
        store, generation: where.
        settings: some of ``DEFAULTS``; others keep their defaults.

    Raises:
        InputError: an unknown setting, an invalid value, or an empty index.
    """
    known = {name: settings[name] for name in settings if name in DEFAULTS}
    unknown = sorted(set(settings) - set(DEFAULTS) - {"recall", "queries", "k", "items"})
    if unknown:
        raise InputError(
            f"{', '.join(unknown)}: unknown; the settings of approximate search are {', '.join(DEFAULTS)}."
        )
    chosen = {**DEFAULTS, **known}
    for name, value in chosen.items():
        if not isinstance(value, int) or not 2 <= value <= 10_000:
            raise InputError(f"{name} is {value!r}: it must be a whole number from 2 to 10,000.")
    items = store.count(generation.number)
    if not items:
        raise InputError(f"{store.address}: the index is empty; fill it before building approximate search.")
    store.build_approximate(generation.number, chosen)
    recall, queries = measure(store, generation)
    facts = {**chosen, "recall": round(recall, 4), "queries": queries, "k": K, "items": items}
    return replace(generation, approximate=facts)


def measure(store: Store, generation: Generation, queries: int = QUERIES, k: int = K) -> tuple[float, int]:
    """Mean share of the exact first ``k`` neighbours that approximate search finds, and the number of queries.

    Queries are items of the index, each without itself, spread evenly over the order in which the store gives them.
    """
    names, rows = _sample(store, generation, queries)
    exact = store.search(generation.number, rows, k + 1)
    found = store.search(generation.number, rows, k + 1, approximate=True)
    shares = []
    for name, right, near in zip(names, exact, found, strict=True):
        wanted = [hit.id for hit in right if hit.id != name][:k]
        got = {hit.id for hit in near if hit.id != name}
        if wanted:
            shares.append(len(got.intersection(wanted)) / len(wanted))
    return (float(np.mean(shares)) if shares else 1.0), len(shares)


def _sample(store: Store, generation: Generation, count: int) -> tuple[list[str], NDArray[np.float32]]:
    step = max(1, store.count(generation.number) // count)
    names = [item.id for number, item in enumerate(store.iterate(generation.number)) if number % step == 0][:count]
    items = store.get(generation.number, names, vectors=True)
    rows = [items[name].vector for name in names if name in items]
    kept = [name for name in names if name in items]
    return kept, np.stack([row for row in rows if row is not None])
