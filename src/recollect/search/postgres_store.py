"""An index in PostgreSQL with the extension pgvector. Needs the extra ``postgres``.

The address is a standard one, ``postgresql://user:password@host/database``, with ``?index=name`` if a database has
several indexes (``recollect`` by default). Each generation is a table. Several processes on several machines may serve one
index; an advisory lock, which ends with the connection, excludes other writers. Connections: ``postgres_server``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from recollect.common.errors import InputError
from recollect.search.one_writer import OneWriter
from recollect.search.postgres_rows import columns, condition_of, item_of, parsed, row_of, vector_text, vector_type
from recollect.search.postgres_server import PostgresServer
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

_PAGE = 1000  # items read at a time
_BUILD_MEMORY = 8192  # MB for building an HNSW index, at most


class PostgresStore:
    """See ``recollect.search.store_protocol.Store`` for what the methods do."""

    def __init__(self, server: PostgresServer, name: str, address: str) -> None:
        self.address = address
        self._server, self._name = server, name
        self._writer = OneWriter(address, partial(server.try_lock, name), partial(server.unlock, name))

    @classmethod
    def open(cls, address: str, *, create: bool = False) -> PostgresStore:
        """Open the index of an address."""
        target, name, shown = parsed(address)
        server = PostgresServer(target, shown)
        store = cls(server, name, shown)
        try:
            if create:
                store._create()
            elif server.one("SELECT to_regclass(%s)", (f"{name}_documents",)) is None:
                raise NoIndexError(shown)
        except BaseException:
            store.close()
            raise
        return store

    def _create(self) -> None:
        with self._server.transaction() as db:
            # Two processes that create the same index at once would both find nothing, and one would fail.
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
        self._server.close()

    def writing(self, wait: float = 0.0) -> AbstractContextManager[None]:
        """Become the only writer, by an advisory lock of this session."""
        return self._writer.held(wait)

    def read_document(self, key: str) -> dict[str, Any] | None:
        """A document."""
        found = self._server.one(f"SELECT value FROM {self._name}_documents WHERE key = %s", (key,))
        return None if found is None else dict(found)

    def write_document(self, key: str, value: Mapping[str, Any] | None) -> None:
        """Replace a document."""
        with self._server.transaction() as db:
            if value is None:
                db.execute(f"DELETE FROM {self._name}_documents WHERE key = %s", (key,))
                return
            db.execute(
                f"INSERT INTO {self._name}_documents VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (key, json.dumps(dict(value), allow_nan=False)),
            )

    def generations(self) -> list[int]:
        """Numbers of the generations."""
        rows = self._server.rows(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ %s AND pg_table_is_visible(oid)",
            (f"^{self._name}_items_[0-9]+$",),
        )
        return sorted(int(row[0].rsplit("_", 1)[1]) for row in rows)

    def create_generation(self, generation: int, dim: int, half: bool = False) -> None:
        """Create the table of a generation."""
        if generation in self.generations():
            raise InputError(f"{self.address}: generation {generation} already exists.")
        table = self._table(generation)
        with self._server.transaction() as db:
            db.execute(
                f'CREATE TABLE {table} (id text COLLATE "C" PRIMARY KEY, digest text NOT NULL, source text NOT NULL, '
                f"stamp text NOT NULL, metadata jsonb NOT NULL, vector {vector_type(half)}({dim}) NOT NULL)"
            )
            # Otherwise vectors of usual lengths are moved out of the table, and exact search fetches each one separately.
            db.execute(f"ALTER TABLE {table} ALTER COLUMN vector SET STORAGE PLAIN" if dim * (2 if half else 4) < 7900
                       else f"ALTER TABLE {table} ALTER COLUMN vector SET STORAGE EXTERNAL")  # fmt: skip
            db.execute(f"CREATE INDEX {table}_metadata ON {table} USING gin (metadata jsonb_path_ops)")
            db.execute(f"CREATE INDEX {table}_digest ON {table} (digest)")

    def drop_generation(self, generation: int) -> None:
        """Remove the table of a generation."""
        with self._server.transaction() as db:
            db.execute(f"DROP TABLE IF EXISTS {self._table(generation)}")
        with self._server.transaction() as db:
            db.execute(f"DELETE FROM {self._name}_pictures AS p WHERE {self._unused()}")

    def put(self, generation: int, items: Sequence[Item]) -> None:
        """Add or replace items in one transaction."""
        dim, half = self._state(generation)
        vectors = checked_vectors(items, dim)
        if not items:
            return
        table = self._table(generation)
        with self._server.transaction() as db:
            old = db.execute(
                f"SELECT DISTINCT digest FROM {table} WHERE id = ANY(%s)", ([i.id for i in items],)
            ).fetchall()
            query = (
                f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s::{vector_type(half)}) ON CONFLICT (id) DO UPDATE SET "
                "digest = excluded.digest, source = excluded.source, stamp = excluded.stamp, metadata = excluded.metadata, "
                "vector = excluded.vector"
            )
            db.executemany(query, [row_of(item, vector) for item, vector in zip(items, vectors, strict=True)])
            pictures = [(i.digest, i.picture) for i in items if i.picture is not None]
            db.executemany(f"INSERT INTO {self._name}_pictures VALUES (%s, %s) ON CONFLICT DO NOTHING", pictures)
            self._forget(db, [row[0] for row in old])

    def delete(self, generation: int, ids: Sequence[str]) -> int:
        """Remove items in one transaction."""
        self._state(generation)
        with self._server.transaction() as db:
            gone = db.execute(
                f"DELETE FROM {self._table(generation)} WHERE id = ANY(%s) RETURNING digest", (list(ids),)
            ).fetchall()
            self._forget(db, [row[0] for row in gone])
        return len(gone)

    def get(self, generation: int, ids: Sequence[str], *, vectors: bool = False) -> dict[str, Item]:
        """Items by id."""
        self._state(generation)
        query = f"SELECT {columns(vectors)} FROM {self._table(generation)} WHERE id = ANY(%s)"
        return {row[0]: item_of(row) for row in self._server.rows(query, (list(ids),))}

    def picture(self, digest: str) -> bytes | None:
        """A picture by the digest of its bytes."""
        found = self._server.one(f"SELECT data FROM {self._name}_pictures WHERE digest = %s", (digest,))
        return None if found is None else bytes(found)

    def iterate(self, generation: int, *, vectors: bool = False) -> Iterator[Item]:
        """All items by id, a page at a time."""
        self._state(generation)
        last = ""
        query = f"SELECT {columns(vectors)} FROM {self._table(generation)} WHERE id > %s ORDER BY id LIMIT {_PAGE}"
        while True:
            rows = self._server.rows(query, (last,))
            for row in rows:
                yield item_of(row)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def count(self, generation: int, where: Where | None = None) -> int:
        """Number of items."""
        self._state(generation)
        condition, values = condition_of(where)
        return int(self._server.one(f"SELECT count(*) FROM {self._table(generation)} WHERE true{condition}", values))

    def values(self, generation: int, column: str, limit: int = 1000) -> dict[str, int]:
        """Most frequent values of a column."""
        self._state(generation)
        query = (
            f"SELECT value, times FROM (SELECT metadata->>%s AS value, count(*) AS times FROM {self._table(generation)} "
            'WHERE jsonb_exists(metadata, %s) GROUP BY 1) AS counted ORDER BY times DESC, value COLLATE "C" LIMIT %s'
        )
        return dict(self._server.rows(query, (column, column, limit)))

    def search(
        self, generation: int, queries: Vectors, k: int, where: Where | None = None, approximate: bool = False
    ) -> list[list[Hit]]:
        """Exact search by a scan, or by pgvector's HNSW."""
        dim, half = self._state(generation)
        rows = checked_queries(queries, dim, k)
        condition, values = condition_of(where)
        # Ordering ties by id costs nothing in a scan; HNSW can only order by distance, so its ties are sorted here.
        order = "distance" if approximate else 'distance, id COLLATE "C"'
        query = (
            f"SELECT id, metadata, vector <#> %s::{vector_type(half)} AS distance FROM {self._table(generation)} "
            f"WHERE true{condition} ORDER BY {order} LIMIT %s"
        )
        found = []
        with self._server.transaction() as db:
            if approximate:
                # Without the first, a filter is applied to the nearest few only, and result lists are short or empty.
                db.execute("SET LOCAL hnsw.iterative_scan = strict_order")
                db.execute("SET LOCAL hnsw.max_scan_tuples = 2000000000")
                db.execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(k, self._ef_search(generation)))}")
                db.execute("SET LOCAL enable_seqscan = off")
            else:
                db.execute("SET LOCAL enable_indexscan = off")
                db.execute("SET LOCAL jit = off")  # compiling costs more than a scan of 100,000 vectors
            for row in rows:
                db.execute(query, (vector_text(row), *values, k))
                found.append([Hit(name, -distance, metadata) for name, metadata, distance in db.fetchall()])
        return [in_order(hits) for hits in found]

    def build_approximate(self, generation: int, settings: Mapping[str, int]) -> None:
        """Build pgvector's HNSW."""
        dim, half = self._state(generation)
        longest = 4000 if half else 2000
        if dim > longest:
            raise InputError(
                f"pgvector's HNSW takes at most {longest} dimensions here, but the vectors have {dim}: keep fewer with --dim"
                f"{'' if half else ' or use --half'}."
            )
        table = self._table(generation)
        options = f"m = {int(settings['m'])}, ef_construction = {max(2 * int(settings['m']), int(settings['ef_construction']))}"
        # A graph that does not fit into this memory is built on disk, several times slower. PostgreSQL's default is 64 MB.
        needed = self.count(generation) * (dim * (2 if half else 4) + 24 * int(settings["m"]) + 256) >> 20
        memory = f"SET LOCAL maintenance_work_mem = '{min(_BUILD_MEMORY, max(64, needed))}MB'"
        for parallel in (True, False):
            try:
                with self._server.transaction() as db:
                    db.execute(memory)
                    if not parallel:
                        db.execute("SET LOCAL max_parallel_maintenance_workers = 0")
                    db.execute(f"DROP INDEX IF EXISTS {table}_hnsw")
                    db.execute(
                        f"CREATE INDEX {table}_hnsw ON {table} USING hnsw (vector {vector_type(half)}_ip_ops) WITH ({options})"
                    )
                    db.execute(self._width(generation, settings["ef_search"]))
                return
            except StoreError as error:
                if not parallel or not self._server.lacked_memory(error):
                    raise

    def widen_approximate(self, generation: int, ef_search: int) -> None:
        """Change ``hnsw.ef_search`` of this generation's searches."""
        with self._server.transaction() as db:
            db.execute(self._width(generation, ef_search))

    def _width(self, generation: int, ef_search: int) -> str:
        return f"COMMENT ON INDEX {self._table(generation)}_hnsw IS 'ef_search={int(ef_search)}'"

    def drop_approximate(self, generation: int) -> None:
        """Remove the HNSW index."""
        with self._server.transaction() as db:
            db.execute(f"DROP INDEX IF EXISTS {self._table(generation)}_hnsw")

    def _ef_search(self, generation: int) -> int:
        comment = self._server.one("SELECT obj_description(to_regclass(%s))", (f"{self._table(generation)}_hnsw",))
        found = re.fullmatch(r"ef_search=(\d+)", comment or "")
        return int(found[1]) if found else 100

    def _table(self, generation: int) -> str:
        return f"{self._name}_items_{int(generation)}"

    def _state(self, generation: int) -> tuple[int, bool]:
        """Length of the vectors, and whether they are kept in half precision."""
        kind = self._server.one(
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
