"""Processes killed in the middle of writing, and two writers at once: nothing is lost and nothing done twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from recollect.search import Index, IndexBusyError
from search import killed_writer
from search.killed_writer import BATCH
from search.stores import fresh_address
from search.toy_model import ToyEncoder, contents, make_photos

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["recollect.search.index", "search.toy_model"])


def _killed(action: str, address: str, photos: Path, log: Path, after: int | None, pause: float = 0.0) -> bool:
    """Run a writer and kill it once it has embedded ``after`` more images; whether it ended by itself before."""
    ready = _context.Event()
    writer = _context.Process(target=killed_writer.write, args=(action, address, photos, log, ready))
    before = _embedded(log)
    writer.start()
    assert ready.wait(60)
    while after is not None and writer.exitcode is None and _embedded(log) < before + after:
        time.sleep(0.001)
    writer.join(None if after is None else pause)
    ended = writer.exitcode is not None
    if not ended:
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
    return ended


def _embedded(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _torture(action: str, kind: str, kills: int, folder: Path, seed: int) -> None:
    photos = make_photos(folder / "photos", classes=8, each=20)
    address, quiet = fresh_address(kind, folder), fresh_address(kind, folder)
    for place in (address, quiet):
        with Index.create(place, ToyEncoder()) as index:
            if action == "rebuild":
                index.sync(photos)
    assert _killed(action, quiet, photos, folder / "quiet.log", None)  # how it should be
    random, log, interrupted = np.random.default_rng(seed), folder / "log", 0
    for _ in range(kills):
        # A random number of images and a few milliseconds more: in the model, in a transaction, between two of them.
        interrupted += not _killed(
            action, address, photos, log, int(random.integers(25)), float(random.uniform(0, 0.02))
        )
        with Index.open(address) as index:  # after every kill it opens, and what it holds is whole
            held = contents(index)
            assert len(index) == len(held)
            assert all(np.isclose(np.linalg.norm(entry[0]), 1, atol=1e-3) for entry in held.values())
    assert interrupted >= kills // 4
    assert _killed(action, address, photos, log, None)
    with Index.open(address) as index, Index.open(quiet) as expected:
        assert contents(index) == contents(expected)
        assert index.store.generations() == expected.store.generations()
        assert index.model == expected.model
        assert index.info()["building"] is None
    times = Counter(log.read_text().split())
    needed = Counter((folder / "quiet.log").read_text().split())
    assert set(times) == set(needed)
    again = sum(times.values()) - sum(needed.values())
    assert again <= interrupted * BATCH, f"{again} images were embedded again after {interrupted} kills"


@pytest.mark.parametrize("action", ["sync", "add", "rebuild"])
def test_killed_while_writing(action: str, tmp_path: Path) -> None:
    _torture(action, "sqlite", 2, tmp_path, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("action", "kills"), [("sync", 18), ("add", 14), ("rebuild", 18)])
def test_killed_50_times(action: str, kills: int, tmp_path: Path) -> None:
    _torture(action, "sqlite", kills, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["sync", "rebuild"])
def test_killed_while_writing_to_a_server(action: str, tmp_path: Path) -> None:
    _torture(action, "postgres", 4, tmp_path, 2)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_second_writer_waits_or_is_refused(kind: str, tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", classes=1, each=3)
    address = fresh_address(kind, tmp_path)
    with Index.create(address, ToyEncoder()) as index:
        ready = _context.Event()
        other = _context.Process(target=killed_writer.hold, args=(address, 1.5, ready))
        other.start()
        assert ready.wait(60)
        with pytest.raises(IndexBusyError, match="another process"):
            index.sync(photos)
        assert index.sync(photos, wait=60).added == 3  # it waited
        other.join()
        other = _context.Process(target=killed_writer.hold, args=(address, 600, ready := _context.Event()))
        other.start()
        assert ready.wait(60)
        os.kill(other.pid or 0, signal.SIGKILL)  # the lock ends with its owner
        other.join()
        assert index.sync(photos, wait=30).unchanged == 3
