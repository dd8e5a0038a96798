"""Execute the runs of a matrix, several at a time, each in its own process with a share of the cores.

A run that diverges is recorded as failed. Any other error (images that cannot be read, a full disk) is logged, and the run
is tried again by the next call. Runs of a search cannot load a test image. Stopping (Ctrl-C, ``minutes``, a kill) loses at
most the time since the last checkpoint. Only one process at a time works on a study.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from recollect.common.console import ProgressLine, set_quiet
from recollect.common.errors import ConfigError, DataWarning, RecollectError
from recollect.common.files import make_folder_for, try_lock, write_json
from recollect.config.automatic import choose_device
from recollect.config.resolve import resolve
from recollect.config.schema import Config
from recollect.data import only_splits
from recollect.inference.evaluate import measure_labelled
from recollect.inference.models import make_embedder
from recollect.inference.vectors import embed_set
from recollect.studies.matrix import Cell, Matrix, Run
from recollect.training.build import load_split
from recollect.training.callbacks import TrainingStoppedError
from recollect.training.run_folder import RunFolder, circumstances
from recollect.tuning import trial
from recollect.tuning.trial import has_diverged

logger = logging.getLogger(__name__)
SECONDS_TO_SAVE = 10
"""How long a run may take to save its state when the study was killed or is stopped."""
_idle = threading.Event()
"""Set in a process of the pool while it has no run to do."""


def run_matrix(matrix: Matrix, cells: Sequence[Cell], *, jobs: int | None = None, minutes: float | None = None) -> bool:
    """Execute the remaining runs of the cells, in their order; returns whether all are done.

    Args:
        matrix: the study's folder and seeds.
        cells: what to train.
        jobs: runs at a time; by default one per core, or one with a GPU.
        minutes: start no new run after this many minutes; 0 starts none.

    Raises:
        ConfigError: the folder contains something else, or another process works on it.
    """
    matrix.open()
    if minutes != 0:
        lock = try_lock(matrix.out / ".lock")
        if lock is None:
            raise ConfigError(f"another process is working on {matrix.out}: wait for it, or choose another --out.")
        with lock:
            _run(matrix, cells, *_share(jobs), None if minutes is None else time.monotonic() + 60 * minutes)
    return all(run.done for run in matrix.runs(cells))


def _run(matrix: Matrix, cells: Sequence[Cell], jobs: int, threads: int, end: float | None) -> None:
    context = multiprocessing.get_context("spawn")
    running: dict[Future[str | None], Run] = {}
    troubled: set[Path] = set()
    runs = matrix.runs(cells)
    with (
        ProcessPoolExecutor(jobs, context, end_with_parent) as pool,
        _stopping(pool),
        ProgressLine("runs", len(runs), "runs", done=sum(run.done for run in runs)) as line,
    ):
        while True:
            late = end is not None and time.monotonic() > end
            not_now = troubled.union(run.folder for run in running.values())
            free = (run for run in runs if run.ready and run.folder not in not_now and not run.done)
            for run in itertools.islice(free, 0 if late else jobs - len(running)):
                running[pool.submit(_do, run, run.settings(), threads)] = run
            if not running:
                return
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                run = running.pop(future)
                if (trouble := _result(future)) is not None:
                    troubled.add(run.folder)
                    logger.warning(f"{run.folder.relative_to(matrix.out)}: {trouble}")
                runs = matrix.runs(cells)  # a finished search adds runs
                line.expect(len(runs))
                line.advance()


@contextlib.contextmanager
def _stopping(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Stop the processes when the study is interrupted; otherwise the pool would wait for their runs."""
    try:
        yield
    except BaseException:
        _stop(pool)
        raise


def _share(jobs: int | None) -> tuple[int, int]:
    """Runs at a time and threads per run; by default one run per core, or one with a GPU."""
    first = (os.environ.get("OMP_NUM_THREADS") or "").split(",")[0].strip()
    cores = int(first) if first.isdecimal() and int(first) else os.cpu_count() or 1
    jobs = jobs or (1 if torch.cuda.is_available() else cores)
    return jobs, max(1, cores // jobs)


def end_with_parent() -> None:
    """In each process of the pool: save and stop when the parent process has ended."""

    def watch(parent: BaseProcess) -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)  # the run saves its state and stops
        _idle.wait(SECONDS_TO_SAVE)
        os._exit(1)

    _idle.set()
    # Ctrl-C reaches every process of a terminal; the study's own process passes it on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_if_idle)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=watch, args=(parent,), daemon=True).start()


def _end_if_idle(number: int, frame: FrameType | None) -> None:
    """Used only between runs: a training installs its own handler."""
    os._exit(128 + number)


def _stop(pool: ProcessPoolExecutor) -> None:
    """Ask the running runs to save their state and end; kill those that do not."""
    processes: list[BaseProcess] = list((pool._processes or {}).values())  # there is no public API
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    end = time.monotonic() + SECONDS_TO_SAVE
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()


def _result(future: Future[str | None]) -> str | None:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise ConfigError(
            "the process of a run was killed, perhaps for lack of memory: run the same command again, with a smaller --jobs."
        ) from error


def _do(run: Run, settings: dict[str, Any], threads: int) -> str | None:
    """One run, in its own process; returns the error as text, if there was one."""
    torch.set_num_threads(threads)
    set_quiet(True)
    warnings.simplefilter("ignore", DataWarning)  # the study's own process has shown it
    _idle.clear()
    try:
        config = resolve(run.cell.bench.recipe, settings)
        # Without a last layer there is nothing to train: the network's features are measured.
        if not run.cell.trains and "model.dim" in run.cell.settings:
            _measure_features(run.folder, config)
        else:
            _train(run.folder, config)
    except TrainingStoppedError as error:
        if not has_diverged(error):
            raise  # stopped by request: saved, and resumed by the next call
        write_json(run.folder / "failed.json", {"why": str(error)})
        return str(error)
    except RecollectError as error:
        return str(error)
    finally:
        _idle.set()
    return None


def _train(path: Path, config: Config) -> None:
    # A run of the search cannot load the test set, whatever its settings.
    sealed = contextlib.nullcontext() if config.run.watch_test else only_splits(config.data.train_split)
    folder, begun = RunFolder(path), time.process_time()
    try:
        with sealed:
            trial.run(path, config)
    finally:
        if folder.config_file.exists():  # for a resumed run, the parts add up
            before = folder.read_manifest().get("processor_seconds", 0.0)
            folder.update_manifest(processor_seconds=round(before + time.process_time() - begun, 2))


def _measure_features(path: Path, config: Config) -> None:
    """Measure the features before any training, as in the recipes of *init* rows."""
    begun = time.monotonic()
    device = choose_device(config.run.device)
    folder = RunFolder(path)
    make_folder_for(folder.config_file)
    folder.write_config(config)
    images = load_split(config.data, config.data.test_split)
    embedder = make_embedder(config.model, config.run.seed)
    found = embed_set(embedder, images, device=device, on_bad_image=config.data.on_bad_image)
    good = sorted(set(range(len(images))) - {bad.index for bad in found.skipped})
    metrics = measure_labelled(found.rows[good], images.labels[good], ks=(1, 2, 4, 8))
    folder.update_manifest(
        **circumstances(device, 1),
        data={"name": config.data.name, "root": config.data.root, "fingerprints": {"test": images.fingerprint}},
        weights=embedder.config.provenance.as_dict(),
        outcome={
            "steps": 0,
            "seconds": round(time.monotonic() - begun, 1),
            "chosen_step": 0,
            "metrics": {"test": metrics},
        },
    )
