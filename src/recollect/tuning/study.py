"""``tune``: runs the trials of this process and, when all trials are done, the final training and test.

Reads as a table of contents. While trials run, only the training split can be loaded in this process
(``only_splits``); ``final.py`` is the first to open the test set, after the choice has been written. Any number of
processes may call ``tune`` on the same study at once.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.common import plugins
from recollect.common.errors import ConfigError, InputError
from recollect.common.text import number_of
from recollect.config.schema import Config
from recollect.data import only_splits
from recollect.training.callbacks import Callback, TrainingStoppedError
from recollect.training.estimate import few_queries
from recollect.tuning.final import finish_study, read_final
from recollect.tuning.protocol import Protocol, read_protocol, trial_config
from recollect.tuning.results import StudyResults, read_results, write_tables
from recollect.tuning.space import as_settings
from recollect.tuning.study_database import Lease, LostTrialError, StudyDatabase
from recollect.tuning.study_page import write_page
from recollect.tuning.trial import ForeignRunError, Validated, has_diverged, mark_pruned, run, validated

logger = logging.getLogger(__name__)
TRIALS = 20


def tune(
    config: Config,
    out: Path | str | None = None,
    *,
    trials: int = TRIALS,
    space: list[str] | None = None,
    sampler: str = "random",
    pruner: str = "none",
    seed: int = 0,
    storage: str | None = None,
    final: bool = True,
) -> StudyResults:
    """Search for settings on the training classes; then train once on all of them and test once.

    Args:
        config: a recipe with the user's settings (``recipes.resolve``).
        out: the study's folder, ``runs/tune-<recipe>`` by default. An existing study is resumed.
        trials: total number of trials of the study, over all processes and calls.
        space: changes to the default search space, see ``space.read_space``.
        sampler: ``"random"`` or ``"tpe"``.
        pruner: ``"none"``, or ``"median"``: stop a trial that is below the median of the others at the same epoch.
        seed: seed of the draws; the seed of the training runs is ``run.seed``.
        storage: a database's address or an SQLite file, shared by processes on several machines.
        final: whether to train on all classes and test when all trials are done.

    Returns:
        Every trial, the chosen one, and the final result if there is one.

    Raises:
        ConfigError: invalid settings, or the study belongs to other settings or is closed.
        MissingExtraError: Optuna is not installed.
        TrainingStoppedError: it was asked to stop; the same call resumes.

    Example:
        >>> import recollect
        >>> settings = {"data.root": "photos", "model.init": "tiny", "run.epochs": 1, "batch.size": 8}
        >>> results = tune(recollect.resolve("folder", settings), "study", trials=1, final=False)
        >>> len(results.trials)
        1
    """
    _refuse(trials)
    folder = study_folder(config, out)
    protocol = read_protocol(config, space)
    store = _open(folder, protocol, storage, sampler, pruner, seed)
    closing = StudyDatabase(folder, storage, part="final")
    for line in lines(protocol, folder, trials, sampler, pruner):
        logger.info(line)
    if not closing.slots():
        _search(store, closing, protocol, trials)
    elif len(store.slots()) < trials:
        raise ConfigError(
            f"{folder} is closed: its choice was made among {number_of(len(store.slots()), 'trial')}, and more trials after "
            "the test could be chosen by it. Use the same number of trials, or start a new study with another --out."
        )
    results = write_results(store, closing, protocol)
    unfinished = results.count("running", "queued") + max(0, trials - len(results.trials))
    if unfinished:
        logger.info(
            f"{number_of(unfinished, 'trial is/trials are')} not done yet; run the same command again, or let the last "
            "running process finish."
        )
    elif results.best is None:
        logger.info(f"no trial finished, so there is nothing to choose. {_reasons(results)}")
    elif final:
        with plugins.trusting():  # the run refers to the code that the user named for the study
            finish_study(closing, protocol, results.best)
        results = write_results(store, closing, protocol)
    logger.info(f"report     {folder / 'report.html'}")
    return results


def study_folder(config: Config, out: Path | str | None) -> Path:
    """The folder of a study: the same for the same recipe, so that the same command resumes it."""
    return Path(out) if out is not None else Path("runs") / f"tune-{config.name.replace('/', '-')}"


def lines(protocol: Protocol, folder: Path, trials: int, sampler: str, pruner: str) -> list[str]:
    """The plan of the search."""
    varied = [f"{name} {parameter}" for name, parameter in protocol.space.items()]
    select = protocol.base.run.select
    return [
        f"study      {folder}: {number_of(trials, 'trial')} of {protocol.base.name}, {sampler} sampler"
        + ("" if pruner == "none" else f", {pruner} pruning"),
        f"trains     on the first {protocol.train[0]:,} training classes ({protocol.train[1]:,} images)",
        f"validates  on the other {protocol.validation[0]:,} ({protocol.validation[1]:,} images), by {select}",
        f"varies     {', '.join(varied)}",
        *(f"note       {remark}" for remark in protocol.remarks),
        *(f"note       {remark}" for remark in few_queries(protocol.validation[1])),
    ]


def write_results(store: StudyDatabase, closing: StudyDatabase, protocol: Protocol) -> StudyResults:
    """Write the tables and the page, and return their content."""
    results = read_results(store, protocol, read_final(closing))
    write_tables(store.folder, results)
    write_page(store.folder / "report.html", results)
    return results


def _refuse(trials: int) -> None:
    if trials < 1:
        raise ConfigError(f"--trials {trials}: give 1 or more.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "recollect tune runs each trial in one process: instead of torchrun, start the command several times on the "
            "same study."
        )


def _open(folder: Path, protocol: Protocol, storage: str | None, sampler: str, pruner: str, seed: int) -> StudyDatabase:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file: choose another --out.")
    # The lock is created just before the database: a second process may start in between.
    known = storage is not None or any((folder / name).exists() for name in ("study.db", "study.db.lock"))
    if not known and folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty and not a study: choose another --out.")
    store = StudyDatabase(folder, storage, sampler=sampler, pruner=pruner, seed=seed)
    store.agree({**protocol.identity(), "sampler": sampler, "pruner": pruner, "seed": seed})
    return store


def _search(store: StudyDatabase, closing: StudyDatabase, protocol: Protocol, trials: int) -> None:
    """Run trials until there are enough. Only the training split can be read here."""
    with only_splits(protocol.base.data.train_split):
        while (lease := store.claim(trials)) is not None:
            try:
                with store.at_work(lease):
                    _do(store, lease, protocol, trials)
            except LostTrialError as error:
                logger.info(f"note       {error}")
            write_results(store, closing, protocol)  # so that a long search can be watched


def _do(store: StudyDatabase, lease: Lease, protocol: Protocol, trials: int) -> None:
    drawn = {name: parameter.draw(lease.trial) for name, parameter in protocol.space.items()}
    lease.trial.set_user_attr("drawn", drawn)
    path, select = store.folder / "trials" / f"{lease.slot:04d}", protocol.base.run.select
    label = f"trial {lease.slot:04d}"
    place = list(store.slots()).index(lease.slot) + 1
    again = ", resumed" if (path / "config.yaml").exists() else ""
    logger.info(
        f"{label} ({place} of {trials}{again}): {', '.join(f'{name} {shown(value)}' for name, value in drawn.items())}"
    )
    pruned = store.optuna.TrialPruned

    class Pruning(Callback):
        """Reports each validation, and stops a trial that falls behind the others."""

        def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
            so_far = validated(path, select)
            _report(lease, so_far)
            if so_far is not None and step > 0 and lease.trial.should_prune():
                raise pruned

    try:
        settings = as_settings(drawn)
        lease.trial.set_user_attr("settings", settings)
        _report(lease, validated(path, select))
        run(path, trial_config(protocol, settings), Pruning())
    except pruned:
        found = validated(path, select)
        mark_pruned(path, max(found.curve) if found else 0.0)
        store.finish(lease, "PRUNED", None, _facts(found))
        logger.info(f"{label} stopped early: {_told(found, select)}")
    except TrainingStoppedError as error:
        if not has_diverged(error):
            raise TrainingStoppedError(
                f"stopped on request: trial {lease.slot:04d} is saved and queued. The same command resumes it.",
                error.exit_code,
            ) from error
        store.finish(lease, "FAIL", None, {**_facts(validated(path, select)), "failure": str(error)})
        logger.info(f"{label} failed: {error}")
    except ForeignRunError:
        raise
    except (ConfigError, InputError) as error:
        # Settings that contradict each other only in this combination, or that only the network refuses. The next draw
        # may be valid, and this one would fail again.
        store.finish(lease, "FAIL", None, {"failure": str(error)})
        logger.info(f"{label} failed: {error}")
    else:
        found = validated(path, select)
        if found is None:
            raise ConfigError(f"run.select {select!r} was not computed in {path}.")
        store.finish(lease, "COMPLETE", found.value, _facts(found))
        logger.info(f"{label} {_told(found, select)}")


def _report(lease: Lease, found: Validated | None) -> None:
    """Report every new evaluation to Optuna, for which a resumed trial is a new one.

    The untrained network's is not reported: the pruner compares a trial's best so far, and a start that is better than
    the trained network would keep every trial running.
    """
    known = lease.trial.study.get_trials(deepcopy=False)[lease.trial.number].intermediate_values
    for epoch, value in () if found is None else found.curve.items():
        if epoch > 0 and round(epoch) not in known:
            lease.trial.report(value, round(epoch))


def _reasons(results: StudyResults) -> str:
    """Why trials failed: the three most frequent reasons; reasons that differ only in numbers count as one."""
    alike: dict[str, list[str]] = {}
    for trial in results.trials:
        if trial.failure:
            alike.setdefault(re.sub(r"\d+", "#", trial.failure), []).append(trial.failure)
    told = [
        f"{number_of(len(texts), 'trial')} failed: {texts[0]}"
        for texts in sorted(alike.values(), key=len, reverse=True)[:3]
    ]
    return " ".join(
        [*told, "Every trial is in trials.csv; a study with other settings or another --space needs another --out."]
    )


def _facts(found: Validated | None) -> dict[str, Any]:
    return {} if found is None else {"value": found.value, **found.facts()}


def _told(found: Validated | None, select: str) -> str:
    if found is None:
        return "no validation"
    return f"validation {select} {100 * found.value:.2f} % at epoch {found.epoch:g}, {found.seconds:,.0f} s"


def shown(value: Any) -> str:
    """A drawn value with few digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
