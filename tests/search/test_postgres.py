"""PostgreSQL: what only it has. Addresses, a server that is not there or restarts, several indexes in one database."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from recollect.common.errors import ConfigError, InputError, MissingExtraError
from recollect.search import StoreError, open_store
from recollect.search.stores.postgres import parse_address
from search import servers
from search.stores import filled, fresh_address, items, vectors


def test_addresses() -> None:
    target, name, shown = parse_address("postgresql://me:secret@db:5432/shop?index=shoes&sslmode=require")
    assert target == "postgresql://me:secret@db:5432/shop?sslmode=require"
    assert name == "shoes"
    assert shown == "postgresql://me:...@db:5432/shop?index=shoes&sslmode=require"
    assert parse_address("postgresql:///shop?host=/tmp/a%20b") == (
        "postgresql:///shop?host=/tmp/a%20b",
        "recollect",
        "postgresql:///shop?host=/tmp/a%20b",
    )
    assert parse_address("postgresql:///shop?password=hidden&index=a")[1:] == (
        "a",
        "postgresql:///shop?password=...&index=a",
    )
    for wrong in ("me:p@secret@db/shop", "me:secret%zz@db/shop", "me:secret@db/shop?index=a;drop"):
        with pytest.raises(ConfigError, match=r"letters|%40") as raised:
            parse_address(f"postgresql://{wrong}")
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("module", "address"), [("psycopg_pool", "postgresql://db/shop"), ("pymilvus", "milvus://host/shop")]
)
def test_a_missing_package_names_the_extra(module: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"recollect\[{address[:6]}"):
        open_store(address)


@pytest.mark.parametrize(("module", "kind"), [("pgvector", "postgresql"), ("pymilvus", "milvus")])
def test_a_server_that_is_not_there_is_said(module: str, kind: str) -> None:
    pytest.importorskip(module, reason="the extra is not installed")
    with pytest.raises(StoreError, match="cannot be reached") as raised:
        open_store(f"{kind}://me:secret@127.0.0.1:1/shop")
    assert "secret" not in str(raised.value)


def test_indexes_of_one_database_are_apart() -> None:
    with pytest.raises(StoreError, match=r"recollect index '.*&index=.*' --model"):
        open_store(fresh_address("postgres", Path()))
    with filled("postgres", 3) as (one, _), filled("postgres", 4) as (other, _), one.writing(), other.writing():
        assert (one.count(1), other.count(1)) == (3, 4)


def test_a_restarted_server_is_asked_again_but_not_written_to_without_a_lock() -> None:
    """As after a restart: the server ends the connections of the store."""
    import psycopg

    def end_connections() -> None:
        with psycopg.connect(servers.postgres(), autocommit=True) as other:
            end = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'ended'"
            assert other.execute(end).fetchall()

    with filled("postgres", 3, "&application_name=ended") as (store, _):
        with store.writing():
            end_connections()
            with pytest.raises(StoreError, match="terminating connection"):
                store.put(1, items(5))
            with pytest.raises(StoreError, match="cannot be reached"):
                store.put(1, items(5))
        assert store.count(1) == 3
        end_connections()
        with store.writing():
            store.put(1, items(4))
        assert store.count(1) == 4


def test_lists_are_full_and_in_order() -> None:
    """A scan of the graph ends early where it exceeds the server's memory; equal vectors at the end of a list come by id."""
    with filled("postgres", 1500, "&options=-c%20work_mem%3D64kB") as (store, known):
        store.build_approximate(1)
        (hits,) = store.search(1, vectors(1, seed=1), 1500, approximate=True)
        assert {hit.id for hit in hits} == {item.id for item in known}
        store.put(1, [replace(item, vector=known[0].vector) for item in known])
        (hits,) = store.search(1, known[0].vector[None], 20)
        assert [hit.id for hit in hits] == sorted(item.id for item in known)[:20]


def test_long_vectors_have_no_graph() -> None:
    with filled("postgres", 5, dim=2048) as (store, _):
        assert len(store.search(1, vectors(1, dim=2048), 3)[0]) == 3
        with pytest.raises(InputError, match="--half"):
            store.build_approximate(1)
