"""A process that writes to an index until it is killed. Started by ``test_faults``; kept apart so that it imports little."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from recollect.search import sync
from recollect.search.index import Index
from search.toy_model import ToyEncoder

BATCH = 8


def write(action: str, address: str, photos: Path, log: Path, kill_after: tuple[int, float] | None) -> None:
    """Bring the index up to date (``sync``), add (``add``) or rebuild with the second model (``rebuild``).

    Killed from inside, so that how busy the machine is does not decide how far it gets: with ``kill_after`` once that many
    more images are embedded and that many seconds have passed.
    """
    sync.BATCH = BATCH
    if kill_after is not None:
        threading.Thread(target=_kill, args=(log, embedded(log), *kill_after), daemon=True).start()
    encoder = ToyEncoder(1 if action == "rebuild" else 0, log=log)
    with Index.open(address, None if action == "rebuild" else encoder) as index:
        if action == "sync":
            index.sync(photos, prune=True, wait=60)
        elif action == "add":
            for path in sorted(photos.rglob("*.png")):
                index.add([path], [path.name + path.parent.name], [{"label": path.parent.name}], wait=60)
        else:
            index.rebuild(encoder, wait=60)


def _kill(log: Path, before: int, images: int, seconds: float) -> None:
    while embedded(log) < before + images:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def embedded(log: Path) -> int:
    """How many images were embedded so far."""
    return log.read_bytes().count(b"\n") if log.exists() else 0


def hold(address: str, ready: Any, end: Any) -> None:
    """Be the writer until told to end."""
    with Index.open(address) as index, index.store.writing():
        ready.set()
        end.wait()
