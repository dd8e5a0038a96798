"""Milvus: what only it has. Addresses, reading everything in parts, an index that is replaced."""

from __future__ import annotations

import pytest

from recollect.common.errors import ConfigError
from recollect.search.stores import milvus
from recollect.search.stores.milvus import parse_address
from search.stores import filled


def test_addresses() -> None:
    arguments, name, shown, consistency = parse_address(
        "milvus://me:secret@host/shoes?db=shop&secure=1&consistency=Bounded"
    )
    assert arguments == {"uri": "https://host:19530", "token": "me:secret", "db_name": "shop"}
    assert (name, consistency) == ("shoes", "Bounded")
    assert shown == "milvus://me:...@host/shoes?db=shop&secure=1&consistency=Bounded"
    assert parse_address("milvus://me:p%40ss@[::1]:1/a")[0]["uri"] == "http://[::1]:1"
    assert parse_address("milvus://me:p%40ss@[::1]:1/a")[0]["token"] == "me:p@ss"
    assert parse_address("milvus://host/a")[0]["token"] == ""
    for wrong in ("host", "host/a-b", "host/a?x=1", "host:port/a", "[::1/a", "@host/a"):
        with pytest.raises(ConfigError, match="milvus://host:19530/name") as raised:
            parse_address(f"milvus://me:secret@{wrong}")
        assert "secret" not in str(raised.value)


@pytest.mark.slow
def test_an_index_that_was_lost_while_being_replaced_is_built_again() -> None:
    with filled("milvus", 40) as (store, known):
        store._client.release_collection(store._table(1))
        store._client.drop_index(store._table(1), "vector")  # as far as a killed process got
        store.drop_approximate(1)
        assert store.search(1, known[7].vector[None], 1)[0][0].id == known[7].id


@pytest.mark.slow
def test_more_items_than_milvus_gives_at_once_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus, "_LONGEST", 100)
    with filled("milvus", 700) as (store, known):
        assert sorted(item.id for item in store.iterate(1)) == sorted(item.id for item in known)
        best = sorted(known, key=lambda item: -float(item.vector @ known[0].vector))
        assert [hit.id for hit in store.search(1, known[0].vector[None], 150)[0]] == [item.id for item in best[:150]]
