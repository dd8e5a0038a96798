"""The stores that the contract is tested on: a fresh address of each kind, or the reason why there is none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.search import Item, open_store
from search import servers

KINDS = (
    "sqlite",
    "postgres",
    pytest.param("milvus", marks=pytest.mark.slow),
    pytest.param("milvus-standalone", marks=pytest.mark.slow),
)


def fresh_address(kind: str, folder: Path) -> str:
    """An address of ``kind`` where nothing is yet; the test skips if its server is not installed."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    if kind == "sqlite":
        return str(folder / f"{name}.index")
    if kind == "postgres":
        address = servers.postgres()
        return f"{address}{'&' if '?' in address else '?'}index={name}"
    return f"{servers.milvus_standalone() if kind == 'milvus-standalone' else servers.milvus()}/{name}"


@contextmanager
def filled(kind: str, count: int, more: str = "", dim: int = 8) -> Iterator[tuple[Any, list[Item]]]:
    """A new store on a server, with ``more`` at the end of its address, and the items in its generation 1."""
    store, known = open_store(fresh_address(kind, Path()) + more, create=True), items(count, dim)
    store.create_generation(1, dim)
    store.put(1, known)
    yield store, known
    store.close()


def vectors(count: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def items(count: int, dim: int = 8, seed: int = 0, start: int = 0) -> list[Item]:
    return [
        Item(
            f"photo/{number}.jpg",
            vector,
            {"label": f"class {number % 3}", "name": f"{number}.jpg"},
            digest=f"digest{number}",
            source=f"/somewhere/{number}.jpg",
            stamp=f"{number}:1",
        )
        for number, vector in enumerate(vectors(count, dim, seed), start)
    ]
