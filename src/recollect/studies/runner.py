"""Run many trainings: each begun or resumed exactly in its own folder, several at a time, none twice.

``finish_run`` trains one run to its end. Two things hand out runs: ``TrialQueue``, the trials of a search in Optuna's
database, which several processes and machines share; and ``run_matrix``, the runs of a comparison, in a pool of processes
of this machine. A run's folder is the record of what it did.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import platform
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.common import console, plugins
from recollect.common.console import ProgressLine, only_warnings
from recollect.common.errors import ConfigError, DataError, DataWarning, RecollectError, require
from recollect.common.files import exclusive, is_free, try_lock, write_json
from recollect.config.resolve import absolute_names, as_mapping, brief, changeable_settings, changes, resolve
from recollect.config.schema import Config
from recollect.data import only_splits
from recollect.studies.protocol import Cell, Matrix, Run, check_settings
from recollect.training.callbacks import Callback, TrainingStoppedError
from recollect.training.judging import merit
from recollect.training.run import Outcome, RunFolder
from recollect.training.trainer import train

logger = logging.getLogger(__name__)
Objective = Callable[[Any, int], float | None]
HEARTBEAT = 30
"""Seconds between the heartbeats that Optuna writes to the database while a trial runs."""
GRACE = 600
"""Seconds without one after which a process elsewhere is taken for dead, by the database's clock."""
_OF_A_RUN = (
    *("data.name", "data.augmentation", "model.init", "optimizer.", "loss.", "batch.size"),
    *("run.select", "run.loggers", "run.epochs", "run.steps", "run.seed"),
)
"""Settings that tell runs of a study apart from others."""
SECONDS_TO_SAVE = 10
"""How long a run may take to save its state when the study was killed or is stopped."""


# One run ----------------------------------------------------------------------------------------------------------------


class ForeignRunError(ConfigError):
    """A run's folder contains a run of another study; this is not a failure of the run's settings."""


def finish_run(path: Path, config: Config, callback: Callback | None = None) -> Outcome:
    """As ``begin_or_resume``, but the plan and remarks are written to the run's folder only.

    A run that does not watch the test set cannot load it, whatever its settings. One that diverges leaves ``failed.json``.
    """
    folder, start = RunFolder(path), time.process_time()
    only_train = contextlib.nullcontext() if config.run.watch_test else only_splits(config.data.train_split)
    try:
        with only_train, only_warnings("recollect.training"):
            return begin_or_resume(path, config, callback)
    except TrainingStoppedError as error:
        if has_diverged(error):
            write_json(path / "failed.json", {"why": str(error)})
        raise
    finally:
        if folder.config_file.exists():  # for a resumed run, the parts add up
            before = folder.read_manifest().get("processor_seconds", 0.0)
            folder.update_manifest(processor_seconds=round(before + time.process_time() - start, 2))


def begin_or_resume(path: Path, config: Config, callback: Callback | None = None) -> Outcome:
    """Train in ``path``, from the start or from the last checkpoint.

    Raises:
        ForeignRunError: the folder contains a run with other settings.
    """
    folder, callbacks = RunFolder(path), [] if callback is None else [callback]
    if not folder.config_file.exists():
        return train(config, path, callbacks=callbacks)
    _check_same(folder, config)
    return train(resume=path, settings=changeable_settings(config), callbacks=callbacks, trust=True)


def _check_same(folder: RunFolder, config: Config) -> None:
    """Check that the run in the folder is this one; machine and place may differ.

    References to code are among the settings: a resumed run must not run code that the study does not name.
    """
    with plugins.trusting():  # the references are only compared with the user's settings
        there = as_mapping(folder.read_config())
    other = [
        f"{key} is {brief(one)} there and {brief(here)} here"
        for key, (one, here) in changes(there, as_mapping(absolute_names(config))).items()
        # A run's own configuration says what "auto" came to.
        if key.startswith(_OF_A_RUN) and (here != "auto" or (isinstance(one, str) and plugins.is_reference(one)))
    ]
    if other:
        raise ForeignRunError(
            f"{folder.path} contains a run with other settings: {'; '.join(other[:3])}. Choose another --out."
        )


def has_diverged(error: TrainingStoppedError) -> bool:
    """Whether a training ended because its loss diverged, not because it was asked to stop."""
    return error.exit_code < 128


def read_validation(path: Path, select: str) -> dict[str, Any]:
    """The result of a run on the validation classes so far, by the names of ``TrialRecord``.

    ``value`` is the best of the selection metric among all evaluations after training has begun, among equals the one with
    the highest mAP@R, then the last; ``curve`` has epoch and value of every evaluation. Empty before the first of them.
    Read from ``metrics.jsonl``, so that a run that was killed after its last step has the result of one that was never
    interrupted. The untrained network's value is in the curve but is never the best: it does not depend on the settings.
    """
    folder = RunFolder(path)
    epochs: dict[int, float] = {0: 0.0}
    evaluations: dict[int, dict[str, Any]] = {}
    seconds = 0.0
    for record in folder.read_metrics():
        if record["kind"] == "step":
            epochs[record["step"]] = round(float(record.get("epoch") or 0), 2)
            seconds = float(record.get("seconds") or 0)
        elif record.get("split") == "val" and select in record:
            evaluations[record["step"]] = record
    merits = {step: merit(record, select, step) for step, record in evaluations.items() if step > 0}
    if not merits:
        return {}
    best, steps, manifest = max(merits, key=merits.__getitem__), max(epochs), folder.read_manifest()
    return {
        "value": float(evaluations[best][select]),
        "best_step": best,
        "best_epoch": epochs[best],
        "map_at_r": merits[best][1],
        "steps": steps,
        "seconds": round(float((manifest.get("outcome") or {}).get("seconds", seconds)), 1),
        "images": steps * int(manifest.get("plan", {}).get("batch", 0)),
        "curve": [(epochs[step], float(record[select])) for step, record in evaluations.items()],
    }


# The trials of a search ---------------------------------------------------------------------------------------------------


def check_names(sampler: str, pruner: str) -> None:
    """Raise ``ConfigError`` for an unknown sampler or pruner; the message lists the known ones."""
    for option, name, names in (("--sampler", sampler, ("random", "tpe")), ("--pruner", pruner, ("none", "median"))):
        if name not in names:
            raise ConfigError(f"{option} {name} is unknown: choose one of {', '.join(names)}.")


class TrialQueue:
    """The trials of a study in Optuna's database: each is run by one process at a time until it is done.

    Optuna stores trials, hands a queued trial to exactly one process, and finds processes elsewhere that died by their
    heartbeats. It gives a trial that is queued again a new number, so a trial here is a *slot*, which keeps its number: it
    names the run's folder, and a random draw depends only on it and the seed.

    Args:
        folder: the study's folder, with its runs and locks.
        storage: a database's address or an SQLite file; by default ``study.db`` in the folder.
        part: name of a second study next to the first, such as the final training.
        sampler, pruner, seed: how settings are drawn, and which trials are stopped early.

    Raises:
        MissingExtraError: Optuna is not installed. DataError: the database cannot be opened.
    """

    def __init__(
        self,
        folder: Path,
        storage: str | None = None,
        *,
        part: str = "trials",
        sampler: str = "random",
        pruner: str = "none",
        seed: int = 0,
    ) -> None:
        check_names(sampler, pruner)
        self.optuna = optuna = require("optuna", "tune", "recollect tune")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # heartbeats, TPE's options
        self.folder, self.part, self.sampler, self.seed = folder, part, sampler, seed
        self._owner = {"host": platform.node(), "folder": str(folder.resolve())}
        url, self._claim_file = _address(folder, storage)
        name = folder.resolve().name if part == "trials" else f"{folder.resolve().name}/{part}"
        waiting = {"connect_args": {"timeout": 120}} if url.startswith("sqlite") else {}
        with self._claim_lock():
            try:
                self.study = optuna.create_study(
                    storage=optuna.storages.RDBStorage(url, waiting, heartbeat_interval=HEARTBEAT, grace_period=GRACE),
                    study_name=name,
                    direction="maximize",
                    load_if_exists=True,
                    pruner=optuna.pruners.NopPruner() if pruner == "none" else optuna.pruners.MedianPruner(5),
                )
            except Exception as error:  # the exceptions depend on the database's driver
                from sqlalchemy import make_url  # shows no password

                raise DataError(
                    f"the database of the study ({make_url(url)!r}) cannot be opened: {type(error).__name__}: "
                    f"{str(error).splitlines()[0]}"
                ) from error

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Record the settings of the study, or raise ``ConfigError`` if it has other settings."""
        with self._claim_lock():
            if "recollect" not in self.study.user_attrs:
                self.study.set_user_attr("recollect", dict(identity))
        check_settings(self.folder, self.study.user_attrs["recollect"], identity)

    def run(self, total: int, objective: Objective, after: Callable[[], object] = lambda: None) -> None:
        """Run trials in this process until there are ``total`` that are done, failed or running elsewhere.

        Args:
            objective: gets Optuna's trial and its slot, and returns the trial's value. None, with the attribute ``failure``
                set, is a failure for good. A trial that it leaves with an exception is queued again.
            after: called after each trial.
        """
        while True:
            lost: list[int] = []
            with contextlib.ExitStack() as claim:
                claim.enter_context(self._claim_lock())
                if not self._queue_next(total):
                    return
                try:
                    attempt = partial(self._attempt, objective, claim, lost)
                    self.study.optimize(attempt, n_trials=1, callbacks=[lambda study, trial: after()])
                except ValueError:  # Optuna's, if it has marked the trial as failed in the meantime
                    if not lost:
                        raise
                    what = "the final training" if self.part == "final" else f"trial {lost[0]:04d}"
                    logger.info(
                        f"note       {what} was given up, because this process sent no heartbeat for {GRACE / 60:.0f} "
                        "minutes (the machine slept, or the database was not reachable): another may have taken it."
                    )

    def slots(self) -> dict[int, Any]:
        """Optuna's last trial for every slot."""
        trials = self.study.get_trials(deepcopy=False)
        slots = {trial.user_attrs["slot"]: trial for trial in trials if trial.user_attrs.get("slot") is not None}
        return dict(sorted(slots.items()))

    def _attempt(self, objective: Objective, claim: contextlib.ExitStack, lost: list[int], trial: Any) -> float | None:
        slot = trial.user_attrs.get("slot")
        # A database server has no such file: two processes may queue a slot at once, and the later gives way.
        lock = None if slot is None or self._is_duplicate(trial, slot) else try_lock(self._lock_file(slot))
        if lock is None:
            trial.set_user_attr("slot", None)
            return None
        with lock:
            try:
                trial.set_user_attr("owner", self._owner)
                claim.close()
                self.study.sampler = self._slot_sampler(slot)
                return objective(trial, slot)
            except self.optuna.exceptions.UpdateFinishedTrialError:
                lost.append(slot)
                raise

    def _is_duplicate(self, trial: Any, slot: int) -> bool:
        return any(
            other.user_attrs.get("slot") == slot and other.number < trial.number and not is_abandoned(other)
            for other in self.study.get_trials(deepcopy=False)
        )

    def _queue_next(self, total: int) -> bool:
        """Queue a trial whose process ended, with what it had drawn, or a new one; False if there is none to run."""
        states = self.optuna.trial.TrialState
        for trial in self.study.get_trials(deepcopy=False, states=(states.RUNNING,)):
            if self._is_dead(trial):
                with contextlib.suppress(ValueError):  # another process was faster
                    self.study.tell(trial.number, state=states.FAIL)
        self.optuna.storages.fail_stale_trials(self.study)
        slots = self.slots()
        if any(trial.state == states.WAITING for trial in slots.values()):
            return True
        for slot in sorted({*slots, *range(total)}):
            last, lock = slots.get(slot), self._lock_file(slot)
            # A process that holds the lock is alive, however old its last heartbeat: machines sleep.
            if last is None or (is_abandoned(last) and (not lock.exists() or is_free(lock))):
                params, facts = ({}, {}) if last is None else (last.params, last.user_attrs)
                facts = {key: value for key, value in facts.items() if key != "owner"}
                self.study.enqueue_trial(params, user_attrs={**facts, "slot": slot})
                return True
        return False

    def _is_dead(self, trial: Any) -> bool:
        """Whether a running trial's process is known to have ended; of other machines Optuna's heartbeats tell."""
        owner = trial.user_attrs.get("owner")
        if owner is None:  # it was killed before it signed, while it held the lock that this process holds now
            return self._claim_file is not None
        return owner == self._owner and is_free(self._lock_file(trial.user_attrs["slot"]))

    def _lock_file(self, slot: int) -> Path:
        """Held by the process that works on a slot."""
        return self.folder / "locks" / f"{self.part}-{slot:04d}"

    def _slot_sampler(self, slot: int) -> Any:
        """Seeded by the slot: the settings do not depend on the process that draws them, and no two slots draw alike."""
        samplers, seed = self.optuna.samplers, int(np.random.SeedSequence([self.seed, slot]).generate_state(1)[0])
        if self.sampler == "tpe":
            return samplers.TPESampler(seed=seed, multivariate=False, constant_liar=True)
        return samplers.RandomSampler(seed)

    def _claim_lock(self) -> contextlib.AbstractContextManager[None]:
        """Held while a trial is claimed: with SQLite alone, two processes could read the same state before either writes."""
        return contextlib.nullcontext() if self._claim_file is None else exclusive(self._claim_file)


def is_abandoned(trial: Any) -> bool:
    """Whether a trial ended without a result, so that it is run again."""
    return trial.state.name == "FAIL" and "failure" not in trial.user_attrs


def _address(folder: Path, storage: str | None) -> tuple[str, Path | None]:
    """The database's address, and for an SQLite file the lock next to it."""
    text = storage or str(folder / "study.db")
    if "://" in text and not text.startswith("sqlite:///"):
        return text, None
    path = Path(text.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}", path.with_name(f"{path.name}.lock")


# The runs of a comparison -------------------------------------------------------------------------------------------------


def run_matrix(matrix: Matrix, cells: Sequence[Cell], *, jobs: int | None = None, minutes: float | None = None) -> bool:
    """Execute the remaining runs of the cells, in their order; returns whether all are done.

    A run that diverges is recorded as failed. Any other error (images that cannot be read, a full disk) is logged, and the
    run is tried again by the next call. Stopping (Ctrl-C, ``minutes``, a kill) loses at most the time since the last
    checkpoint. Only one process at a time works on a study; it starts one process per job.

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
    running: dict[Future[str | None], Run] = {}
    failed: set[Path] = set()
    runs = matrix.runs(cells)
    with (
        ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), end_with_parent) as pool,
        _stopping(pool),
        ProgressLine("runs", len(runs), "runs", done=sum(run.done for run in runs)) as line,
    ):
        while True:
            late = end is not None and time.monotonic() > end
            not_now = failed.union(run.folder for run in running.values())
            free = (run for run in runs if run.ready and run.folder not in not_now and not run.done)
            for run in itertools.islice(free, 0 if late else jobs - len(running)):
                running[pool.submit(_do, run, threads)] = run
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run = running.pop(future)
                try:
                    failure = future.result()
                except BrokenProcessPool as error:
                    raise ConfigError(
                        "the process of a run was killed, perhaps for lack of memory: run the same command again, with a "
                        "smaller --jobs."
                    ) from error
                if failure is not None:
                    failed.add(run.folder)
                    logger.warning(f"{run.folder.relative_to(matrix.out)}: {failure}")
                runs = matrix.runs(cells)  # a finished search adds runs
                line.expect(len(runs))
                line.advance()


@contextlib.contextmanager
def _stopping(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Stop the processes when the study is interrupted; otherwise the pool would wait for their runs."""
    try:
        yield
    except BaseException:
        processes: list[BaseProcess] = list((pool._processes or {}).values())  # there is no public API
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()  # the run saves its state and stops
        end = time.monotonic() + SECONDS_TO_SAVE
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
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
        os.kill(os.getpid(), signal.SIGTERM)  # a run saves its state and stops; between runs the process ends
        time.sleep(SECONDS_TO_SAVE)
        os._exit(1)

    # Ctrl-C reaches every process of a terminal; the study's own process passes it on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=watch, args=(parent,), daemon=True).start()


def _do(run: Run, threads: int) -> str | None:
    """One run, in its own process; returns the error as text, if there was one."""
    torch.set_num_threads(threads)
    console.silent = True
    warnings.simplefilter("ignore", DataWarning)  # the study's own process has shown it
    try:
        finish_run(run.folder, resolve(run.cell.bench.recipe, run.settings()))
    except RecollectError as error:
        if isinstance(error, TrainingStoppedError) and not has_diverged(error):
            raise  # stopped by request: saved, and resumed by the next call
        return str(error)
    return None
