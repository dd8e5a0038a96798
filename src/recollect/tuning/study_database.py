"""The database of a study: which process works on which trial, and the results. Only this file uses Optuna.

Several processes, on several machines, may work on one study. A trial is claimed by exactly one of them; if that process
dies, the trial is queued again, with the same settings, and resumed from its run folder. It is never counted as done.
Optuna gives a queued trial a new number, so a trial here is a *slot*, which keeps its number: it names the folder, and a
random draw depends only on it and the seed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from recollect.common.errors import ConfigError, DataError, require
from recollect.common.files import Lock, exclusive, is_free, try_lock
from recollect.config.resolve import differences

BEAT = 30.0
"""Seconds between heartbeats in the database."""
GRACE = 600.0
"""Seconds without one after which a process elsewhere is taken for dead. Machines' clocks may differ by some minutes."""
SAMPLERS = ("random", "tpe")
PRUNERS = ("none", "median")
KEPT = ("chosen",)
"""Facts that a queued trial takes over from the one before it."""
_IDENTITY = "recollect"


class LostTrialError(DataError):
    """The trial was given to another process while this one worked on it."""


@dataclass
class Lease:
    """A trial claimed by this process. ``done`` once its result is written."""

    trial: Any
    slot: int
    lock: Lock
    done: bool = False


def check_words(sampler: str, pruner: str) -> None:
    """Refuse an unknown sampler or pruner.

    Raises:
        ConfigError: the message lists the known ones.
    """
    for what, word, known in (("--sampler", sampler, SAMPLERS), ("--pruner", pruner, PRUNERS)):
        if word not in known:
            raise ConfigError(f"{what} {word} is unknown: choose one of {', '.join(known)}.")


class StudyDatabase:
    """One study in a database.

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
        check_words(sampler, pruner)
        self.optuna = require("optuna", "tune", "recollect tune")
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)
        self.folder, self.part, self.sampler, self.seed = folder, part, sampler, seed
        self._url, self._guard_file = _address(folder, storage)
        name = folder.resolve().name if part == "trials" else f"{folder.resolve().name}/{part}"
        with self._alone():
            self.study = self._open(name, pruner)

    def _open(self, name: str, pruner: str) -> Any:
        optuna = self.optuna
        waiting = {"connect_args": {"timeout": 120}} if self._url.startswith("sqlite") else {}
        chosen = optuna.pruners.NopPruner() if pruner == "none" else optuna.pruners.MedianPruner(n_startup_trials=5)
        try:
            storage = optuna.storages.RDBStorage(self._url, engine_kwargs=waiting)
            return optuna.create_study(
                storage=storage, study_name=name, direction="maximize", load_if_exists=True, pruner=chosen
            )
        except Exception as error:  # the exceptions depend on the database's driver
            raise DataError(
                f"the database of the study ({shown_address(self._url)}) cannot be opened: {type(error).__name__}: "
                f"{str(error).splitlines()[0]}"
            ) from error

    # Identity ---------------------------------------------------------------------------------------------------------

    def agree(self, identity: Mapping[str, Any]) -> None:
        """Record the settings of the study, or refuse to continue a study with other settings.

        Raises:
            ConfigError: the study has other settings.
        """
        with self._alone():
            if _IDENTITY not in self.study.user_attrs:
                self.study.set_user_attr(_IDENTITY, dict(identity))
        known = self.study.user_attrs[_IDENTITY]
        found = differences(known, identity)
        if found:
            raise ConfigError(
                f"{self.folder} is a study with other settings: {'; '.join(found[:3])}"
                f"{f'; and {len(found) - 3} more' if len(found) > 3 else ''}. Choose another --out, or use "
                "the same settings."
            )

    # Leases -----------------------------------------------------------------------------------------------------------

    def claim(self, total: int) -> Lease | None:
        """A trial to work on: an abandoned one, or a new one if there are fewer than ``total``; otherwise None."""
        with self._alone():
            self.release_dead()
            while True:
                trials = self.trials()
                if not any(trial.state.name == "WAITING" for trial in trials) and _count(trials) >= total:
                    return None
                lease = self._ask(total)
                if lease is not None:
                    return lease

    def _ask(self, total: int) -> Lease | None:
        """A queued or new trial from Optuna; None if there would be one too many."""
        trial = self.study.ask()
        everything = self.trials()
        slot = _slot(trial, everything)
        before = [other for other in everything if other.number < trial.number]
        # Databases other than SQLite have no lock around all this: of two processes that claim the last free
        # trial, the one with the higher number gives it up.
        surplus = "slot" not in trial.user_attrs and _count(before) >= total
        done = any(_slot(other, before) == slot and other.state.name in ("COMPLETE", "PRUNED") for other in before)
        lock = None if surplus or done else try_lock(self.lock_file(slot))
        if lock is None:
            self.study.tell(trial, state=self.optuna.trial.TrialState.FAIL)
            return None
        for name, value in {"slot": slot, "owner": self._owner(), "beat": time.time()}.items():
            trial.set_user_attr(name, value)
        self.study.sampler = self._sampler(slot)
        return Lease(trial, slot, lock)

    @contextmanager
    def at_work(self, lease: Lease) -> Iterator[None]:
        """Send heartbeats; queue the trial again if the block ends without a result.

        Raises:
            LostTrialError: another process was given the trial meanwhile.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(lease.trial, ended), daemon=True)
        thread.start()
        try:
            yield
        except BaseException as error:
            ended.set()
            thread.join()
            if isinstance(error, RuntimeError) and self._is_lost(lease):  # Optuna's error when writing in that case
                raise self._lost(lease) from error
            with self._alone():
                self._queue_again(lease.trial.number)
            raise
        finally:
            ended.set()
            thread.join()
            lease.lock.close()

    def finish(self, lease: Lease, state: str, value: float | None, facts: Mapping[str, Any]) -> None:
        """Write a result: ``COMPLETE`` with a value, ``PRUNED``, or ``FAIL`` with the fact ``failure``.

        Raises:
            LostTrialError: another process was given the trial meanwhile.
        """
        if self._is_lost(lease):
            raise self._lost(lease)
        for name, fact in facts.items():
            lease.trial.set_user_attr(name, fact)
        self.study.tell(lease.trial, value, state=self.optuna.trial.TrialState[state])
        lease.done = True

    def _is_lost(self, lease: Lease) -> bool:
        number = lease.trial.number
        return not lease.done and any(
            trial.number == number and trial.state.name != "RUNNING" for trial in self.trials()
        )

    def _lost(self, lease: Lease) -> LostTrialError:
        what = "the final training" if self.part == "final" else f"trial {lease.slot:04d}"
        return LostTrialError(
            f"{what} was given to another process, because this one sent no heartbeat for {GRACE / 60:.0f} minutes "
            "(the machine slept, or the database was not reachable): its work here is discarded."
        )

    def trials(self) -> list[Any]:
        """Every trial that Optuna knows, including abandoned and surplus ones."""
        return list(self.study.get_trials(deepcopy=False))

    def slots(self) -> dict[int, Any]:
        """The state of every slot: Optuna's last trial for it. Surplus ones are left out."""
        found: dict[int, Any] = {}
        everything = self.trials()
        for trial in everything:
            if trial.state.name != "FAIL" or "failure" in trial.user_attrs:
                found[_slot(trial, everything)] = trial
        return dict(sorted(found.items()))

    def lock_file(self, slot: int) -> Path:
        """Held by the process that works on a slot."""
        return self.folder / "locks" / f"{self.part}-{slot:04d}"

    def release_dead(self) -> list[int]:
        """Queue trials again whose process is gone; returns their slots."""
        everything = self.trials()
        dead = [trial for trial in everything if trial.state.name == "RUNNING" and self._is_dead(trial)]
        for trial in dead:
            self._queue_again(trial.number)
        return [_slot(trial, everything) for trial in dead]

    def _is_dead(self, trial: Any) -> bool:
        owner, beat = trial.user_attrs.get("owner"), trial.user_attrs.get("beat")
        if owner is None or beat is None:
            # Killed between drawing and recording its slot. Both happen with the guard held, which this process now holds.
            if self._guard_file is not None:
                return True
            # Without one the only time known is the other machine's local one.
            started = trial.datetime_start
            return started is not None and datetime.now() - started > timedelta(hours=26, seconds=GRACE)
        here = self._owner()
        shares_this_folder = (owner.get("host"), owner.get("folder")) == (here["host"], here["folder"])
        lock = self.lock_file(trial.user_attrs["slot"])
        if shares_this_folder and lock.exists():
            # A process that holds it is alive, however old its last heartbeat: machines sleep.
            return is_free(lock)
        return bool(time.time() - float(beat) > GRACE)

    def _queue_again(self, number: int) -> None:
        everything = self.trials()
        trial = next(trial for trial in everything if trial.number == number)
        try:
            self.study.tell(number, state=self.optuna.trial.TrialState.FAIL)
        except (ValueError, RuntimeError):  # another process was faster, or the result is already written
            return
        if "failure" in trial.user_attrs:  # it had failed, and died before it could record that
            return
        kept = {key: trial.user_attrs[key] for key in KEPT if key in trial.user_attrs}
        self.study.enqueue_trial(
            dict(trial.params), user_attrs={**kept, "slot": _slot(trial, everything), "again": True}
        )

    def _beat(self, trial: Any, ended: threading.Event) -> None:
        while not ended.wait(BEAT):
            # A database that is not reachable for a while must not stop a training; the next heartbeat follows.
            with contextlib.suppress(Exception):
                trial.set_user_attr("beat", time.time())

    def _owner(self) -> dict[str, Any]:
        return {"host": platform.node(), "folder": str(self.folder.resolve()), "process": os.getpid()}

    def _sampler(self, slot: int) -> Any:
        """Seeded by the slot: the settings do not depend on the process that draws them, and no two slots draw alike."""
        optuna, seed = self.optuna, int(np.random.SeedSequence([self.seed, slot]).generate_state(1)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # options that Optuna calls experimental
            if self.sampler == "tpe":
                return optuna.samplers.TPESampler(seed=seed, multivariate=False, constant_liar=True)
            return optuna.samplers.RandomSampler(seed=seed)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Held while a trial is claimed: with SQLite alone, two processes could read the same state before either writes."""
        if self._guard_file is None:
            yield
            return
        with exclusive(self._guard_file):
            yield


def _slot(trial: Any, everything: list[Any]) -> int:
    """The slot recorded with the trial, or the number of earlier trials that were not repetitions."""
    if "slot" in trial.user_attrs:
        return int(trial.user_attrs["slot"])
    return sum(other.number < trial.number and "again" not in other.user_attrs for other in everything)


def _count(trials: list[Any]) -> int:
    """Number of trials that are done, running or queued; a trial that was queued again counts once."""
    return sum(trial.state.name != "FAIL" or "failure" in trial.user_attrs for trial in trials)


def _address(folder: Path, storage: str | None) -> tuple[str, Path | None]:
    """The database's address, and for an SQLite file the lock next to it."""
    text = storage or str(folder / "study.db")
    if "://" in text and not text.startswith("sqlite:///"):
        return text, None
    path = Path(text.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{path}", path.with_name(f"{path.name}.lock")


def shown_address(url: str) -> str:
    """An address without its password."""
    start, at, end = url.rpartition("@")
    if not at or "://" not in start:
        return url
    scheme, _, account = start.partition("://")
    return f"{scheme}://{account.split(':')[0]}@{end}"
