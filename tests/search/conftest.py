from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.search import Store, open_store
from search.stores import KINDS, fresh_address


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new address of every kind of store."""
    return fresh_address(request.param, tmp_path)


@pytest.fixture
def store(address: str) -> Iterator[Store]:
    """A new store of every kind, with an empty generation 1 of 8 dimensions."""
    opened = open_store(address, create=True)
    opened.create_generation(1, 8)
    yield opened
    opened.close()
