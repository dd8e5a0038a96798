"""Milvus: what only it has. Addresses, claims of writers that ended, exact search beside its graph.

Also covers ``search/milvus_lock.py``.
"""

from __future__ import annotations

import json
import multiprocessing
import operator
import random
import re
import socket
import time

import pytest

from recollect.common.errors import ConfigError, InputError
from recollect.search import IndexBusyError, StoreError, milvus_store, open_store
from recollect.search.milvus_rows import decoded, encoded, parsed
from search.stores import fresh_address, items, vectors


def test_addresses() -> None:
    options, name, shown, consistency = parsed("milvus://me:secret@host/shoes?db=shop&secure=1&consistency=Bounded")
    assert options == {"uri": "https://host:19530", "token": "me:secret", "db_name": "shop"}
    assert (name, consistency) == ("shoes", "Bounded")
    assert "secret" not in shown
    assert parsed("milvus://me:p%40ss@[::1]:1/a")[0] == {"uri": "http://[::1]:1", "token": "me:p@ss"}
    for wrong in ("host", "host/a-b", "host/a?x=1", "host/a?consistency=Much", "host:port/a", "[::1/a"):
        with pytest.raises(ConfigError) as raised:
            parsed(f"milvus://me:secret@{wrong}")
        assert "secret" not in str(raised.value)


def test_columns_of_any_name() -> None:
    names = ["label", "0x41", 'a"b', "ü", "", "x y"]
    assert decoded(encoded(dict.fromkeys(names, "v"))) == dict.fromkeys(names, "v")


def test_a_server_that_is_not_there_is_said() -> None:
    pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")
    with pytest.raises(StoreError, match="cannot be reached"):
        open_store("milvus://127.0.0.1:1/shop")


@pytest.mark.parametrize(("refused", "late", "asked"), [(2, False, 3), (3, False, 3), (1, True, 1)])
def test_a_connection_that_is_turned_down_at_once_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, refused: int, late: bool, asked: int
) -> None:
    pymilvus = pytest.importorskip("pymilvus", reason="the extra 'milvus' is not installed")
    attempts: list[object] = []

    def connect(**options: object) -> str:
        attempts.append(options)
        if len(attempts) <= refused:
            raise pymilvus.MilvusException(2, "Too many pings")
        return "client"

    monkeypatch.setattr(pymilvus, "MilvusClient", connect)
    monkeypatch.setattr(milvus_store.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(milvus_store, "_AT_ONCE", -1.0 if late else 60.0)
    if refused < asked:
        assert milvus_store._connected(pymilvus, {"uri": "x"}) == "client"
    else:
        with pytest.raises(pymilvus.MilvusException, match="Too many pings"):
            milvus_store._connected(pymilvus, {"uri": "x"})
    assert len(attempts) == asked


def test_pages_do_not_depend_on_the_order_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus_store, "_LONGEST", 16)
    monkeypatch.setattr(milvus_store, "_PAGE", 5)
    keys = [f"photo {number}" for number in range(300)]
    compare = {"in": lambda key, some: key in some, ">=": operator.ge, ">": operator.gt, "<=": operator.le}

    def query(table: str, condition: str, columns: list[str], limit: int) -> list[dict[str, str]]:
        parts = [(sign, json.loads(value)) for sign, value in re.findall(r"id (\S+) (\[.*?\]|\".*?\")", condition)]
        found = [key for key in keys if all(compare[sign](key, value) for sign, value in parts)]
        return [{"id": key} for key in random.sample(found, min(limit, len(found)))]

    store = milvus_store.MilvusStore.__new__(milvus_store.MilvusStore)
    monkeypatch.setattr(store, "_query", query)
    assert sorted(row["id"] for row in store._pages("items", "id", 'id >= ""', ["id"])) == sorted(keys)


def _nothing() -> None:
    pass


@pytest.mark.slow
def test_claims_of_writers_that_ended_do_not_count() -> None:
    store = open_store(fresh_address("milvus", None), create=True)  # type: ignore[arg-type]
    ended = multiprocessing.get_context("spawn").Process(target=_nothing)
    ended.start()
    ended.join()
    here, later = socket.gethostname(), time.time() + 60
    store.write_document("writer:a", {"until": later, "host": here, "process": ended.pid})
    store.write_document("writer:b", {"until": time.time() - 1, "host": "elsewhere", "process": 1})
    with store.writing():
        pass
    store.write_document("writer:c", {"until": later, "host": "elsewhere", "process": 1})
    with pytest.raises(IndexBusyError, match="another"), store.writing():
        pass
    store.close()


@pytest.mark.slow
def test_exact_search_beside_the_graph_reads_everything() -> None:
    store = open_store(fresh_address("milvus", None), create=True)  # type: ignore[arg-type]
    store.create_generation(1, 8)
    known = items(40)
    store.put(1, known)
    store.build_approximate(1, {"m": 8, "ef_construction": 32, "ef_search": 32})
    query = vectors(1, seed=4)
    best = sorted(known, key=lambda item: -float(item.vector @ query[0]))
    assert [hit.id for hit in store.search(1, query, 12)[0]] == [item.id for item in best[:12]]
    kept = [item.id for item in best if item.metadata["label"] == "class 1"]
    assert [hit.id for hit in store.search(1, query, 50, {"label": "class 1"})[0]] == kept
    with pytest.raises(InputError, match=r"2,048 bytes"):
        store.put(1, [items(1)[0].__class__("x" * 3000, known[0].vector)])
    store.close()


@pytest.mark.slow
def test_an_index_that_was_lost_while_being_replaced_is_built_again() -> None:
    store = open_store(fresh_address("milvus", None), create=True)  # type: ignore[arg-type]
    store.create_generation(1, 8)
    known = items(40)
    store.put(1, known)
    store._client.release_collection(store._table(1))
    store._client.drop_index(store._table(1), "vector")  # as far as a killed process got
    store.drop_approximate(1)
    assert store.search(1, known[7].vector[None], 1)[0][0].id == known[7].id
    store.close()


@pytest.mark.slow
def test_more_items_than_milvus_gives_at_once_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus_store, "_LONGEST", 100)
    monkeypatch.setattr(milvus_store, "_PAGE", 30)
    store = open_store(fresh_address("milvus", None), create=True)  # type: ignore[arg-type]
    store.create_generation(1, 8)
    store.put(1, items(700))
    read = [item.id for item in store.iterate(1)]
    assert sorted(read) == sorted(item.id for item in items(700))
    store.close()
