"""What only the file has: codes, damaged and foreign files, a full disk, a file that may only be read."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.common.errors import ConfigError, DataError
from recollect.search import Index, IndexBusyError, Item, StoreError, open_store
from recollect.search.stores import sqlite
from recollect.search.stores.base import is_index
from recollect.search.stores.sqlite import SQLiteStore
from search.stores import items, vectors
from search.toy_model import ToyEncoder


def _filled(path: Path, count: int = 50) -> SQLiteStore:
    store = SQLiteStore.open(str(path), create=True)
    store.create_generation(1, 8)
    store.put(1, items(count))
    return store


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use codes for a few hundred items, as for hundreds of thousands."""
    pytest.importorskip("faiss")
    monkeypatch.setattr(sqlite, "_EXACT_BELOW", 200)
    monkeypatch.setattr(sqlite, "_EXACT_FIRST", 0)


@pytest.fixture(params=[(32, False), (32, True), (7, False), (258, False)], ids=str)
def large(request: pytest.FixtureRequest, tmp_path: Path, codes: None) -> Iterator[tuple[SQLiteStore, list[Item]]]:
    """A store that searches codes, and its items, in classes of 20."""
    dim, half = request.param
    centres = np.repeat(vectors(100, dim, seed=1), 20, axis=0)
    rows = (centres + 0.3 * vectors(2000, dim, seed=2)).astype(np.float16).astype(np.float32)
    known = [replace(item, vector=row) for item, row in zip(items(2000, dim), rows, strict=True)]
    with closing(SQLiteStore.open(str(tmp_path / "x"), create=True)) as store:
        store.create_generation(1, dim, half)
        store.put(1, known)
        yield store, known


def _recall(store: SQLiteStore, known: list[Item], **options: Any) -> float:
    """The share of the exact first 10 that approximate search finds; its similarities are exact, its lists are full."""
    queries = np.stack([item.vector for item in known[::50]])
    by_id = {item.id: item.vector for item in known}
    shares = []
    for query, found in zip(queries, store.search(1, queries, 10, approximate=True, **options), strict=True):
        assert len({hit.id for hit in found}) == 10
        np.testing.assert_allclose([h.similarity for h in found], [by_id[h.id] @ query for h in found], atol=1e-5)
        assert [h.similarity for h in found] == sorted((h.similarity for h in found), reverse=True)
        best = sorted(by_id, key=lambda name, query=query: -float(by_id[name] @ query))[:10]
        shares.append(len(set(best) & {hit.id for hit in found}) / 10)
    return float(np.mean(shares))


def test_codes_find_nearly_everything_after_every_change(large: tuple[SQLiteStore, list[Item]]) -> None:
    store, known = large
    assert _recall(store, known) > 0.95
    assert _recall(store, known, candidates=10) < _recall(store, known, candidates=150)
    assert _recall(store, [i for i in known if i.metadata["label"] == "class 1"], where={"label": ["class 1"]}) > 0.95
    reader = SQLiteStore.open(store.address)
    assert _recall(reader, known) > 0.95
    for first in (0, 400, 1200):  # in the end most of the rows that codes were made of are gone
        store.delete(1, [item.id for item in known[first : first + 400]])
        store.put(1, [replace(item, id=f"new/{item.id}") for item in known[first : first + 100]])
    kept = known[800:1200] + known[1600:]
    kept += [replace(item, id=f"new/{item.id}") for first in (0, 400, 1200) for item in known[first : first + 100]]
    for opened in (store, reader):
        assert _recall(opened, kept) > 0.95
    reader.close()


def test_codes_give_full_lists_of_equal_vectors(tmp_path: Path, codes: None) -> None:
    with closing(SQLiteStore.open(str(tmp_path / "x"), create=True)) as store:
        store.create_generation(1, 8)
        store.put(1, [replace(item, vector=vectors(1)[0]) for item in items(1000)])
        (found,) = store.search(1, vectors(1), 30, approximate=True)
        assert len({hit.id for hit in found}) == 30
        assert len(store.search(1, vectors(1), 2000, approximate=True)[0]) == 1000


def test_a_large_index_is_searched_by_codes_unless_exact_search_is_asked_for(
    tmp_path: Path, codes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    monkeypatch.setattr(sqlite, "APPROXIMATE_FROM", 1000)
    monkeypatch.setattr(sqlite, "_faiss", lambda: used.append(True) or pytest.importorskip("faiss"))
    with closing(SQLiteStore.open(str(tmp_path / "x"), create=True)) as store:
        for generation, dim, count in ((1, 128, 1000), (2, 128, 999), (3, 8, 1000)):
            store.create_generation(generation, dim)
            store.put(generation, items(count, dim))
            store.search(generation, vectors(1, dim), 5)
            assert bool(used) == (generation == 1)  # few items, and short vectors, are compared exactly
            used.clear()
        store.search(1, vectors(1, 128), 5, approximate=False)
        assert not used


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
    (tmp_path / "died").touch()  # by a process that died while creating it
    with pytest.raises(StoreError, match="there is no index"):
        SQLiteStore.open(str(tmp_path / "died"))
    _filled(tmp_path / "died").close()
    with pytest.raises(DataError, match="cannot be"):
        SQLiteStore.open(str(tmp_path / "text" / "below"), create=True)
    _filled(tmp_path / "later").close()
    with sqlite3.connect(tmp_path / "later") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match=r"format 99.*index the images again with  recollect index"):
        SQLiteStore.open(str(tmp_path / "later"))


def test_a_check_reads_every_vector(tmp_path: Path) -> None:
    _filled(tmp_path / "x", 300).close()
    for damage, reason in (("00" * 28 + "0000c07f", "not finite"), ("00", "another length")):
        with closing(SQLiteStore.open(str(tmp_path / "x"))) as store:
            store._connection.execute(f"UPDATE items SET vector = x'{damage}' WHERE number = 7")
            with pytest.raises(StoreError, match=reason):
                store.check()


def test_a_damaged_file_is_refused_and_not_changed(tmp_path: Path) -> None:
    _filled(tmp_path / "x", 2000).close()
    whole = (tmp_path / "x").read_bytes()
    content = bytearray(whole)
    for start in range(32768, len(content), 32768):  # the heads of all pages but the first
        content[start : start + 100] = os.urandom(100)
    for damaged in (bytes(content), whole[:40000]):
        (tmp_path / "x").write_bytes(damaged)
        for use in (SQLiteStore.check, lambda store: store.search(1, vectors(1), 5)):
            with (
                pytest.raises(StoreError, match="damaged one"),
                closing(SQLiteStore.open(str(tmp_path / "x"))) as store,
            ):
                use(store)
        assert (tmp_path / "x").read_bytes() == damaged


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


def _as_nobody(folder: Path, work: Callable[[], Any], answer: Any) -> None:
    """What ``work`` returns or refuses, for a user who may read everything in ``folder`` and write nothing."""
    folder.chmod(0o555)
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        answer.put(work())
    except StoreError as error:
        answer.put(str(error))


def test_an_index_is_read_without_write_permission_while_another_process_writes() -> None:
    context = multiprocessing.get_context("fork")
    answer = context.Queue()

    def asked(work: Callable[[SQLiteStore], Any]) -> Any:
        def task() -> Any:
            with closing(SQLiteStore.open(str(path))) as store:
                return work(store)

        process = context.Process(target=_as_nobody, args=(path.parent, task, answer))
        process.start()
        found = answer.get(timeout=60)
        process.join()
        path.parent.chmod(0o755)
        return found

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        store = _filled(path)
        store.put(1, items(10, start=100))
        assert asked(lambda opened: opened.count(1)) == 60  # from the log of the writer, which is open
        assert "read-only" in asked(lambda opened: opened.put(1, items(1)))
        store.close()
        assert sorted(file.name for file in Path(folder).iterdir()) == ["x"]  # at rest, nothing is needed beside it
        assert asked(lambda opened: opened.count(1)) == 60
        with closing(sqlite3.connect(path)) as db:  # a copy that was made while somebody wrote, without the log
            db.execute("PRAGMA journal_mode = WAL")
        assert asked(lambda opened: opened.count(1)) == 60

        ready, done = context.Event(), context.Event()

        def before_and_after(opened: SQLiteStore) -> tuple[int, int, int]:
            before = opened.count(1)
            ready.set()
            done.wait(60)
            return before, opened.count(1), len(opened.search(1, vectors(1), 500)[0])

        SQLiteStore.open(str(path)).close()
        reader = threading.Thread(target=lambda: results.append(asked(before_and_after)))
        results: list[Any] = []
        reader.start()
        assert ready.wait(60)
        with closing(SQLiteStore.open(str(path))) as store:  # a writer that comes and goes while there is a reader
            store.put(1, items(200, start=1000))
        done.set()
        reader.join()
        assert results == [(60, 260, 260)]
        assert asked(lambda opened: opened.count(1)) == 260


def test_writers_that_come_by_different_links_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    first = SQLiteStore.open(str(tmp_path / "x"), create=True)
    second = SQLiteStore.open(str(tmp_path / "link" / "x"))
    with closing(first), closing(second), first.writing(), pytest.raises(IndexBusyError):
        second.writing().__enter__()


def test_settings_of_another_version_are_refused(tmp_path: Path) -> None:
    with Index.create(tmp_path / "x", ToyEncoder()) as index:
        for document in ({"format": 99}, {"format": 2}):
            index.store.write_document("settings", document)
            with pytest.raises(StoreError, match=r"format 99|not valid"):
                Index.open(tmp_path / "x")


def test_addresses(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    address = 'mine'\n    @classmethod\n    def open(cls, address, *, create=False):\n"
        "        made = cls()\n        made.given = (address, create)\n        return made\nvalue = 3\n"
    )
    assert open_store(f"{tmp_path}/mine.py:Mine://host/x", create=True).given == ("host/x", True)
    inside = open_store(f"recollect.search.stores.sqlite:SQLiteStore://{tmp_path}/x", create=True)
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
