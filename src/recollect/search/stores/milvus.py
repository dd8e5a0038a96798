"""An index in Milvus, one server or a cluster. Needs the extra ``milvus``.

The address is ``milvus://[user:password@]host[:port]/name``, with ``?db=``, ``secure=1`` and ``consistency=Bounded`` as
options. Each generation is a collection; documents and pictures share another one. Searches are strongly consistent unless
the address sets another level: every answer includes everything written before it, at the cost of some milliseconds.

Milvus has no locks: ``writing`` separates the threads of this process only, and that one process writes at a time is the
operator's task. It has no transactions either: a batch is one request. Items are added and removed by their ids, so the next
call completes the work of a killed writer.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, unquote

import numpy as np

from recollect.common.errors import ConfigError, InputError, require
from recollect.search.exact import check_queries, nearest_unchecked
from recollect.search.stores.base import (
    IndexBusyError,
    Item,
    Match,
    NoIndexError,
    Store,
    StoreError,
    Vectors,
    Where,
    check_vectors,
    in_order,
    matches_of,
)

_COLUMNS = ["id", "digest", "source", "stamp", "metadata"]
_PAGE = 1000
_LONGEST = 16_384  # Milvus's longest list of results
_PLACE = r"\w+://(?:([^:@/]*)(?::([^@/]*))?@)?(\[[^]/]+\]|[^][:@/]+)(?::(\d+))?/([A-Za-z_]\w{0,200})"


def parse_address(address: str) -> tuple[dict[str, Any], str, str, str]:
    """Arguments of the client, the index's name, the address without its password, the consistency of reads."""
    public = re.sub(r"^(\w+://[^:/]*:)[^/]+(?=@)", r"\1...", address)
    place, _, query = address.partition("?")
    parts, options = re.fullmatch(_PLACE, place), dict(parse_qsl(query))
    if not parts or options.keys() - {"db", "secure", "consistency"}:
        raise ConfigError(
            f"{public}: give an index in Milvus as milvus://host:19530/name; its options are db, secure and consistency."
        )
    user, password, host, port, name = parts.groups()
    scheme = "https" if options.get("secure") in ("1", "true") else "http"
    token = f"{unquote(user)}:{unquote(password or '')}" if user else ""
    arguments = {"uri": f"{scheme}://{host}:{port or 19530}", "token": token, "db_name": options.get("db", "")}
    return arguments, name, public, options.get("consistency", "Strong")


class MilvusStore(Store):
    """See ``Store`` for what the methods do."""

    def __init__(self, address: str, create: bool) -> None:
        arguments, self._name, self.address, self._consistency = parse_address(address)
        self._milvus: Any = require("pymilvus", "milvus", "an index in Milvus")
        self._documents = f"{self._name}_documents"
        self._writer = threading.RLock()
        pings = {"grpc.keepalive_time_ms": 300_000}  # the default, 10 s, makes milvus-lite close the connection
        self._client = self._call(self._milvus.MilvusClient, **arguments, grpc_options=pings)
        if not self._call(self._client.has_collection, self._documents):
            if not create:
                raise NoIndexError(self.address)
            self._make(self._documents, {"key": 512, "value": 65_535}, 2)

    @classmethod
    def open(cls, address: str, *, create: bool = False) -> MilvusStore:
        """Open the index of an address."""
        return cls(address, create)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @contextmanager
    def writing(self, wait: float = 0.0) -> Iterator[None]:
        """Exclude the other threads that use this store; not other processes."""
        if not self._writer.acquire(timeout=max(0.0, wait)):
            raise IndexBusyError(self.address, "thread")
        try:
            yield
        finally:
            self._writer.release()

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A document."""
        rows = self._query(self._documents, f"key == {_quote(key)}", ["value"], 1)
        return dict(json.loads(rows[0]["value"])) if rows else None

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document."""
        if value is None:
            self._call(self._client.delete, self._documents, filter=f"key == {_quote(key)}")
        else:
            self._put_texts({key: json.dumps(dict(value), allow_nan=False)})

    def generations(self) -> list[int]:
        """Numbers of the generations."""
        names = [re.fullmatch(rf"{self._name}_items_(\d+)", name) for name in self._call(self._client.list_collections)]
        return sorted(int(name[1]) for name in names if name)

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create the collection of a generation."""
        # Milvus 2.3 takes such vectors, and gives wrong similarities.
        if half and re.match(r"milvus_lite|v?2\.3", version := self._call(self._client.get_server_version)):
            raise InputError(f"{self.address}: half precision needs Milvus 2.4, but this is {version}: remove --half.")
        self._make(self._table(generation), {"id": 2048, "digest": 128, "source": 8192, "stamp": 128}, dim, half)

    def _make(self, table: str, lengths: Mapping[str, int], dim: int, half: bool = False) -> None:
        """Create a collection with these columns of text, the first one as its key, and vectors."""
        types = self._milvus.DataType
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        for column, length in lengths.items():
            schema.add_field(column, types.VARCHAR, max_length=length, is_primary=column in ("id", "key"))
        if table != self._documents:
            schema.add_field("metadata", types.JSON)
        schema.add_field("vector", types.FLOAT16_VECTOR if half else types.FLOAT_VECTOR, dim=dim)
        self._call(self._client.create_collection, table, schema=schema, consistency_level="Strong")
        self._build_index(table, "FLAT")

    def drop_generation(self, generation: int) -> None:
        """Remove the collection of a generation."""
        self._call(self._client.drop_collection, self._table(generation))
        pictures = self._pages(self._documents, "key", 'key like "picture:%"', ["key"])
        self._forget_pictures({row["key"].split(":")[1] for row in pictures})

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add or replace items in one request."""
        dim, dtype = self._vector_type(generation)
        vectors = check_vectors(items, dim).astype(dtype)
        replaced = {item.digest for item in self.get(generation, [item.id for item in items]).values()}
        rows = []
        for item, vector in zip(items, vectors, strict=True):
            metadata = {_column(name): value for name, value in item.metadata.items()}
            rows.append({**{name: getattr(item, name) for name in _COLUMNS}, "metadata": metadata, "vector": vector})
            # Before the item, which must never exist without its picture. A text has at most 65,535 characters.
            text = base64.b64encode(item.picture or b"").decode()
            self._put_texts({f"picture:{item.digest}:{n}": part for n, part in enumerate(_batches(text, 60_000))})
        self._call(self._client.upsert, self._table(generation), rows)
        self._forget_pictures(replaced - {item.digest for item in items})

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items."""
        items = self.get(generation, ids)
        for batch in _batches(list(items)):
            # A filter of our own: the client's delete(ids=…) does not escape quotes.
            self._call(self._client.delete, self._table(generation), filter=f"id in {_quote(batch)}")
        self._forget_pictures({item.digest for item in items.values()})
        return len(items)

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by id."""
        rows = self._rows(self._table(generation), "id", list(ids), _COLUMNS + ["vector"] * vectors)
        return {row["id"]: _item(row) for row in rows}

    def picture(self, digest: str) -> bytes | None:
        """A picture by the digest of its bytes."""
        rows = self._pages(self._documents, "key", f"key like {_quote(f'picture:{digest}:%')}", ["key", "value"])
        parts = {int(row["key"].rsplit(":", 1)[1]): row["value"] for row in rows}
        return base64.b64decode("".join(parts[number] for number in sorted(parts))) if parts else None

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items by id, a page at a time."""
        return map(_item, self._pages(self._table(generation), "id", 'id >= ""', _COLUMNS + ["vector"] * vectors))

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        return int(self._query(self._table(generation), _condition(where), ["count(*)"])[0]["count(*)"])

    def search(
        self,
        generation: int,
        queries: Vectors,
        k: int,
        where: Where | None = None,
        approximate: bool | None = None,
        candidates: int = 100,
    ) -> list[list[Match]]:
        """Exact search by Milvus's FLAT index, or approximate by its HNSW."""
        dim, dtype = self._vector_type(generation)
        queries = check_queries(queries, dim, k)
        graph = self._index_type(generation) == "HNSW"
        if graph and not approximate:
            return self._search_by_reading(generation, queries, k, where)
        answers = self._call(
            self._client.search,
            self._table(generation),
            data=list(queries.astype(dtype)),
            limit=min(k, _LONGEST),
            filter=_condition(where),
            output_fields=["metadata"],
            search_params={"metric_type": "IP", "params": {"ef": max(k, candidates)} if graph else {}},
            consistency_level=self._consistency,
        )
        best = [
            in_order(Match(row["id"], row["distance"], _metadata(row["entity"])) for row in rows) for rows in answers
        ]
        # A short list: there may be no more items, the graph may have found too few under the filter, or k exceeds Milvus's
        # limit. Counting is a separate request that takes as long as the search, so it is sent only now.
        if any(len(matches) < k for matches in best) and min(map(len, best)) < self.count(generation, where):
            return self._search_by_reading(generation, queries, k, where)
        return best

    def _search_by_reading(self, generation: int, queries: Vectors, k: int, where: Where | None) -> list[list[Match]]:
        """Exact search over all items, in bounded memory: with an HNSW index, Milvus itself cannot search exactly."""
        best: list[list[Match]] = [[] for _ in queries]
        items = map(_item, self._pages(self._table(generation), "id", _condition(where), [*_COLUMNS, "vector"]))
        while page := list(islice(items, 8192)):
            vectors = np.stack([item.vector for item in page if item.vector is not None])
            neighbours = nearest_unchecked(queries, vectors, min(k, len(page)))
            more = matches_of(neighbours, lambda row, page=page: (page[row].id, page[row].metadata))  # type: ignore[misc]
            best = [in_order([*old, *new])[:k] for old, new in zip(best, more, strict=True)]
        return best

    def build_approximate(self, generation: int) -> None:
        """Replace the FLAT index by HNSW."""
        self._replace_index(generation, "HNSW", M=16, efConstruction=128)

    def drop_approximate(self, generation: int) -> None:
        """Replace HNSW by the FLAT index; also after a process ended between removing an index and building another."""
        if self._index_type(generation) != "FLAT":
            self._replace_index(generation, "FLAT")

    def _replace_index(self, generation: int, kind: str, **parameters: int) -> None:
        table = self._table(generation)
        self._call(self._client.flush, table)
        self._call(self._client.release_collection, table)
        if self._index_type(generation) is not None:
            self._call(self._client.drop_index, table, "vector")
        self._build_index(table, kind, **parameters)

    def _build_index(self, table: str, kind: str, **parameters: int) -> None:
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type=kind, metric_type="IP", params=parameters)
        self._call(self._client.create_index, table, index)
        self._call(self._client.load_collection, table)

    def _index_type(self, generation: int) -> str | None:
        return (self._call(self._client.describe_index, self._table(generation), "vector") or {}).get("index_type")

    def _table(self, generation: int) -> str:
        return f"{self._name}_items_{int(generation)}"

    def _vector_type(self, generation: int) -> tuple[int, type[np.floating]]:
        """Length and type of the vectors."""
        fields = self._call(self._client.describe_collection, self._table(generation))["fields"]
        vector = next(field for field in fields if field["name"] == "vector")
        half = vector["type"] == self._milvus.DataType.FLOAT16_VECTOR
        return int(vector["params"]["dim"]), np.float16 if half else np.float32

    def _query(self, table: str, condition: str, columns: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        options = {"limit": limit, "consistency_level": self._consistency}
        return list(self._call(self._client.query, table, filter=condition, output_fields=columns, **options))

    def _rows(self, table: str, by: str, keys: Sequence[str], columns: list[str]) -> Iterator[dict[str, Any]]:
        """The rows with these primary keys ``by``."""
        for batch in _batches(keys):
            yield from self._query(table, f"{by} in {_quote(batch)}", columns, _PAGE)

    def _pages(self, table: str, by: str, condition: str, columns: list[str]) -> Iterator[dict[str, Any]]:
        """All rows that meet a condition, in parts. ``by`` is the primary key.

        A limited query may give any of the rows that meet its condition, in any order. So keys are read first; where there may
        be more of them than Milvus gives at once, the condition is split at their middle.
        """
        keys = [row[by] for row in self._query(table, condition, [by], _LONGEST)]
        if len(keys) < _LONGEST:
            yield from self._rows(table, by, keys, columns)
            return
        middle = _quote(sorted(keys)[len(keys) // 2])
        for half in (f"{by} <= {middle}", f"{by} > {middle}"):
            yield from self._pages(table, by, f"{condition} and {half}", columns)

    def _put_texts(self, texts: Mapping[str, str]) -> None:
        rows = [{"key": key, "value": text, "vector": [0.0, 0.0]} for key, text in texts.items()]
        for batch in _batches(rows, 200):
            self._call(self._client.upsert, self._documents, batch)

    def _forget_pictures(self, digests: set[str]) -> None:
        """Remove pictures with these digests that no item has."""
        first = [f"picture:{digest}:0" for digest in digests]
        unused = {row["key"].split(":")[1] for row in self._rows(self._documents, "key", first, ["key"])}
        for generation in self.generations():
            for batch in _batches(sorted(unused)):
                rows = self._pages(self._table(generation), "id", f"digest in {_quote(batch)}", ["digest"])
                unused -= {row["digest"] for row in rows}
        for digest in unused:
            self._call(self._client.delete, self._documents, filter=f"key like {_quote(f'picture:{digest}:%')}")

    def _call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function of the client; its errors become messages."""
        try:
            return function(*arguments, **options)
        except self._milvus.MilvusException as error:
            problem = "the server cannot be reached" if error.code == 2 else "Milvus says"
            says = f"{problem}: {' '.join(str(error.message).split())[:300].rstrip('.')}"
            if error.code == 100:
                says = f"there is no {re.sub(r'.*_items_', 'generation ', arguments[0])}"
            raise StoreError(f"{self.address}: {says}.") from error


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r"})  # not JSON's: servers differ on \u0007


def _quote(value: str | Sequence[str]) -> str:
    """A text or a list of them in an expression."""
    if not isinstance(value, str):
        return f"[{', '.join(map(_quote, value))}]"
    return f'"{value.translate(_ESCAPES)}"'


def _column(name: str) -> str:
    """A metadata column as an expression can name it: an unusual one in hexadecimal."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"0x{name.encode().hex()}"


def _metadata(row: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a row, with the names of its columns as they were before ``_column``."""
    columns = row["metadata"].items()
    return {bytes.fromhex(name[2:]).decode() if name.startswith("0x") else name: value for name, value in columns}


def _condition(where: Where | None) -> str:
    """A filter as an expression."""
    parts = ['id >= ""']
    for column, values in (where or {}).items():
        field = f"metadata[{_quote(_column(column))}]"
        parts.append("(" + " or ".join([f"{field} == {_quote(value)}" for value in values] or ['id == ""']) + ")")
    return " and ".join(parts)


def _item(row: Mapping[str, Any]) -> Item:
    """An item from a row of its collection."""
    vector = row.get("vector")
    if vector is not None:
        halves = isinstance(vector[0], bytes)
        vector = np.asarray(np.frombuffer(vector[0], np.float16) if halves else vector, np.float32)
    return Item(row["id"], vector, _metadata(row), row["digest"], row["source"], row["stamp"])


def _batches(entries: Sequence[Any], size: int = _PAGE) -> Iterator[Any]:
    return (entries[start : start + size] for start in range(0, len(entries), size))
