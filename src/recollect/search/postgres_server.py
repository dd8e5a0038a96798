"""Connections to a PostgreSQL server: a pool, transactions, a lock, and messages for its errors. For ``postgres_store``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from recollect.common.imports import require
from recollect.search.store_protocol import StoreError

_CONNECTIONS = 8  # per process; by default a server accepts 100 in total


class PostgresServer:
    """Connections to one database.

    Args:
        target: arguments for libpq.
        address: the same for display, without a password.
    """

    def __init__(self, target: str, address: str) -> None:
        self._psycopg = require("psycopg", "postgres", "an index in PostgreSQL")
        self._target, self._address = target, address
        self._local = threading.local()
        self._idle: list[Any] = []
        self._slots = threading.BoundedSemaphore(_CONNECTIONS)
        self._lock_holder: Any = None
        self._locked = False

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()
        if self._lock_holder is not None:
            self._lock_holder.close()
            self._lock_holder = None

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """The rows of a query."""
        with self._spoken(), self._connection() as connection:
            return list(connection.execute(query, values).fetchall())

    def one(self, query: str, values: Sequence[Any] = ()) -> Any:
        """The first value of a query; None if there is none."""
        rows = self.rows(query, values)
        return rows[0][0] if rows else None

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A cursor; the block is one transaction."""
        with self._spoken(), self._connection() as connection, connection.transaction(), connection.cursor() as cursor:
            yield cursor

    def try_lock(self, name: str) -> bool:
        """Try to acquire the advisory lock of an index; returns whether it succeeded. It ends with the connection."""
        self._locked = self._locking("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", name)
        return self._locked

    def unlock(self, name: str) -> None:
        """Release it."""
        self._locked = False
        self._locking("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", name)

    def lacked_memory(self, error: StoreError) -> bool:
        """Whether parallel workers lacked shared memory, which containers often limit to 64 MB."""
        return isinstance(error.__cause__, self._psycopg.errors.DiskFull)

    def _locking(self, query: str, name: str) -> bool:
        # A lock belongs to a session, so it has its own connection.
        with self._spoken():
            if self._lock_holder is None or not self._responds(self._lock_holder):
                self._lock_holder = self._connect()
            return bool(self._lock_holder.execute(query, (name,)).fetchone()[0])

    def _connect(self) -> Any:
        return self._psycopg.connect(self._target, autocommit=True)

    def _responds(self, connection: Any) -> bool:
        """Whether the server still knows a connection: after its restart, all that were open are dead."""
        try:
            connection.execute("")  # one round trip, and no work there
        except self._psycopg.OperationalError:
            connection.close()
        return not connection.closed

    def _idle_or_new(self) -> Any:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:  # none is left, or another thread was faster
                return self._connect()
            if self._responds(connection):
                return connection
            if self._locked and not self._responds(self._lock_holder):
                raise StoreError(
                    f"{self._address}: the server ended the connections of this process, and with them its lock: another "
                    "process may be writing. Committed data is kept: run the command again."
                )

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """A connection for this thread; nested blocks share it, and so the transaction."""
        held = getattr(self._local, "connection", None)
        if held is not None:
            yield held
            return
        with self._slots:
            connection = self._idle_or_new()
            self._local.connection = connection
            try:
                yield connection
            finally:
                self._local.connection = None
                if not connection.closed:  # e.g. after the server stopped
                    self._idle.append(connection)

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """Turn PostgreSQL's errors into messages."""
        errors = self._psycopg.errors
        try:
            yield
        except errors.DiskFull as error:
            raise StoreError(
                f"{self._address}: the server's disk is full. Committed data is kept; free space there and try again."
            ) from error
        except (errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege) as error:
            raise StoreError(f"{self._address}: this user has no permission to change it ({_brief(error)}).") from error
        except errors.FeatureNotSupported as error:
            raise StoreError(f"{self._address}: {_brief(error)}. Is the extension pgvector installed there?") from error
        except self._psycopg.OperationalError as error:
            raise StoreError(f"{self._address}: the server cannot be reached ({_brief(error)}).") from error
        except self._psycopg.Error as error:
            raise StoreError(f"{self._address}: PostgreSQL says: {_brief(error)}.") from error


def _brief(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0].rstrip(".")
