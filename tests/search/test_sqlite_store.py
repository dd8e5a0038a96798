"""The file: what only it has. Moving together, damaged and foreign files, a full disk, a file that may only be read.

Also covers ``search/sqlite_schema.py``, ``search/sqlite_vectors.py``.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from recollect.common.errors import ConfigError, DataError
from recollect.search import Index, IndexBusyError, OtherModelError, StoreError, open_store
from recollect.search.addresses import is_index
from recollect.search.graph import Graph
from recollect.search.loaded_vectors import LoadedVectors
from recollect.search.sqlite_store import SQLiteStore
from search.stores import items, vectors
from search.toy_model import ToyEncoder, make_photos


def _filled(path: Path, count: int = 50) -> SQLiteStore:
    store = SQLiteStore.open(str(path), create=True)
    store.create_generation(1, 8)
    store.put(1, items(count))
    return store


def _ids(store: SQLiteStore) -> list[str]:
    return sorted(item.id for item in store.iterate(1))


def test_free_slots_are_used_again_and_moved_together(tmp_path: Path) -> None:
    known = items(3000)
    store = SQLiteStore.open(str(tmp_path / "x"), create=True)
    store.create_generation(1, 8)
    store.put(1, known)
    reader = SQLiteStore.open(str(tmp_path / "x"))
    query = vectors(4, seed=3)
    reader.search(1, query, 3)
    store.delete(1, [item.id for item in known[:1000]])
    store.put(1, known[:10])
    with sqlite3.connect(tmp_path / "x") as db:
        assert db.execute("SELECT slots, epoch FROM generations").fetchone() == (3000, 0)
    kept = known[:10] + known[2500:]
    store.build_approximate(1, {})
    store.delete(1, [item.id for item in known[1000:2500]])
    with sqlite3.connect(tmp_path / "x") as db:
        assert db.execute("SELECT slots, epoch, graph FROM generations").fetchone() == (510, 1, None)
        assert db.execute("SELECT count(*) FROM vectors").fetchone()[0] == 2
    db.close()
    for opened in (store, reader):
        for row, hits in zip(query, opened.search(1, query, 20, approximate=True), strict=True):
            best = sorted(kept, key=lambda item, row=row: -float(item.vector @ row))[:20]
            assert [hit.id for hit in hits] == [item.id for item in best]
        opened.close()


def test_other_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"hello, this is no index" * 100)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    for name, says in (("text", "not an index"), ("other.db", "not an index")):
        before = (tmp_path / name).read_bytes()
        for create in (False, True):
            with pytest.raises(StoreError, match=says):
                SQLiteStore.open(str(tmp_path / name), create=create)
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(StoreError, match="folder"):
        SQLiteStore.open(str(tmp_path), create=True)
    with pytest.raises(DataError, match="cannot be"):
        SQLiteStore.open(str(tmp_path / "text" / "below"), create=True)
    _filled(tmp_path / "later").close()
    with sqlite3.connect(tmp_path / "later") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="format 99"):
        SQLiteStore.open(str(tmp_path / "later"))


def test_a_process_that_died_while_making_it_leaves_no_trap(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(StoreError):
        SQLiteStore.open(str(tmp_path / "x"))
    _filled(tmp_path / "x").close()
    assert is_index(tmp_path / "x")


def test_a_damaged_file_is_refused_and_not_changed(tmp_path: Path) -> None:
    _filled(tmp_path / "x", 2000).close()
    content = bytearray((tmp_path / "x").read_bytes())
    for start in range(16384, len(content), 16384):  # the heads of all pages but the first
        content[start : start + 100] = os.urandom(100)
    (tmp_path / "x").write_bytes(content)
    for size in (len(content), 20000):
        (tmp_path / "x").write_bytes(content[:size])
        with pytest.raises(StoreError, match="damaged"):
            SQLiteStore.open(str(tmp_path / "x"))
        assert (tmp_path / "x").read_bytes() == content[:size]


def test_a_flipped_bit_in_a_vector_is_noticed(tmp_path: Path) -> None:
    _filled(tmp_path / "x", 300).close()
    with sqlite3.connect(tmp_path / "x") as db:
        number, data = db.execute("SELECT number, data FROM vectors ORDER BY number DESC").fetchone()
        changed = bytearray(data)
        changed[40] ^= 1
        db.execute("UPDATE vectors SET data = ? WHERE number = ?", (changed, number))
    db.close()
    store = SQLiteStore.open(str(tmp_path / "x"))
    for use in (
        lambda: store.search(1, vectors(1), 5),
        lambda: list(store.iterate(1, vectors=True)),
        lambda: store.put(1, items(5, start=900)),  # into the same block, which it must not make good
    ):
        with pytest.raises(StoreError, match=r"damaged one .*checksum"):
            use()
    assert len(_ids(store)) == 300
    store.close()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    store = _filled(tmp_path / "x")
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="disk is full"):
        store.put(1, items(5000, start=100))
    assert store.count(1) == 50
    assert len(store.search(1, vectors(1), 60)[0]) == 50
    store._connection.execute("PRAGMA max_page_count = 100000")
    store.put(1, items(5000, start=100))
    assert store.count(1) == 5050
    store.close()


def test_a_file_that_may_only_be_read_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _filled(tmp_path / "x").close()
    monkeypatch.setattr(os, "access", lambda *_: False)  # the superuser, who may run the tests, may write anything

    def refused(*_: object) -> None:
        raise AssertionError("nothing may be written to open an index")

    monkeypatch.setattr("recollect.search.sqlite_schema.make_folder_for", refused)
    store = SQLiteStore.open(str(tmp_path / "x"))
    assert len(store.search(1, vectors(1), 60)[0]) == 50
    with pytest.raises(StoreError, match="read-only"):
        store.put(1, items(1))
    store.close()


def test_writers_that_come_by_different_links_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "x.index").touch()
    (tmp_path / "other.index").symlink_to(tmp_path / "real" / "x.index")
    with closing(SQLiteStore.open(str(tmp_path / "real" / "x.index"), create=True)) as first, first.writing():
        for path in ("link/x.index", "other.index"):
            with closing(SQLiteStore.open(str(tmp_path / path))) as second, pytest.raises(IndexBusyError):
                second.writing().__enter__()


def test_a_refused_model_leaves_no_file_open(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", classes=1, each=2)
    with Index.create(tmp_path / "x", ToyEncoder()) as index:
        index.sync(photos)
    with pytest.raises(OtherModelError):
        Index.open(tmp_path / "x", ToyEncoder(1))
    with Index.open(tmp_path / "x", ToyEncoder()) as index:
        index.remove(["class0/0.png"])
    # The last connection to close removes SQLite's log: one that was left open would keep it.
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "photos", "x"]


def test_a_graph_from_elsewhere_is_checked(tmp_path: Path) -> None:
    loaded = LoadedVectors(8, False, 0, 1)
    loaded.reserve(500)
    loaded.matrix[:] = vectors(500)
    loaded.live[:] = True
    graph = Graph.build(loaded, {"m": 8})
    kept = {name: array.tobytes() for name, array in graph.arrays().items()}
    query = vectors(5, seed=1)
    again = Graph.restored(loaded, graph.built, kept)
    assert np.array_equal(again.search(loaded, query, 5)[0], graph.search(loaded, query, 5)[0])
    arrays = graph.arrays()
    top = int(np.argmax(arrays["levels"]))
    upper = int(arrays["offsets"][top]) + 16  # its links on level 1
    low = int(np.flatnonzero(arrays["levels"] == 1)[0])
    for name, place, value in (
        ("neighbors", 3, 500),
        ("neighbors", 3, -2),
        ("neighbors", upper, low),
        ("levels", 0, 60),
        ("levels", 0, -1),
        ("offsets", 4, 2**60),
        ("slots", 0, 500),
        ("slots", 0, -1),
    ):
        bad = graph.arrays()[name].copy()
        bad[place] = value
        with pytest.raises(StoreError, match="damaged"):
            Graph.restored(loaded, graph.built, {**kept, name: bad.tobytes()})
    for change in ({"entry_point": 500}, {"entry_point": low}, {"max_level": 30}, {"items": 499}, {"m": "many"}):
        with pytest.raises(StoreError, match="damaged"):
            Graph.restored(loaded, {**graph.built, **change}, kept)
    with pytest.raises(StoreError, match="damaged"):
        Graph.restored(loaded, graph.built, {"levels": b"abc"})


def test_addresses(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    address = 'mine'\n    @classmethod\n    def open(cls, address, *, create=False):\n"
        "        made = cls()\n        made.given = (address, create)\n        return made\nvalue = 3\n"
    )
    assert open_store(f"{tmp_path}/mine.py:Mine://host/x", create=True).given == ("host/x", True)
    assert open_store(f"{tmp_path}/mine.py:Mine").given == ("", False)
    inside = open_store(f"recollect.search.sqlite_store:SQLiteStore://{tmp_path}/x", create=True)
    assert isinstance(inside, SQLiteStore)
    inside.close()
    for wrong in (
        f"{tmp_path}/mine.py:Other",
        f"{tmp_path}/mine.py:value",
        "no.such.module:Store",
        "ftp://me:secret@somewhere/x",
    ):
        with pytest.raises(ConfigError) as raised:
            open_store(wrong)
        assert "secret" not in str(raised.value)
    assert is_index("postgresql://x/y")
    assert is_index("some.module:Store")
    assert not is_index(tmp_path)
    assert not is_index(tmp_path / "nothing.npz")
