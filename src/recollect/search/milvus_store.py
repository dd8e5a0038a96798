"""An index in Milvus, one server or a cluster. Needs the extra ``milvus``.

The address is ``milvus://[user:password@]host[:port]/name``, with ``?db=``, ``secure=1`` and ``consistency=Bounded`` as
options. Each generation is a collection; documents and pictures share another one. Searches are strongly consistent unless
the address sets another level: every answer includes everything written before it, at the cost of some milliseconds.

Milvus has no locks. A writer writes a claim that it renews (``milvus_lock``). It has no transactions either: a batch is one
request, and the next call completes the work of a killed writer, because batches are identified by digests.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import InputError
from recollect.common.imports import require
from recollect.search.milvus_lock import WritersClaim
from recollect.search.milvus_rows import (
    brief,
    condition_of,
    decoded,
    encoded,
    item_of,
    parsed,
    picture_rows,
    quoted,
    search_by_reading,
)
from recollect.search.one_writer import OneWriter
from recollect.search.store_protocol import (
    Hit,
    Item,
    NoIndexError,
    StoreError,
    Vectors,
    Where,
    checked_queries,
    checked_vectors,
    in_order,
)

_COLUMNS = ["id", "digest", "source", "stamp", "metadata"]
_PAGE = 1000
_TEXT = 65_535  # Milvus's longest text
_LONGEST = 16_384  # and its longest list of results
_AT_ONCE = 5.0  # seconds; a server that cannot be reached takes longer to find out
_COUNTED = 20_000  # items looked at for the values of a column; Milvus cannot group


def _connected(pymilvus: Any, options: Mapping[str, Any]) -> Any:
    """A client. A server that answers, but turns the connection down at once, is asked again.

    pymilvus pings every 10 s, idle or not; a server that finds this too often (milvus-lite does) closes the connection, and
    one that is opened at that moment fails with it.
    """
    for wait in (1.0, 3.0):
        started = time.monotonic()
        try:
            return pymilvus.MilvusClient(**options)
        except pymilvus.MilvusException:
            if time.monotonic() - started > _AT_ONCE:
                raise
            time.sleep(wait)
    return pymilvus.MilvusClient(**options)


class MilvusStore:
    """See ``recollect.search.store_protocol.Store`` for what the methods do."""

    def __init__(
        self, client: Any, error: type[Exception], types: Any, name: str, address: str, consistency: str
    ) -> None:
        self.address = address
        self._client, self._error, self._types = client, error, types
        self._name, self._consistency = name, consistency
        self._documents = f"{name}_documents"
        self._states: dict[int, tuple[int, bool]] = {}
        claim = WritersClaim(self)
        gone = ", or ended less than a minute ago on another machine"
        self._writer = OneWriter(address, claim.attempt, claim.release, gone)

    @classmethod
    def open(cls, address: str, *, create: bool = False) -> MilvusStore:
        """Open the index of an address."""
        options, name, shown, consistency = parsed(address)
        pymilvus = require("pymilvus", "milvus", "an index in Milvus")
        try:
            client = _connected(pymilvus, options)
        except pymilvus.MilvusException as error:
            raise StoreError(f"{shown}: the server cannot be reached ({brief(error)}).") from error
        store = cls(client, pymilvus.MilvusException, pymilvus.DataType, name, shown, consistency)
        with store._spoken():
            if not client.has_collection(store._documents):
                if not create:
                    client.close()
                    raise NoIndexError(shown)
                store._make(store._documents, [("key", 512), ("value", _TEXT)], 2, False)
        return store

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def writing(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Become the only writer, by a claim among the documents."""
        return self._writer.held(wait)

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A document."""
        rows = self._query(self._documents, f"key == {quoted(key)}", ["value"], 1)
        return dict(json.loads(rows[0]["value"])) if rows else None

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document."""
        with self._spoken():
            if value is None:
                self._client.delete(self._documents, filter=f"key == {quoted(key)}")
                return
            text = json.dumps(dict(value), allow_nan=False)
            if len(text.encode()) > _TEXT:
                raise InputError(
                    f"{self.address}: the document {key!r} is longer than Milvus allows ({_TEXT:,} bytes)."
                )
            self._client.upsert(self._documents, [{"key": key, "value": text, "vector": [0.0, 0.0]}])

    def documents(self, beginning: str) -> dict[str, str]:
        """The documents whose keys start with the prefix, as text."""
        condition = f"key like {quoted(beginning + '%')}"
        return {row["key"]: row["value"] for row in self._pages(self._documents, "key", condition, ["key", "value"])}

    def generations(self) -> list[int]:
        """Numbers of the generations."""
        with self._spoken():
            found = (re.fullmatch(rf"{self._name}_items_(\d+)", name) for name in self._client.list_collections())
            return sorted(int(match[1]) for match in found if match)

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create the collection of a generation."""
        if generation in self.generations():
            raise InputError(f"{self.address}: generation {generation} already exists.")
        columns = [("id", 2048), ("digest", 128), ("source", 8192), ("stamp", 128)]
        too_old = InputError(
            f"{self.address}: this server does not support half precision, which needs Milvus 2.4: remove --half."
        )
        with self._spoken():
            if half and tuple(map(int, re.findall(r"\d+", self._client.get_server_version())[:2])) < (2, 4):
                raise too_old
            try:
                self._make(self._table(generation), columns, dim, half, metadata=True)
            except self._error as error:
                if half and "Float16" in str(error):  # milvus-lite, any version
                    raise too_old from error
                raise
        self._states[generation] = (dim, half)

    def _make(
        self, name: str, columns: Sequence[tuple[str, int]], dim: int, half: bool, metadata: bool = False
    ) -> None:
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        for number, (column, length) in enumerate(columns):
            schema.add_field(column, self._types.VARCHAR, max_length=length, is_primary=number == 0)
        if metadata:
            schema.add_field("metadata", self._types.JSON)
        schema.add_field("vector", self._types.FLOAT16_VECTOR if half else self._types.FLOAT_VECTOR, dim=max(2, dim))
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", metric_type="IP")
        self._client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong")

    def drop_generation(self, generation: int) -> None:
        """Remove the collection of a generation."""
        self._states.pop(generation, None)
        if generation not in self.generations():
            return
        with self._spoken():
            self._client.drop_collection(self._table(generation))
        self.write_document(f"graph:{generation}", None)
        self._forget({key.split(":")[1] for key in self._keys("picture:")})

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add or replace items in one request."""
        dim, half = self._state(generation)
        vectors = checked_vectors(items, dim)
        if not items:
            return
        old = {found.digest for found in self.get(generation, [item.id for item in items]).values()}
        rows = [
            {
                "id": item.id,
                "digest": item.digest,
                "source": item.source,
                "stamp": item.stamp,
                "metadata": encoded(item.metadata),
                "vector": self._row(row, half),
            }
            for item, row in zip(items, vectors, strict=True)
        ]
        parts = [part for item in items if item.picture is not None for part in picture_rows(item.digest, item.picture)]
        with self._spoken():
            # Pictures first: an item must never exist without its picture.
            for start in range(0, len(parts), 200):
                self._client.upsert(self._documents, parts[start : start + 200])
            self._client.upsert(self._table(generation), rows)
        self._forget(old - {item.digest for item in items})

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items."""
        there = self.get(generation, ids)
        for start in range(0, len(there), _PAGE):
            # A filter of our own: the client's delete(ids=…) does not escape quotes.
            some = list(there)[start : start + _PAGE]
            with self._spoken():
                self._client.delete(self._table(generation), filter=f"id in {quoted(some)}")
        if there:
            self._forget({item.digest for item in there.values()})
        return len(there)

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by id."""
        self._state(generation)
        wanted, found = list(dict.fromkeys(ids)), {}
        columns = _COLUMNS + ["vector"] * vectors
        for start in range(0, len(wanted), _PAGE):
            some = wanted[start : start + _PAGE]
            for row in self._query(self._table(generation), f"id in {quoted(some)}", columns, _PAGE):
                found[row["id"]] = item_of(row)
        return found

    def picture(self, digest: str) -> bytes | None:
        """A picture by the digest of its bytes."""
        found = self.documents(f"picture:{digest}:")
        if not found:
            return None
        ordered = sorted(found, key=lambda key: int(key.rsplit(":", 1)[1]))
        return b"".join(base64.b64decode(found[key]) for key in ordered)

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items by id, a page at a time."""
        self._state(generation)
        for row in self._pages(self._table(generation), "id", 'id >= ""', _COLUMNS + ["vector"] * vectors):
            yield item_of(row)

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        self._state(generation)
        condition = condition_of(where)
        if condition is None:
            return 0
        return int(self._query(self._table(generation), condition, ["count(*)"])[0]["count(*)"])

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """Most frequent values of a column among the first 20,000 items."""
        counted: Counter[str] = Counter()
        for number, item in enumerate(self.iterate(generation)):
            if number >= _COUNTED:
                break
            if column in item.metadata:
                counted[item.metadata[column]] += 1
        return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))[:limit])

    def search(
        self, generation: int, queries: Vectors, k: int, where: Where | None = None, approximate: bool = False
    ) -> list[list[Hit]]:
        """Exact search by Milvus's FLAT index, or approximate by its HNSW."""
        dim, half = self._state(generation)
        rows = checked_queries(queries, dim, k)
        condition = condition_of(where)
        if condition is None:
            return [[] for _ in rows]
        built = self._graph(generation)
        if built is not None and not approximate:
            return search_by_reading(self.iterate(generation, vectors=True), rows, k, where)
        with self._spoken():
            found = self._client.search(
                self._table(generation),
                data=[self._row(row, half) for row in rows],
                limit=min(k, _LONGEST),
                filter=condition,
                output_fields=["metadata"],
                search_params={"metric_type": "IP", "params": {} if built is None else {"ef": max(k, built)}},
                consistency_level=self._consistency,
            )
        answers = [
            in_order([Hit(hit["id"], float(hit["distance"]), decoded(hit["entity"]["metadata"])) for hit in hits])
            for hits in found
        ]
        # A short list: there may be no more items, the graph may have found too few under the filter, or k exceeds Milvus's
        # limit. Counting is a separate request that takes as long as the search, so it is sent only now.
        shortest = min((len(hits) for hits in answers), default=k)
        if shortest < k and shortest < self.count(generation, where):
            return search_by_reading(self.iterate(generation, vectors=True), rows, k, where)
        return answers

    def build_approximate(self, generation: int, settings: Mapping[str, int]) -> None:
        """Replace the FLAT index by HNSW."""
        self._state(generation)
        parameters = {"M": int(settings["m"]), "efConstruction": int(settings["ef_construction"])}
        self._reindex(generation, "HNSW", parameters)
        self.widen_approximate(generation, settings["ef_search"])

    def widen_approximate(self, generation: int, ef_search: int) -> None:
        """Change ``ef`` of this generation's searches."""
        self.write_document(f"graph:{generation}", {"ef_search": int(ef_search)})

    def drop_approximate(self, generation: int) -> None:
        """Replace HNSW by the FLAT index; also after a process ended between removing an index and building another."""
        if self._index_type(generation) != "FLAT":
            self._reindex(generation, "FLAT", {})
            self.write_document(f"graph:{generation}", None)

    def _reindex(self, generation: int, kind: str, parameters: Mapping[str, int]) -> None:
        table = self._table(generation)
        with self._spoken():
            self._client.flush(table)
            self._client.release_collection(table)
            if self._index_type(generation) is not None:
                self._client.drop_index(table, "vector")
            index = self._client.prepare_index_params()
            index.add_index("vector", index_type=kind, metric_type="IP", params=dict(parameters))
            self._client.create_index(table, index)
            self._client.load_collection(table)

    def _graph(self, generation: int) -> int | None:
        """``ef_search`` of the HNSW index; None if the index is FLAT."""
        if self._index_type(generation) != "HNSW":
            return None
        return int((self.read_document(f"graph:{generation}") or {"ef_search": 128})["ef_search"])

    def _index_type(self, generation: int) -> str | None:
        with self._spoken():
            found = self._client.describe_index(self._table(generation), "vector")
        return found.get("index_type") if found else None

    def _table(self, generation: int) -> str:
        return f"{self._name}_items_{int(generation)}"

    def _state(self, generation: int) -> tuple[int, bool]:
        if generation not in self._states:
            with self._spoken():
                if not self._client.has_collection(self._table(generation)):
                    raise StoreError(f"{self.address}: there is no generation {generation}.")
                fields = self._client.describe_collection(self._table(generation))["fields"]
            vector = next(field for field in fields if field["name"] == "vector")
            self._states[generation] = (int(vector["params"]["dim"]), vector["type"] == self._types.FLOAT16_VECTOR)
        return self._states[generation]

    def _query(self, table: str, condition: str, columns: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        extra = {} if limit is None else {"limit": limit}
        with self._spoken():
            return list(
                self._client.query(
                    table, filter=condition, output_fields=columns, consistency_level=self._consistency, **extra
                )
            )

    def _pages(self, table: str, by: str, condition: str, columns: list[str]) -> Iterator[dict[str, Any]]:
        """All rows that meet a condition, in parts. ``by`` is the primary key.

        A limited query may give any of the rows that meet its condition, in any order. So keys are read first; where there may
        be more of them than Milvus gives at once, the condition is split at their middle.
        """
        parts: list[tuple[str | None, str | None]] = [(None, None)]
        while parts:
            low, high = parts.pop()
            above = "" if low is None else f" and {by} > {quoted(low)}"
            upto = "" if high is None else f" and {by} <= {quoted(high)}"
            keys = [row[by] for row in self._query(table, condition + above + upto, [by], _LONGEST)]
            if len(keys) == _LONGEST:
                middle = sorted(keys)[len(keys) // 2]
                parts += [(middle, high), (low, middle)]
                continue
            for start in range(0, len(keys), _PAGE):
                yield from self._query(table, f"{by} in {quoted(keys[start : start + _PAGE])}", columns, _PAGE)

    def _keys(self, beginning: str) -> list[str]:
        rows = self._pages(self._documents, "key", f"key like {quoted(beginning + '%')}", ["key"])
        return [row["key"] for row in rows]

    def _forget(self, digests: set[str]) -> None:
        """Remove pictures with these digests that no item has."""
        wanted = {digest for digest in digests if digest and self._keys(f"picture:{digest}:0")}
        for generation in self.generations():
            if wanted:
                rows = self._query(self._table(generation), f"digest in {quoted(sorted(wanted))}", ["digest"], 16_000)
                wanted -= {row["digest"] for row in rows}
        for digest in wanted:
            with self._spoken():
                self._client.delete(self._documents, filter=f"key in {quoted(self._keys(f'picture:{digest}:'))}")

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """Turn Milvus's errors into messages."""
        try:
            yield
        except self._error as error:
            raise StoreError(f"{self.address}: Milvus says: {brief(error)}.") from error

    @staticmethod
    def _row(row: NDArray[np.float32], half: bool) -> Any:
        return row.astype(np.float16) if half else row.tolist()
