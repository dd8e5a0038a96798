"""What every store must do, whatever it is made of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from recollect.common.errors import InputError
from recollect.search import IndexBusyError, Item, Store, StoreError, open_store
from recollect.search.stores.base import clean_where
from search.stores import items, vectors


def _reference(known: list[Item], query: np.ndarray, k: int) -> list[tuple[str, float]]:
    similarities = [(item.id, float(item.vector.astype(np.float64) @ query.astype(np.float64))) for item in known]
    return sorted(similarities, key=lambda pair: (-pair[1], pair[0]))[:k]


def _check(store: Store, known: list[Item], queries: np.ndarray, k: int, **options: object) -> None:
    found = store.search(1, queries, k, **options)
    assert len(found) == len(queries)
    by_id = {item.id: item for item in known}
    for query, hits in zip(queries, found, strict=True):
        expected = _reference(known, query, k)
        assert [hit.id for hit in hits] == [name for name, _ in expected]
        np.testing.assert_allclose([hit.similarity for hit in hits], [value for _, value in expected], atol=2e-6)
        assert all(hit.metadata == by_id[hit.id].metadata for hit in hits)


def test_what_is_put_is_found_and_read(store: Store, address: str) -> None:
    assert isinstance(store, Store)
    assert (store.generations(), store.count(1), list(store.iterate(1, vectors=True))) == ([1], 0, [])
    assert store.search(1, vectors(2), 3) == [[], []]
    with pytest.raises(StoreError, match=r"no index|there is no"):
        open_store(f"{address}2")
    known = items(300)
    for start in range(0, 300, 128):
        store.put(1, known[start : start + 128])
    assert store.count(1) == 300
    _check(store, known, vectors(5, seed=1), 7)
    read = store.get(1, ["photo/3.jpg", "photo/299.jpg", "nothing"], vectors=True)
    assert sorted(read) == ["photo/299.jpg", "photo/3.jpg"]
    np.testing.assert_allclose(read["photo/3.jpg"].vector, known[3].vector, atol=1e-6)
    bare = store.get(1, ["photo/3.jpg"])["photo/3.jpg"]
    assert bare == replace(known[3], vector=None)
    assert store.get(1, []) == {}
    everything = {item.id: item for item in store.iterate(1, vectors=True)}
    assert len(everything) == 300
    for item in known:
        np.testing.assert_allclose(everything[item.id].vector, item.vector, atol=1e-6)
        assert replace(everything[item.id], vector=None) == replace(item, vector=None)
    assert all(item.vector is None for item in store.iterate(1))


def test_many_items_are_read_in_parts(store: Store) -> None:
    known = items(2500)
    order = np.random.default_rng(0).permutation(2500).tolist()
    store.put(1, [known[number] for number in order[:1200]])
    store.build_approximate(1)  # Milvus writes its segments down
    store.put(1, [known[number] for number in order[1200:]])
    store.delete(1, [known[number].id for number in order[:100]])
    store.put(1, [replace(known[number], stamp="new") for number in order[1000:1100]])
    read = list(store.iterate(1, vectors=True))
    assert len(read) == 2400
    expected = {known[number].id: number for number in order[100:]}
    assert {item.id for item in read} == set(expected)
    for item in read:
        np.testing.assert_allclose(item.vector, known[expected[item.id]].vector, atol=1e-6)
    assert sum(item.stamp == "new" for item in read) == 100


def test_items_are_replaced_and_removed(store: Store) -> None:
    known = items(40)
    store.put(1, known)
    query = vectors(3, seed=2)
    store.search(1, query, 5)  # what a store keeps in memory must not outlive the change
    changed = [
        replace(item, vector=vector, metadata={"label": "new"}, digest="other")
        for item, vector in zip(known[:10], vectors(10, seed=9), strict=True)
    ]
    store.put(1, changed + items(5, seed=3, start=40))
    now = changed + known[10:] + items(5, seed=3, start=40)
    assert store.count(1) == 45
    _check(store, now, query, 45)
    assert store.delete(1, ["photo/0.jpg", "photo/41.jpg", "nothing"]) == 2
    assert store.delete(1, ["photo/0.jpg"]) == 0
    assert store.delete(1, []) == 0
    now = [item for item in now if item.id not in ("photo/0.jpg", "photo/41.jpg")]
    _check(store, now, query, 100)
    store.put(1, items(2, seed=4, start=90))
    _check(store, now + items(2, seed=4, start=90), query, 100)


def test_a_second_opening_sees_changes_at_once(store: Store, address: str) -> None:
    known = items(20)
    other = open_store(address)
    try:
        store.put(1, known[:10])
        _check(other, known[:10], known[3].vector[None], 3)
        store.put(1, known[10:])
        store.delete(1, [known[0].id])
        _check(other, known[1:], known[3].vector[None], 30)
    finally:
        other.close()


def test_filters_give_full_lists(store: Store) -> None:
    known = items(200)
    odd = 'it\'s "odd" \\ %_ {x} ü$.[0]'
    known += [
        replace(item, metadata={"label": odd, odd: "yes", "year": "2020"}) for item in items(4, seed=5, start=200)
    ]
    store.put(1, known)
    query = vectors(2, seed=6)
    for where, kept in (
        ({"label": "class 1"}, [i for i in known if i.metadata["label"] == "class 1"]),
        ({"label": ["class 1", "class 2"]}, [i for i in known if i.metadata["label"] in ("class 1", "class 2")]),
        ({"label": odd}, known[200:]),
        ({odd: "yes", "year": 2020}, known[200:]),
        ({"label": odd, "year": "2021"}, []),
        ({"nothing": "x"}, []),
        ({"label": []}, []),
        ({}, known),
    ):
        assert store.count(1, clean_where(where)) == len(kept)
        _check(store, kept, query, 50, where=clean_where(where))
    assert store.values(1, "label") == {"class 0": 67, "class 1": 67, "class 2": 66, odd: 4}
    assert list(store.values(1, "label", 2)) == ["class 0", "class 1"]
    assert store.values(1, odd) == {"yes": 4}
    assert store.values(1, "nothing") == {}


def test_ids_are_any_text(store: Store) -> None:
    names = ["a/b.jpg", "ü ß 日本", "'; DROP TABLE items; --", '"', "\\", "%", "ü" * 1024, " ", "1", "01", "\\u0041"]
    names += ["line\nbreak", "tab\t", "\r", "bell\x07", "\x1b[0m", "\x01", "\x7f", "\x85"]
    known = [Item(name, vector, {"same": name}) for name, vector in zip(names, vectors(len(names)), strict=True)]
    store.put(1, known)
    assert sorted(store.get(1, names)) == sorted(names)
    assert {item.id for item in store.iterate(1)} == set(names)
    assert [store.count(1, clean_where({"same": name})) for name in names] == [1] * len(names)
    _check(store, known, vectors(1, seed=1), 20)
    assert store.delete(1, names[2:4] + names[-8:]) == 10
    assert store.count(1) == len(names) - 10
    store.put(1, [Item(name, known[0].vector) for name in ("b", "c", "a")])  # equal vectors come by id
    assert [hit.id for hit in store.search(1, known[0].vector[None], 4)[0]] == sorted([names[0], "a", "b", "c"])


def test_generations_are_apart(store: Store) -> None:
    store.put(1, items(5))
    store.create_generation(2, 4)
    small = items(5, dim=4)
    store.put(2, small[:3])
    assert store.generations() == [1, 2]
    assert (store.count(1), store.count(2)) == (5, 3)
    assert store.search(2, small[1].vector[None], 1)[0][0].id == small[1].id
    store.drop_generation(1)
    assert store.generations() == [2]
    assert store.count(2) == 3
    store.drop_generation(1)
    with pytest.raises(StoreError, match="generation 1"):
        store.count(1)
    with pytest.raises(StoreError, match="generation 1"):
        store.put(1, items(1))
    store.create_generation(1, 8)
    assert store.count(1) == 0


def test_documents(store: Store, address: str) -> None:
    assert store.read_document("settings") is None
    value = {"a": [1, 2.5, None, True], "text": "ü'\"\\", "inner": {"x": {}}}
    store.write_document("settings", value)
    store.write_document("other", {})
    store.write_document("settings", {**value, "more": 1})
    again = open_store(address)
    assert again.read_document("settings") == {**value, "more": 1}
    again.close()
    store.write_document("settings", None)
    assert store.read_document("settings") is None
    assert store.read_document("other") == {}


def test_pictures_live_as_long_as_an_item_needs_them(store: Store) -> None:
    content = bytes(range(256)) * 1000
    one, two, three = items(3)
    store.put(1, [replace(one, digest="d", picture=content), replace(two, digest="d", picture=content), three])
    assert store.picture("d") == content
    assert store.picture("digest2") is None
    store.delete(1, [one.id])
    assert store.picture("d") == content
    store.put(1, [replace(two, digest="e", picture=b"small")])
    assert store.picture("d") is None
    assert store.picture("e") == b"small"
    store.drop_generation(1)
    assert store.picture("e") is None


def test_a_batch_is_put_whole_or_not_at_all(store: Store) -> None:
    known = items(4)
    store.put(1, known[:1])
    for bad, says in (
        (replace(known[3], vector=np.full(8, np.nan, np.float32)), "not finite"),
        (replace(known[3], vector=np.zeros(7, np.float32)), "8 values"),
        (replace(known[3], vector=None), "8 values"),
        (replace(known[3], id=""), "1 to 2,048 bytes"),
        (replace(known[3], id="ü" * 1024 + "x"), "1 to 2,048 bytes"),
        (known[1], "twice"),
    ):
        with pytest.raises(InputError, match=says):
            store.put(1, [*known[1:3], bad])
    assert store.count(1) == 1
    _check(store, known[:1], vectors(1), 5)
    store.put(1, [])
    with pytest.raises(InputError, match="8 dimensions"):
        store.search(1, vectors(1, dim=7), 3)
    with pytest.raises(InputError, match="at least 1"):
        store.search(1, vectors(1), 0)
    with pytest.raises(InputError, match="not finite"):
        store.search(1, np.full((1, 8), np.inf, np.float32), 1)


def test_one_writer_at_a_time(store: Store, address: str) -> None:
    # Milvus has no locks: that one process writes at a time is the operator's task, and only threads take turns.
    other = store if address.startswith("milvus") else open_store(address)

    def write(wait: float) -> None:
        with other.writing(wait):
            assert other.generations() == [1]

    with ThreadPoolExecutor(1) as thread:
        with store.writing(), store.writing():
            with pytest.raises(IndexBusyError, match="writing"):
                thread.submit(write, 0.1).result()
            waiting = thread.submit(write, 60.0)
        waiting.result()
        with store.writing():
            pass
    other.close()


def test_approximate_search_finds_nearly_the_same(store: Store) -> None:
    known = items(600, seed=7)
    store.put(1, known)
    store.build_approximate(1)
    queries = vectors(20, seed=8)

    def recall(now: list[Item], candidates: int = 200) -> float:
        found = store.search(1, queries, 10, approximate=True, candidates=candidates)
        assert [len(hits) for hits in found] == [10] * 20
        exact = [{name for name, _ in _reference(now, query, 10)} for query in queries]
        return float(np.mean([len(e & {h.id for h in hits}) / 10 for e, hits in zip(exact, found, strict=True)]))

    assert recall(known, 10) <= recall(known) > 0.95
    _check(store, known, queries, 10)  # exact search stays exact beside it
    kept = [i for i in known if i.metadata["label"] == "class 1"]
    _check(store, kept, queries, 20, where=clean_where({"label": "class 1"}), approximate=True)
    store.delete(1, [item.id for item in known[:100]])
    new = items(50, seed=9, start=1000)
    store.put(1, new)
    assert recall(known[100:] + new) > 0.95
    (hit,) = store.search(1, new[0].vector[None], 1, approximate=True)[0]
    assert hit.id == new[0].id
    store.drop_approximate(1)
    store.drop_approximate(1)
    _check(store, known[100:] + new, queries, 10, approximate=True)


def test_half_precision(store: Store) -> None:
    try:
        store.create_generation(2, 8, half=True)
    except InputError as error:  # a sentence, and a server that cannot
        assert "half precision" in str(error)  # noqa: PT017
        pytest.skip(str(error))
    known = items(50)
    store.put(2, known)
    halves = [replace(item, vector=item.vector.astype(np.float16).astype(np.float32)) for item in known]
    found = store.search(2, vectors(3, seed=1), 50)
    for query, hits in zip(vectors(3, seed=1), found, strict=True):
        expected = dict(_reference(halves, query, 50))
        assert {hit.id for hit in hits} == set(expected)
        np.testing.assert_allclose([h.similarity for h in hits], [expected[h.id] for h in hits], atol=2e-3)
    read = store.get(2, [known[7].id], vectors=True)[known[7].id]
    np.testing.assert_allclose(read.vector, known[7].vector, atol=1e-3)
