"""A process that writes to an index until it is killed. Started by ``test_faults``; kept apart so that it imports little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from recollect.search import filling
from recollect.search.index import Index
from search.toy_model import ToyEncoder

BATCH = 8


def write(action: str, address: str, photos: Path, log: Path, ready: Any) -> None:
    """Bring the index up to date (``sync``), add (``add``) or rebuild with the second model (``rebuild``)."""
    filling.BATCH = BATCH
    encoder = ToyEncoder(1 if action == "rebuild" else 0, log=log)
    ready.set()
    with Index.open(address, None if action == "rebuild" else encoder) as index:
        if action == "sync":
            index.sync(photos, prune=True, wait=30)
        elif action == "add":
            for path in sorted(photos.rglob("*.png")):
                index.add([path], [path.name + path.parent.name], [{"label": path.parent.name}], wait=30)
        else:
            index.rebuild(encoder, wait=30)


def hold(address: str, seconds: float, ready: Any) -> None:
    """Be the writer for a while."""
    with Index.open(address) as index, index.store.writing():
        ready.set()
        time.sleep(seconds)
