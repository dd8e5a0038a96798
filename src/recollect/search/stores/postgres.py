"""An index in PostgreSQL with the extension pgvector. Needs the extra ``postgres``.

The address is a standard one, ``postgresql://user:password@host/database``, with ``?index=name`` if a database has
several indexes (``recollect`` by default). Each generation is a table. Several processes on several machines may serve one
index. A writer holds an advisory lock, and writes through the session that holds it: when the server ends this session, the
lock and the writing end together.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from recollect.common.errors import ConfigError, InputError, require
from recollect.search.exact import check_queries
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
)

_PAGE = 1000  # items read at a time
_BUILD_MEMORY = 8192  # MB for building an HNSW index, at most


def parse_address(address: str) -> tuple[str, str, str]:
    """The address for libpq, the index's name, and the address without its password."""
    public = re.sub(r"^(\w+://[^:/]*:)[^/]+(?=@)|(password=)[^&]*", r"\1\2...", address)
    place, _, query = address.partition("?")
    options = query.split("&")
    name = next((option[6:] for option in options if option.startswith("index=")), "recollect")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", name):
        raise ConfigError(f"index={name!r}: the name of an index may have at most 41 lower-case letters, digits and _.")
    if place.count("@") > 1 or re.search("%(?![0-9A-Fa-f]{2})", place):  # libpq would show a part of the password
        raise ConfigError(f"{public}: write @ in a name or password as %40, and % as %25.")
    return f"{place}?{'&'.join(option for option in options if option != f'index={name}')}", name, public


class PostgresStore(Store):
    """See ``Store`` for what the methods do."""

    def __init__(self, address: str, create: bool) -> None:
        target, self._name, self.address = parse_address(address)
        psycopg, pool, pgvector, adapters = (
            require(module, "postgres", "an index in PostgreSQL")
            for module in ("psycopg", "psycopg_pool", "pgvector", "pgvector.psycopg")
        )
        self._errors: Any = psycopg.errors
        self._types = {"vector": pgvector.Vector, "halfvec": pgvector.HalfVector}
        self._local = threading.local()
        # Not through the pool, which would wait for a server that cannot be reached, and needs the types of pgvector.
        with self._translate_errors(), psycopg.connect(target, autocommit=True) as session:
            if create:
                # The lock: two processes that create the same index at once would both find nothing, and one would fail.
                session.execute(
                    f"SELECT pg_advisory_xact_lock(hashtextextended('{self._name}', 1));"
                    "CREATE EXTENSION IF NOT EXISTS vector;"
                    f"CREATE TABLE IF NOT EXISTS {self._name}_documents (key text PRIMARY KEY, value jsonb NOT NULL);"
                    f"CREATE TABLE IF NOT EXISTS {self._name}_pictures (digest text PRIMARY KEY, data bytea NOT NULL)"
                )
            elif session.execute("SELECT to_regclass(%s)", (f"{self._name}_documents",)).fetchone() == (None,):
                raise NoIndexError(self.address)
        self._pool = pool.ConnectionPool(
            target,
            kwargs={"autocommit": True},
            min_size=1,
            max_size=8,  # by default a server accepts 100 connections in total
            timeout=10,  # seconds that a search waits for a server that restarts
            configure=adapters.register_vector,
            check=pool.ConnectionPool.check_connection,  # after a restart of the server, all that were open are dead
            open=True,
        )

    @classmethod
    def open(cls, address: str, *, create: bool = False) -> PostgresStore:
        """Open the index of an address."""
        return cls(address, create)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    @contextmanager
    def writing(self, wait: float = 0.0) -> Iterator[None]:
        """Hold the advisory lock of a session, which everything inside the block uses; a session may lock it again."""
        lock = f"hashtextextended('{self._name}', 0)"
        with self._session() as session:
            try:
                milliseconds = max(1, int(min(wait * 1000, 2**31 - 1)))
                session.execute(f"SET LOCAL lock_timeout = {milliseconds}; SELECT pg_advisory_lock({lock})")
            except self._errors.LockNotAvailable:
                raise IndexBusyError(self.address) from None
            try:
                yield
            finally:
                if not session.closed:  # the lock ended with it
                    session.execute(f"SELECT pg_advisory_unlock({lock})")

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A document."""
        rows = self._rows(f"SELECT value FROM {self._name}_documents WHERE key = %s", (key,))
        return rows[0][0] if rows else None

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document in one transaction."""
        with self._session() as session, session.transaction():
            session.execute(f"DELETE FROM {self._name}_documents WHERE key = %s", (key,))
            if value is not None:
                session.execute(f"INSERT INTO {self._name}_documents VALUES (%s, %s)", (key, json.dumps(dict(value))))

    def generations(self) -> list[int]:
        """Numbers of the generations."""
        items = f"relname ~ '^{self._name}_items_[0-9]+$' AND pg_table_is_visible(oid)"
        rows = self._rows(f"SELECT relname FROM pg_class WHERE {items}")
        return sorted(int(row[0].rsplit("_", 1)[1]) for row in rows)

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create the table of a generation."""
        table, kind = self._table(generation), "halfvec" if half else "vector"
        # By default vectors of usual lengths are moved out of the table, and exact search fetches each one separately.
        storage = "PLAIN" if dim * (2 if half else 4) < 7900 else "EXTERNAL"
        with self._session() as session:
            session.execute(
                f'CREATE TABLE {table} (id text COLLATE "C" PRIMARY KEY, digest text NOT NULL, source text NOT NULL, '
                f"stamp text NOT NULL, metadata jsonb NOT NULL, vector {kind}({dim}) NOT NULL);"
                f"ALTER TABLE {table} ALTER COLUMN vector SET STORAGE {storage};"
                f"CREATE INDEX {table}_metadata ON {table} USING gin (metadata jsonb_path_ops);"
                f"CREATE INDEX {table}_digest ON {table} (digest)"
            )

    def drop_generation(self, generation: int) -> None:
        """Remove the table of a generation."""
        with self._session() as session, session.transaction():
            session.execute(f"DROP TABLE IF EXISTS {self._table(generation)}")
            self._forget_pictures(self._rows(f"SELECT digest FROM {self._name}_pictures"))

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add or replace items in one transaction."""
        dim, kind = self._vector_type(generation)
        vectors = check_vectors(items, dim)
        table = self._table(generation)
        rows = [
            (item.id, item.digest, item.source, item.stamp, json.dumps(dict(item.metadata)), self._types[kind](vector))
            for item, vector in zip(items, vectors, strict=True)
        ]
        insert = (
            f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %b) ON CONFLICT (id) DO UPDATE SET digest = excluded.digest, "
            "source = excluded.source, stamp = excluded.stamp, metadata = excluded.metadata, vector = excluded.vector"
        )
        pictures = [(item.digest, item.picture) for item in items if item.picture is not None]
        with self._session() as session, session.transaction(), session.cursor() as cursor:
            replaced = self._rows(f"SELECT digest FROM {table} WHERE id = ANY(%s)", ([item.id for item in items],))
            cursor.executemany(insert, rows)
            cursor.executemany(f"INSERT INTO {self._name}_pictures VALUES (%s, %s) ON CONFLICT DO NOTHING", pictures)
            self._forget_pictures(replaced)

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items in one transaction."""
        query = f"DELETE FROM {self._table(generation)} WHERE id = ANY(%s) RETURNING digest"
        with self._session() as session, session.transaction():
            gone = self._rows(query, (list(ids),))
            self._forget_pictures(gone)
        return len(gone)

    def _forget_pictures(self, digests: list[Any]) -> None:
        """Remove those of these pictures that no item has; ``digests``: rows with one column."""
        if digests:
            used = "".join(
                f" AND NOT EXISTS (SELECT 1 FROM {self._table(number)} AS i WHERE i.digest = p.digest)"
                for number in self.generations()
            )
            query = f"DELETE FROM {self._name}_pictures AS p WHERE digest = ANY(%s){used} RETURNING digest"
            self._rows(query, ([row[0] for row in digests],))

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by id."""
        return {item.id: item for item in self._items(generation, "id = ANY(%s)", (list(ids),), vectors)}

    def picture(self, digest: str) -> bytes | None:
        """A picture by the digest of its bytes."""
        rows = self._rows(f"SELECT data FROM {self._name}_pictures WHERE digest = %s", (digest,))
        return rows[0][0] if rows else None

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items by id, a page at a time."""
        page = self._items(generation, f"true ORDER BY id LIMIT {_PAGE}", (), vectors)
        while page:
            yield from page
            page = self._items(generation, f"id > %s ORDER BY id LIMIT {_PAGE}", (page[-1].id,), vectors)

    def _items(self, generation: int, condition: str, values: Sequence[Any], vectors: bool) -> list[Item]:
        columns = "id, digest, source, stamp, metadata" + ", vector" * vectors
        rows = self._rows(f"SELECT {columns} FROM {self._table(generation)} WHERE {condition}", values)
        return [
            Item(name, vector[0].to_numpy().astype(np.float32) if vector else None, metadata, digest, source, stamp)
            for name, digest, source, stamp, metadata, *vector in rows
        ]

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        condition, values = _condition(where)
        return int(self._rows(f"SELECT count(*) FROM {self._table(generation)} WHERE {condition}", values)[0][0])

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """Most frequent values of a column."""
        query = (
            f'SELECT (metadata->>%s) COLLATE "C", count(*) FROM {self._table(generation)} '
            "WHERE jsonb_exists(metadata, %s) GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT %s"
        )
        return dict(self._rows(query, (column, column, limit)))

    def search(
        self,
        generation: int,
        queries: Vectors,
        k: int,
        where: Where | None = None,
        approximate: bool | None = None,
        candidates: int = 100,
    ) -> list[list[Match]]:
        """Exact search by a scan, or by pgvector's HNSW."""
        dim, kind = self._vector_type(generation)
        vectors = [self._types[kind](row) for row in check_queries(queries, dim, k)]
        condition, values = _condition(where)
        # Ordering ties by id costs nothing in a scan; HNSW can only order by distance, so its ties are sorted here.
        query = (
            f"SELECT id, metadata, vector <#> %b AS distance FROM {self._table(generation)} "
            f"WHERE {condition} ORDER BY {'distance' if approximate else 'distance, id'} LIMIT %s"
        )
        settings = "SET LOCAL enable_indexscan = off; SET LOCAL jit = off"  # compiling costs more than scanning 100,000 vectors
        if approximate:
            # Without the iteration, a filter is applied to the nearest few only, and lists are short or empty.
            settings = (
                "SET LOCAL hnsw.iterative_scan = strict_order; SET LOCAL hnsw.max_scan_tuples = 2000000000;"
                f"SET LOCAL hnsw.ef_search = {min(1000, max(k, candidates))}; SET LOCAL enable_seqscan = off"
            )
        with self._session() as session, session.transaction():
            session.execute(settings)
            answers = [self._rows(query, (vector, *values, k)) for vector in vectors]
        if approximate and any(len(rows) < k for rows in answers):  # a scan ends when it exceeds the server's work_mem
            return self.search(generation, queries, k, where)
        return [in_order([Match(name, -distance, metadata) for name, metadata, distance in rows]) for rows in answers]

    def build_approximate(self, generation: int) -> None:
        """Build pgvector's HNSW."""
        dim, kind = self._vector_type(generation)
        if dim > (2000 if kind == "vector" else 4000):
            raise InputError(
                f"pgvector's HNSW takes at most 2,000 dimensions (4,000 with --half), not {dim:,}: keep fewer with --dim."
            )
        table = self._table(generation)
        # A graph that does not fit into this memory is built on disk, several times slower. PostgreSQL's default is 64 MB.
        memory = min(_BUILD_MEMORY, max(64, self.count(generation) * (dim * 4 + 640) >> 20))
        build = (
            f"SET LOCAL maintenance_work_mem = '{memory}MB'; DROP INDEX IF EXISTS {table}_hnsw; CREATE INDEX {table}_hnsw "
            f"ON {table} USING hnsw (vector {kind}_ip_ops) WITH (m = 16, ef_construction = 128)"
        )
        with self._session() as session:
            try:
                session.execute(build)  # all of it in one transaction
            except self._errors.DiskFull:  # parallel workers lack shared memory, which containers often limit to 64 MB
                session.execute(f"SET LOCAL max_parallel_maintenance_workers = 0; {build}")

    def drop_approximate(self, generation: int) -> None:
        """Remove the HNSW index."""
        with self._session() as session:
            session.execute(f"DROP INDEX IF EXISTS {self._table(generation)}_hnsw")

    def _table(self, generation: int) -> str:
        return f"{self._name}_items_{int(generation)}"

    def _vector_type(self, generation: int) -> tuple[int, str]:
        """Length and type of the vectors."""
        column = f"attname = 'vector' AND attrelid = '{self._table(generation)}'::regclass"
        (row,) = self._rows(f"SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE {column}")
        kind, dim = re.findall(r"(\w+)\((\d+)\)", row[0])[0]
        return int(dim), kind

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._session() as session:
            return list(session.execute(query, values, binary=True).fetchall())

    @contextmanager
    def _session(self) -> Iterator[Any]:
        """A connection of the pool; blocks inside a block of the same thread share it, and so the lock and the transaction."""
        outer = getattr(self._local, "session", None)
        with self._translate_errors(), self._pool.connection() if outer is None else nullcontext(outer) as session:
            self._local.session = session
            try:
                yield session
            finally:
                self._local.session = outer

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn PostgreSQL's errors into messages."""
        try:
            yield
        except self._errors.Error as error:
            says = " ".join(str(error).split()).rstrip(".")
            if isinstance(error, self._errors.UndefinedTable):
                says = re.sub(r'.*_items_(\d+)".*', r"there is no generation \1", says)
            elif error.sqlstate is None:
                says = f"the server cannot be reached ({says})"
            raise StoreError(f"{self.address}: {says}.") from error


def _condition(where: Where | None) -> tuple[str, list[Any]]:
    """A filter as a condition, with its values."""
    # Containment can use the index on metadata; several values become several documents, one of which must be contained.
    documents = [[json.dumps({column: value}) for value in values] for column, values in (where or {}).items()]
    return "true" + " AND metadata @> ANY(%s::jsonb[])" * len(documents), documents
