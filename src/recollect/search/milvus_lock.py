"""One writer at a time in Milvus, which has no locks: claims among the documents of the index.

A writer writes a claim, then reads all claims; reads are strongly consistent, so of two writers at least one sees the other,
and a writer that sees another one withdraws and tries again after a random pause. A claim is renewed while its owner works.
It expires if it has not been renewed for a minute, or at once if its process on this machine has ended.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from recollect.search.store_protocol import StoreError

if TYPE_CHECKING:
    from recollect.search.milvus_store import MilvusStore

EXPIRES = 60.0
"""Seconds after which a claim that was not renewed expires."""


class WritersClaim:
    """The claim of one opened store."""

    def __init__(self, store: MilvusStore) -> None:
        self._store = store
        self._key = f"writer:{uuid.uuid4().hex}"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def attempt(self) -> bool:
        """Claim the index; returns whether no other process does."""
        self._claim()
        if self._others():
            self._store.write_document(self._key, None)
            return False
        self._stop.clear()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="milvus-claim")
        self._thread.start()
        return True

    def release(self) -> None:
        """Release the claim."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._store.write_document(self._key, None)

    def _claim(self) -> None:
        facts = {"until": time.time() + EXPIRES, "host": socket.gethostname(), "process": os.getpid()}
        self._store.write_document(self._key, facts)

    def _others(self) -> bool:
        claims = self._store.documents("writer:")
        return any(key != self._key and _counts(json.loads(value)) for key, value in claims.items())

    def _renew(self) -> None:
        while not self._stop.wait(EXPIRES / 4):
            with suppress(
                StoreError
            ):  # the server is unreachable for a moment: there are three more attempts before the claim expires
                self._claim()


def _counts(claim: dict[str, Any]) -> bool:
    if float(claim["until"]) < time.time():
        return False
    if claim["host"] != socket.gethostname():
        return True
    try:
        os.kill(int(claim["process"]), 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
