"""A flipped bit anywhere in an index file: the contents are the same, or the file is refused with a sentence."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recollect.search import StoreError
from recollect.search.sqlite_schema import FORMAT
from recollect.search.sqlite_store import SQLiteStore
from search.stores import items, vectors

COUNT = 300  # two blocks of vectors


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with everything that a file can hold: free slots, pictures, a graph."""
    path = tmp_path_factory.mktemp("flips") / "whole"
    store = SQLiteStore.open(str(path), create=True)
    store.create_generation(1, 8)
    kept = [replace(item, source="", picture=b"picture %d" % n * 9) if n % 50 == 0 else item
            for n, item in enumerate(items(COUNT))]  # fmt: skip
    store.put(1, kept)
    store.delete(1, [kept[7].id, kept[280].id])
    store.build_approximate(1, {"m": 4})
    store.write_document("index", {"model": "a model", "threshold": 0.25})
    store.close()
    return path


def contents(path: Path) -> dict[str, Any]:
    """Everything that can be read from an index."""
    store = SQLiteStore.open(str(path))
    try:
        query, ids = vectors(3, seed=1), [item.id for item in items(COUNT)]
        read = store.get(1, ids)
        return {
            "documents": [store.read_document("index"), store.read_document("other")],
            "generations": store.generations(),
            "items": sorted(
                (item.id, item.digest, item.source, item.stamp, sorted(item.metadata.items()), item.vector.tobytes())
                for item in store.iterate(1, vectors=True)
                if item.vector is not None
            ),
            "by id": [read.get(name) for name in ids],
            "pictures": [store.picture(f"digest{number}") for number in range(0, COUNT, 25)],
            "labels": store.values(1, "label"),
            "names": store.values(1, "name"),
            "counts": [store.count(1), store.count(1, {"label": "class 1"}), store.count(1, {"name": "3.jpg"})],
            "found": [
                store.search(1, query, 20, where, approximate)
                for where, approximate in ((None, False), ({"label": "class 2"}, False), (None, True))
            ],
        }
    finally:
        store.close()


def sweep(made: Path, folder: Path, places: list[tuple[int, int]]) -> tuple[int, list[str]]:
    """Flip each bit alone: the number of refused files, and the flips that were believed or not foreseen."""
    whole, expected = made.read_bytes(), contents(made)
    path, refused, wrong = folder / "flipped", 0, []
    for place, bit in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        try:
            if contents(path) != expected:
                wrong.append(f"bit {bit} of byte {place} changes the contents")
        except StoreError:
            refused += 1
        except Exception as error:  # a traceback for users
            wrong.append(f"bit {bit} of byte {place}: {type(error).__name__}: {error}")
        for name in ("flipped-wal", "flipped-shm", "flipped-journal"):
            (folder / name).unlink(missing_ok=True)
    return refused, wrong


def places_of(made: Path, count: int, seed: int) -> list[tuple[int, int]]:
    """Bits to flip: half of them in bytes that are not zero, for most of a page may be empty; some in heads of pages."""
    whole, draw = made.read_bytes(), random.Random(seed)
    used = [place for place, byte in enumerate(whole) if byte]
    heads = [page + place for page in range(0, len(whole), 16384) for place in range(100 if page else 200)]
    several = (used, used, heads, range(len(whole)))
    return [(draw.choice(several[number % 4]), draw.randrange(8)) for number in range(count)]


def test_flipped_bits_change_nothing_or_are_refused(made: Path, tmp_path: Path) -> None:
    refused, wrong = sweep(made, tmp_path, places_of(made, 60, 0))
    assert not wrong
    assert refused > 15


@pytest.mark.slow
def test_thousands_of_flipped_bits(made: Path, tmp_path: Path) -> None:
    _, wrong = sweep(made, tmp_path, places_of(made, 1500, 1))
    assert not wrong


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('UPDATE items SET metadata = \'{"label": "class 1"}\' WHERE slot = 3', "an item does not match"),
        ("UPDATE items SET source = CAST(source AS BLOB) WHERE slot = 3", "an item does not match"),
        ("UPDATE items SET stamp = 'x' WHERE slot = 3", "an item does not match"),
        ("UPDATE items SET changed = 0 WHERE slot = 3", "an item does not match"),
        ("DELETE FROM items WHERE slot = 3", "299 items and free slots are not the 300"),
        ("DELETE FROM free WHERE slot = 7", "299 items and free slots are not the 300"),
        ("UPDATE generations SET slots = 299", "generation 1 does not match"),
        ("UPDATE generations SET graph = NULL", "generation 1 does not match"),
        ("UPDATE documents SET value = '{}'", "document index does not match"),
        ("UPDATE pictures SET data = x'00' WHERE digest = 'digest50'", "stored image does not match"),
        ("UPDATE pictures SET digest = 'digest51' WHERE digest = 'digest50'", "stored image is missing"),
        ("UPDATE pictures SET data = 5 WHERE digest = 'digest50'", "a blob is of another type"),
        ("UPDATE vectors SET data = 5", "a block of vectors is not as long"),
        ("UPDATE graphs SET data = zeroblob(length(data)) WHERE name = 'neighbors'", "graph .* is damaged"),
        ("UPDATE vectors SET number = number + 2 WHERE number & 1", "block"),
        ("DELETE FROM vectors WHERE number & 1", "block"),
        ("DROP INDEX items_label", "its tables are not those of an index"),
    ],
)
def test_what_is_damaged_is_said(made: Path, tmp_path: Path, change: str, says: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(made.read_bytes())
    with sqlite3.connect(path) as db:
        db.execute(change)
    db.close()
    with pytest.raises(StoreError, match=says):
        contents(path)


def test_damage_is_not_made_good_by_a_change(made: Path, tmp_path: Path) -> None:
    """A new checksum over damaged values would hide the damage."""
    for change in ("UPDATE generations SET epoch = 9", "UPDATE items SET stamp = 'x' WHERE slot = 3"):
        path = tmp_path / "x"
        path.write_bytes(made.read_bytes())
        with sqlite3.connect(path) as db:
            db.execute(change)
        db.close()
        store = SQLiteStore.open(str(path))
        for use in (
            lambda store=store: store.put(1, items(5, start=900)),
            lambda store=store: store.delete(1, ["photo/4.jpg"]),
            lambda store=store: store.build_approximate(1, {}),
            lambda store=store: store.drop_approximate(1),
        ):
            with pytest.raises(StoreError, match=r"damaged one .*checksum"):
                use()
        store.close()


def test_an_index_of_an_earlier_format_is_refused(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(made.read_bytes())
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {FORMAT - 1}")
    db.close()
    with pytest.raises(StoreError, match=f"format {FORMAT - 1}.* Index the images again"):
        SQLiteStore.open(str(path))


def test_moved_and_replaced_items_have_checksums(tmp_path: Path) -> None:
    store = SQLiteStore.open(str(tmp_path / "x"), create=True)
    store.create_generation(1, 8)
    known = items(3000)
    store.put(1, known)
    store.put(1, [replace(item, stamp="2:2") for item in known[:40]])
    store.delete(1, [item.id for item in known[20:2500]])  # most slots are free: items move
    store.close()
    store = SQLiteStore.open(str(tmp_path / "x"))
    assert {item.id: item.stamp for item in store.iterate(1)} == {
        item.id: "2:2" if place < 20 else item.stamp for place, item in enumerate(known) if not 20 <= place < 2500
    }
    store.close()
