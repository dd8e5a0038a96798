"""PostgreSQL: what only it has. Addresses, a server that is not there, several indexes in one database.

Also covers ``search/postgres_server.py``.
"""

from __future__ import annotations

import pytest

from recollect.common.errors import ConfigError, InputError
from recollect.search import StoreError, open_store
from recollect.search.postgres_rows import parsed
from search import servers
from search.stores import fresh_address, items, vectors


def test_addresses() -> None:
    target, name, shown = parsed("postgresql://me:secret@db:5432/shop?index=shoes&sslmode=require")
    assert target == "postgresql://me:secret@db:5432/shop?sslmode=require"
    assert name == "shoes"
    assert "secret" not in shown
    assert "index=shoes" in shown
    assert parsed("postgresql://db/shop")[1] == "recollect"
    assert "hidden" not in parsed("postgresql:///shop?password=hidden")[2]
    with pytest.raises(ConfigError, match="letters"):
        parsed("postgresql://db/shop?index=a;drop")


def test_a_server_that_is_not_there_is_said() -> None:
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    with pytest.raises(StoreError, match="cannot be reached") as raised:
        open_store("postgresql://me:secret@127.0.0.1:1/shop")
    assert "secret" not in str(raised.value)


def test_indexes_of_one_database_are_apart() -> None:
    nothing = fresh_address("postgres", None)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"recollect index '.*&index=.*' --model"):
        open_store(nothing)
    stores = [open_store(fresh_address("postgres", None), create=True) for _ in range(2)]  # type: ignore[arg-type]
    for number, store in enumerate(stores):
        store.create_generation(1, 8)
        store.put(1, items(3 + number))
    with stores[0].writing(), stores[1].writing():
        assert [store.count(1) for store in stores] == [3, 4]
    for store in stores:
        store.close()


def test_a_restarted_server_is_asked_again_but_not_written_to_without_a_lock() -> None:
    """As after a restart: the server ends the connections that this process keeps."""
    store = open_store(fresh_address("postgres", None), create=True)  # type: ignore[arg-type]
    store.create_generation(1, 8)
    server = store._server  # type: ignore[attr-defined]

    def ended() -> None:
        connections = [*server._idle, *([] if server._lock_holder is None else [server._lock_holder])]
        pids = [connection.info.backend_pid for connection in connections]
        with server._connect() as other:
            other.execute(
                "SELECT pg_terminate_backend(p, 60000) FROM unnest(%s) p", (pids,)
            ).fetchall()  # some are gone

    with store.writing():
        store.put(1, items(3))
        ended()
        with pytest.raises(StoreError, match="its lock: another process may be writing"):
            store.put(1, items(5))
    ended()
    assert store.count(1) == 3
    ended()
    with store.writing():
        store.put(1, items(4))
    assert store.count(1) == 4
    store.close()


def test_long_vectors_have_no_graph() -> None:
    servers.postgres()
    store = open_store(fresh_address("postgres", None), create=True)  # type: ignore[arg-type]
    store.create_generation(1, 2048)
    store.put(1, items(5, dim=2048))
    assert len(store.search(1, vectors(1, dim=2048), 3)[0]) == 3
    with pytest.raises(InputError, match="--half"):
        store.build_approximate(1, {"m": 16, "ef_construction": 64, "ef_search": 64})
    store.close()
