"""An index in PostgreSQL with the extension pgvector. Needs the extra ``postgres``.

The address is a standard one, ``postgresql://user:password@host/database``, with ``?index=name`` where a database holds
several indexes (``recollect`` by default). Each generation is a table. Several processes on several machines may serve one
index; an advisory lock, which ends with the connection, excludes other writers.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, InputError
from recollect.common.imports import require
from recollect.search.store_protocol import (
    Hit,
    IndexBusyError,
    Item,
    NoIndexError,
    StoreError,
    Where,
    checked_queries,
    checked_vectors,
    clean_where,
    in_order,
)

_COLUMNS = "id, digest, source, stamp, metadata"
_PAGE = 1000  # items read at a time
_BUILD_MEMORY = 8192  # MB for building an HNSW index, at most
_CONNECTIONS = 8  # per process; by default a server accepts 100 in total


class PostgresStore:
    """See ``recollect.search.store_protocol.Store`` for what the methods do."""

    def __init__(self, target: str, name: str, address: str) -> None:
        self.address = address
        self._psycopg = require("psycopg", "postgres", "an index in PostgreSQL")
        self._target, self._name = target, name
        self._local = threading.local()
        self._idle: list[Any] = []
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._lock_holder: Any = None
        self._writing = threading.RLock()
        self._depth = 0

    @classmethod
    def open(cls, address: str, *, create: bool = False) -> PostgresStore:
        """Open the index of an address."""
        target, name, shown = _parsed(address)
        store = cls(target, name, shown)
        try:
            with store._spoken():
                if create:
                    store._create()
                elif store._one("SELECT to_regclass(%s)", (f"{name}_documents",)) is None:
                    raise NoIndexError(shown)
        except BaseException:
            store.close()
            raise
        return store

    def _create(self) -> None:
        with self._transaction() as db:
            # Two processes that make the same index at once would both find nothing and one would fail.
            db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", (self._name,))
            db.execute("CREATE EXTENSION IF NOT EXISTS vector")
            db.execute(
                f"CREATE TABLE IF NOT EXISTS {self._name}_documents (key text PRIMARY KEY, value jsonb NOT NULL)"
            )
            db.execute(
                f"CREATE TABLE IF NOT EXISTS {self._name}_pictures (digest text PRIMARY KEY, data bytea NOT NULL)"
            )

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()
        if self._lock_holder is not None:
            self._lock_holder.close()
            self._lock_holder = None

    def _connect(self) -> Any:
        return self._psycopg.connect(self._target, autocommit=True)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """A connection for this thread; nested blocks share it, and so the transaction."""
        held = getattr(self._local, "connection", None)
        if held is not None:
            yield held
            return
        with self._slots:
            connection = self._idle.pop() if self._idle else self._connect()
            self._local.connection = connection
            try:
                yield connection
            finally:
                self._local.connection = None
                if not connection.closed:  # as after the server went away
                    self._idle.append(connection)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._spoken(), self._connection() as connection:
            return list(connection.execute(query, values).fetchall())

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """PostgreSQL's errors as sentences."""
        errors = self._psycopg.errors
        try:
            yield
        except errors.DiskFull as error:
            raise StoreError(f"{self.address}: the server's disk is full. What was committed is kept.") from error
        except (errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege) as error:
            raise StoreError(f"{self.address}: may not be changed by this user ({_brief(error)}).") from error
        except errors.FeatureNotSupported as error:
            raise StoreError(f"{self.address}: {_brief(error)}. Is the extension pgvector installed there?") from error
        except self._psycopg.OperationalError as error:
            raise StoreError(f"{self.address}: the server cannot be reached ({_brief(error)}).") from error
        except self._psycopg.Error as error:
            raise StoreError(f"{self.address}: PostgreSQL says: {_brief(error)}.") from error

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with self._spoken(), self._connection() as connection, connection.transaction(), connection.cursor() as cursor:
            yield cursor

    def _one(self, query: str, values: Sequence[Any] = ()) -> Any:
        rows = self._rows(query, values)
        return rows[0][0] if rows else None

    @contextmanager
    def writing(self, wait: float = 0.0) -> Iterator[None]:
        """Become the only writer, by an advisory lock of this session."""
        end = time.monotonic() + wait
        busy = IndexBusyError(
            f"{self.address}: another process is writing to this index. Try again when it is done, or use --wait."
        )
        if not self._writing.acquire(timeout=max(0.0, wait)):
            raise busy
        try:
            lock = "(hashtextextended(%s, 0))"
            if self._depth == 0:
                while not self._locking(f"SELECT pg_try_advisory_lock{lock}"):
                    if time.monotonic() >= end:
                        raise busy
                    time.sleep(0.05)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._locking(f"SELECT pg_advisory_unlock{lock}")
        finally:
            self._writing.release()

    def _locking(self, query: str) -> bool:
        """A lock belongs to a session, so it has its own connection."""
        with self._spoken():
            if self._lock_holder is None or self._lock_holder.closed:
                self._lock_holder = self._connect()
            return bool(self._lock_holder.execute(query, (self._name,)).fetchone()[0])

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A document."""
        found = self._one(f"SELECT value FROM {self._name}_documents WHERE key = %s", (key,))
        return None if found is None else dict(found)

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document."""
        with self._transaction() as db:
            if value is None:
                db.execute(f"DELETE FROM {self._name}_documents WHERE key = %s", (key,))
                return
            db.execute(
                f"INSERT INTO {self._name}_documents VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, json.dumps(dict(value), allow_nan=False)),
            )

    def generations(self) -> list[int]:
        """Numbers of the generations."""
        rows = self._rows(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ %s AND pg_table_is_visible(oid)",
            (f"^{self._name}_items_[0-9]+$",),
        )
        return sorted(int(row[0].rsplit("_", 1)[1]) for row in rows)

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Make the table of a generation."""
        if generation in self.generations():
            raise InputError(f"{self.address}: generation {generation} exists already.")
        table = self._table(generation)
        with self._transaction() as db:
            db.execute(
                f'CREATE TABLE {table} (id text COLLATE "C" PRIMARY KEY, digest text NOT NULL, source text NOT NULL, '
                f"stamp text NOT NULL, metadata jsonb NOT NULL, vector {'halfvec' if half else 'vector'}({dim}) NOT NULL)"
            )
            # Vectors of usual lengths would be moved out of the table, and exact search would fetch each by itself.
            db.execute(f"ALTER TABLE {table} ALTER COLUMN vector SET STORAGE PLAIN" if dim * (2 if half else 4) < 7900
                       else f"ALTER TABLE {table} ALTER COLUMN vector SET STORAGE EXTERNAL")  # fmt: skip
            db.execute(f"CREATE INDEX {table}_metadata ON {table} USING gin (metadata jsonb_path_ops)")
            db.execute(f"CREATE INDEX {table}_digest ON {table} (digest)")

    def drop_generation(self, generation: int) -> None:
        """Remove the table of a generation."""
        with self._transaction() as db:
            db.execute(f"DROP TABLE IF EXISTS {self._table(generation)}")
        with self._transaction() as db:
            db.execute(f"DELETE FROM {self._name}_pictures AS p WHERE {self._unused()}")

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add or replace items in one transaction."""
        dim, half = self._state(generation)
        vectors = checked_vectors(items, dim)
        if not items:
            return
        table = self._table(generation)
        with self._transaction() as db:
            old = db.execute(
                f"SELECT DISTINCT digest FROM {table} WHERE id = ANY(%s)", ([i.id for i in items],)
            ).fetchall()
            kind = "halfvec" if half else "vector"
            query = (
                f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s::{kind}) ON CONFLICT (id) DO UPDATE SET digest = "
                "excluded.digest, source = excluded.source, stamp = excluded.stamp, metadata = excluded.metadata, "
                "vector = excluded.vector"
            )
            db.executemany(
                query,
                [
                    (i.id, i.digest, i.source, i.stamp, json.dumps(dict(i.metadata), ensure_ascii=False), _text(row))
                    for i, row in zip(items, vectors, strict=True)
                ],
            )
            pictures = [(i.digest, i.picture) for i in items if i.picture is not None]
            db.executemany(f"INSERT INTO {self._name}_pictures VALUES (%s, %s) ON CONFLICT DO NOTHING", pictures)
            self._forget(db, [row[0] for row in old])

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items in one transaction."""
        self._state(generation)
        with self._transaction() as db:
            gone = db.execute(
                f"DELETE FROM {self._table(generation)} WHERE id = ANY(%s) RETURNING digest", (list(ids),)
            ).fetchall()
            self._forget(db, [row[0] for row in gone])
        return len(gone)

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by id."""
        self._state(generation)
        query = f"SELECT {_COLUMNS}{_vector(vectors)} FROM {self._table(generation)} WHERE id = ANY(%s)"
        return {row[0]: _item(row) for row in self._rows(query, (list(ids),))}

    def picture(self, digest: str) -> bytes | None:
        """A picture by the digest of its bytes."""
        found = self._one(f"SELECT data FROM {self._name}_pictures WHERE digest = %s", (digest,))
        return None if found is None else bytes(found)

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items by id, a page at a time."""
        self._state(generation)
        last = ""
        query = f"SELECT {_COLUMNS}{_vector(vectors)} FROM {self._table(generation)} WHERE id > %s ORDER BY id LIMIT {_PAGE}"
        while True:
            rows = self._rows(query, (last,))
            for row in rows:
                yield _item(row)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        self._state(generation)
        condition, values = _condition(where)
        return int(self._one(f"SELECT count(*) FROM {self._table(generation)} WHERE true{condition}", values))

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """Most frequent values of a column."""
        self._state(generation)
        query = (
            f"SELECT value, times FROM (SELECT metadata->>%s AS value, count(*) AS times FROM {self._table(generation)} "
            'WHERE jsonb_exists(metadata, %s) GROUP BY 1) AS counted ORDER BY times DESC, value COLLATE "C" LIMIT %s'
        )
        return dict(self._rows(query, (column, column, limit)))

    def search(
        self,
        generation: int,
        queries: NDArray[np.float32],
        k: int,
        where: Where | None = None,
        approximate: bool = False,
    ) -> list[list[Hit]]:
        """Exact search by a scan, or by pgvector's HNSW."""
        dim, half = self._state(generation)
        rows = checked_queries(queries, dim, k)
        condition, values = _condition(where)
        kind = "halfvec" if half else "vector"
        # Ties by id cost nothing in a scan; HNSW can only give the order of distances, so its ties are settled here.
        order = "distance" if approximate else 'distance, id COLLATE "C"'
        query = (
            f"SELECT id, metadata, vector <#> %s::{kind} AS distance FROM {self._table(generation)} "
            f"WHERE true{condition} ORDER BY {order} LIMIT %s"
        )
        found = []
        with self._transaction() as db:
            if approximate:
                # Without the first, a filter is applied to the nearest few only and lists come back short or empty.
                db.execute("SET LOCAL hnsw.iterative_scan = strict_order")
                db.execute("SET LOCAL hnsw.max_scan_tuples = 2000000000")
                db.execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(k, self._ef_search(generation)))}")
                db.execute("SET LOCAL enable_seqscan = off")
            else:
                db.execute("SET LOCAL enable_indexscan = off")
                db.execute("SET LOCAL jit = off")  # compiling costs more than a scan of 100,000 vectors
            for row in rows:
                db.execute(query, (_text(row), *values, k))
                found.append([Hit(name, -distance, metadata) for name, metadata, distance in db.fetchall()])
        return [in_order(hits) for hits in found]

    def build_approximate(self, generation: int, settings: Mapping[str, int]) -> None:
        """Build pgvector's HNSW."""
        dim, half = self._state(generation)
        longest = 4000 if half else 2000
        if dim > longest:
            raise InputError(
                f"pgvector's HNSW takes at most {longest} dimensions here, and the vectors have {dim}: keep fewer with --dim"
                f"{'' if half else ' or use --half'}."
            )
        table, kind = self._table(generation), "halfvec" if half else "vector"
        options = f"m = {int(settings['m'])}, ef_construction = {max(2 * int(settings['m']), int(settings['ef_construction']))}"
        # A graph that does not fit into this memory is built on disk, several times slower. PostgreSQL's default is 64 MB.
        needed = self.count(generation) * (dim * (2 if half else 4) + 24 * int(settings["m"]) + 256) >> 20
        memory = f"SET LOCAL maintenance_work_mem = '{min(_BUILD_MEMORY, max(64, needed))}MB'"
        for parallel in (True, False):
            try:
                with self._transaction() as db:
                    db.execute(memory)
                    if not parallel:
                        db.execute("SET LOCAL max_parallel_maintenance_workers = 0")
                    db.execute(f"DROP INDEX IF EXISTS {table}_hnsw")
                    db.execute(
                        f"CREATE INDEX {table}_hnsw ON {table} USING hnsw (vector {kind}_ip_ops) WITH ({options})"
                    )
                    db.execute(f"COMMENT ON INDEX {table}_hnsw IS 'ef_search={int(settings['ef_search'])}'")
                return
            except StoreError as error:
                # Parallel workers use shared memory, which containers often limit to 64 MB.
                if not parallel or not isinstance(error.__cause__, self._psycopg.errors.DiskFull):
                    raise

    def drop_approximate(self, generation: int) -> None:
        """Remove the HNSW index."""
        with self._transaction() as db:
            db.execute(f"DROP INDEX IF EXISTS {self._table(generation)}_hnsw")

    def _ef_search(self, generation: int) -> int:
        comment = self._one("SELECT obj_description(to_regclass(%s))", (f"{self._table(generation)}_hnsw",))
        found = re.fullmatch(r"ef_search=(\d+)", comment or "")
        return int(found[1]) if found else 100

    def _table(self, generation: int) -> str:
        return f"{self._name}_items_{int(generation)}"

    def _state(self, generation: int) -> tuple[int, bool]:
        """Length of the vectors, and whether they are kept in half precision."""
        kind = self._one(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'vector'",
            (self._table(generation),),
        )
        if kind is None:
            raise StoreError(f"{self.address}: there is no generation {generation}.")
        return int(re.sub(r"\D", "", kind)), "halfvec" in kind

    def _unused(self) -> str:
        """The condition that no generation has an item with the picture ``p``."""
        return " AND ".join(
            [
                "true",
                *(
                    f"NOT EXISTS (SELECT 1 FROM {self._table(g)} AS i WHERE i.digest = p.digest)"
                    for g in self.generations()
                ),
            ]
        )

    def _forget(self, db: Any, digests: Sequence[str]) -> None:
        if digests:
            db.execute(
                f"DELETE FROM {self._name}_pictures AS p WHERE digest = ANY(%s) AND {self._unused()}", (list(digests),)
            )


def _parsed(address: str) -> tuple[str, str, str]:
    """Arguments for libpq, the index's name, and the address without its password."""
    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query))
    name = options.pop("index", "recollect")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", name):
        raise ConfigError(f"index={name!r}: the name of an index is made of small letters, digits and _, at most 41.")
    shown = dict(parse_qsl(parts.query))
    if "password" in shown:
        shown["password"] = "..."
    place = parts.netloc
    if parts.password is not None:
        place = place.replace(f":{parts.password}@", ":...@") if parts.password else place
    # A socket's folder keeps its slashes: people read the address.
    return (
        urlunsplit(parts._replace(query=urlencode(options, safe="/"))),
        name,
        urlunsplit(parts._replace(netloc=place, query=urlencode(shown, safe="/"))),
    )


def _condition(where: Where | None) -> tuple[str, list[Any]]:
    sql, values = "", []
    for column, wanted in clean_where(where).items():
        # Containment can use the index on metadata; several values become several documents, one of which must be contained.
        sql += " AND metadata @> ANY(%s::jsonb[])"
        values.append([json.dumps({column: value}, ensure_ascii=False) for value in wanted])
    return sql, values


def _text(row: NDArray[np.float32]) -> str:
    # Nine digits: a float32 comes back as it went.
    return "[" + ",".join(f"{value:.9g}" for value in row.tolist()) + "]"


def _vector(wanted: bool) -> str:
    return ", vector::text" if wanted else ""


def _item(row: Sequence[Any]) -> Item:
    name, digest, source, stamp, metadata, *rest = row
    vector = np.fromstring(rest[0][1:-1], np.float32, sep=",") if rest else None
    return Item(name, vector, metadata, digest, source, stamp)


def _brief(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")
