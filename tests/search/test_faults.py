"""Processes killed in the middle of writing, and two writers at once: nothing is lost and nothing done twice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
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


def _interrupted(action: str, address: str, photos: Path, log: Path, kill_after: tuple[int, float] | None) -> bool:
    """Run a writer; whether it was killed before it was done."""
    writer = _context.Process(target=killed_writer.write, args=(action, address, photos, log, kill_after))
    writer.start()
    writer.join()
    assert writer.exitcode in (0, -signal.SIGKILL)
    return writer.exitcode != 0


def _torture(action: str, kind: str, kills: int, folder: Path, seed: int) -> None:
    """Interrupt writers so many times; whenever one gets to the end, compare with one that was left alone."""
    photos = make_photos(folder / "photos", classes=8, each=20)

    def fresh() -> str:
        place = fresh_address(kind, folder)
        with Index.create(place, ToyEncoder()) as index:
            if action == "rebuild":
                index.sync(photos)
        return place

    quiet = fresh()
    assert not _interrupted(action, quiet, photos, folder / "quiet.log", None)
    needed = Counter((folder / "quiet.log").read_text().split())
    random, killed, rounds = np.random.default_rng(seed), 0, 0
    while killed < kills:
        address, rounds = fresh(), rounds + 1
        assert rounds <= 10 * kills, "writers are done before they can be killed"
        log, interrupted = folder / f"{rounds}.log", 0
        while killed < kills:
            # A random number of images and a few milliseconds more: in the model, in a transaction, between two of them.
            point = int(random.integers(25)), float(random.uniform(0, 0.02))
            if not _interrupted(action, address, photos, log, point):
                break
            killed, interrupted = killed + 1, interrupted + 1
            with Index.open(address) as index:  # after every kill it opens, and what it holds is whole
                held = contents(index)
                assert len(index) == len(held)
                assert all(np.isclose(np.linalg.norm(entry[0]), 1, atol=1e-3) for entry in held.values())
        assert not _interrupted(action, address, photos, log, None)
        with Index.open(address) as index, Index.open(quiet) as expected:
            assert contents(index) == contents(expected)
            assert index.store.generations() == expected.store.generations()
            assert index.model == expected.model
            assert index.info()["building"] is None
        times = Counter(log.read_text().split())
        assert set(times) == set(needed)
        again = sum(times.values()) - sum(needed.values())
        assert again <= interrupted * BATCH, f"{again} images were embedded again after {interrupted} kills"


@pytest.mark.parametrize("action", ["sync", "add", "rebuild"])
def test_killed_while_writing(action: str, tmp_path: Path) -> None:
    _torture(action, "sqlite", 2, tmp_path, 0)


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.parametrize(("kind", "kills"), [("sqlite", 16), ("postgres", 4)])
@pytest.mark.parametrize("action", ["sync", "add", "rebuild"])
def test_killed_many_times(action: str, kind: str, kills: int, tmp_path: Path) -> None:
    _torture(action, kind, kills, tmp_path, 1)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.release)])
def test_a_second_writer_waits_or_is_refused(kind: str, tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", classes=1, each=3)
    address = fresh_address(kind, tmp_path)
    with Index.create(address, ToyEncoder()) as index:
        ready, end = _context.Event(), _context.Event()
        other = _context.Process(target=killed_writer.hold, args=(address, ready, end))
        other.start()
        assert ready.wait(600)
        with pytest.raises(IndexBusyError, match="another process"):
            index.sync(photos)
        threading.Timer(0.5, end.set).start()
        assert index.sync(photos, wait=600).added == 3  # it waited
        other.join()
        ready, never = _context.Event(), _context.Event()  # held here: the process drops its arguments once started
        other = _context.Process(target=killed_writer.hold, args=(address, ready, never))
        other.start()
        assert ready.wait(600)
        os.kill(other.pid or 0, signal.SIGKILL)  # the lock ends with its owner
        other.join()
        assert index.sync(photos, wait=600).unchanged == 3
