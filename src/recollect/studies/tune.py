"""``tune``: search settings on the training classes, train once with the best on all of them, and test once.

While trials run, only the training split can be loaded in this process (``only_splits``). ``_finish`` is the first to load
a test set: its list when the search is over, and its images after the choice has been written to the database, which closes
the study. Any number of processes may call ``tune`` on the same study at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from recollect.common import plugins
from recollect.common.errors import ConfigError, InputError
from recollect.common.reading import read_json
from recollect.common.text import in_words, number_of
from recollect.config.schema import Config
from recollect.data import ImageSet, only_splits
from recollect.data.registry import find_source
from recollect.inference.evaluate import measure_and_keep
from recollect.inference.models import open_model
from recollect.inference.test_sets import as_test_set
from recollect.studies.pages import write_study
from recollect.studies.protocol import Protocol, final_run_config, read_protocol, trial_config
from recollect.studies.runner import ForeignRunError, TrialQueue, check_names, finish_run, has_diverged, read_validation
from recollect.studies.space import Parameter, Value, as_settings
from recollect.studies.summary import StudyResults, TrialRecord, read_results, write_tables
from recollect.training import trainer
from recollect.training.build import load_split
from recollect.training.callbacks import Callback, TrainingStoppedError
from recollect.training.plan import Plan, few_queries
from recollect.training.run import RunFolder, now

logger = logging.getLogger(__name__)


def tune(
    config: Config,
    out: Path | str | None = None,
    *,
    trials: int = 20,
    space: list[str] | None = None,
    sampler: str = "random",
    pruner: str = "none",
    seed: int = 0,
    storage: str | None = None,
    final: bool = True,
) -> StudyResults:
    """Search for settings on the training classes; then train once on all of them and test once.

    Args:
        config: a recipe with the user's settings (``recollect.resolve``).
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
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "recollect tune runs each trial in one process: instead of torchrun, start the command several times on the "
            "same study."
        )
    folder = study_folder(config, out)
    protocol = read_protocol(config, space)
    # The lock is created just before the database: a second process may start in between.
    is_study = storage is not None or any((folder / name).exists() for name in ("study.db", "study.db.lock"))
    if folder.exists() and not is_study and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder and not a study: choose another --out.")
    search = TrialQueue(folder, storage, sampler=sampler, pruner=pruner, seed=seed)
    search.check_identity({**protocol.identity(), "sampler": sampler, "pruner": pruner, "seed": seed})
    closing = TrialQueue(folder, storage, part="final")
    for line in study_lines(protocol, folder, trials, sampler, pruner):
        logger.info(line)
    if not closing.slots():
        with only_splits(protocol.base.data.train_split):
            # Results are written after each trial, so that a long search can be watched.
            search.run(
                trials, partial(_run_trial, search, protocol, trials), lambda: _write_results(search, closing, protocol)
            )
    elif len(search.slots()) < trials:
        raise ConfigError(
            f"{folder} is closed: its choice was made among {number_of(len(search.slots()), 'trial')}, and more trials after "
            "the test could be chosen by it. Use the same number of trials, or start a new study with another --out."
        )
    results = _write_results(search, closing, protocol)
    unfinished = results.count("running", "queued") + max(0, trials - len(results.trials))
    if unfinished:
        logger.info(
            f"{number_of(unfinished, 'trial is/trials are')} not done yet; run the same command again, or let the last "
            "running process finish."
        )
    elif results.best is None:
        failures = [trial.failure for trial in results.trials if trial.failure]
        reason = f"{number_of(len(failures), 'trial')} failed: {failures[0]} " if failures else ""
        logger.info(
            f"no trial finished, so there is nothing to choose. {reason}Every trial is in trials.csv; a study with other "
            "settings or another --space needs another --out."
        )
    elif final:
        with plugins.trusting():  # the run refers to the code that the user named for the study
            _finish(closing, protocol, results.best)
        results = _write_results(search, closing, protocol)
    logger.info(f"report     {folder / 'report.html'}")
    return results


def study_folder(config: Config, out: Path | str | None) -> Path:
    """The folder of a study: the same for the same recipe, so that the same command resumes it."""
    return Path(out) if out is not None else Path("runs") / f"tune-{config.name.replace('/', '-')}"


def study_lines(protocol: Protocol, folder: Path, trials: int, sampler: str, pruner: str) -> list[str]:
    """The plan of the search."""
    train, validation = protocol.train, protocol.validation
    return [
        f"study      {folder}: {number_of(trials, 'trial')} of {protocol.base.name}, {sampler} sampler"
        + ("" if pruner == "none" else f", {pruner} pruning"),
        f"trains     on the first {train['classes']:,} training classes ({train['images']:,} images)",
        f"validates  on the other {validation['classes']:,} ({validation['images']:,} images), by "
        f"{protocol.base.run.select}",
        f"varies     {', '.join(f'{name} {parameter}' for name, parameter in protocol.space.items())}",
        *(f"note       {remark}" for remark in (*protocol.remarks, *few_queries(validation["images"]))),
    ]


def _write_results(search: TrialQueue, closing: TrialQueue, protocol: Protocol) -> StudyResults:
    """Write the tables and the page, and return their content."""
    results = read_results(search, protocol, _final_result(closing))
    write_tables(search.folder, results)
    write_study(search.folder / "report.html", results)
    return results


# Trials -----------------------------------------------------------------------------------------------------------------


def _run_trial(queue: TrialQueue, protocol: Protocol, total: int, trial: Any, slot: int) -> float | None:
    """Draw settings, train and validate with them, and record the result."""
    drawn = {name: parameter.draw(trial) for name, parameter in protocol.space.items()}
    trial.set_user_attr("drawn", drawn)
    path, select, label = queue.folder / "trials" / f"{slot:04d}", protocol.base.run.select, f"trial {slot:04d}"
    resumed = ", resumed" if (path / "config.yaml").exists() else ""
    values = ", ".join(f"{name} {f'{v:.3g}' if isinstance(v, float) else v}" for name, v in drawn.items())
    logger.info(f"{label} ({slot + 1} of {total}{resumed}): {values}")
    pruned, failure = False, None
    try:
        settings = as_settings(drawn)
        trial.set_user_attr("settings", settings)
        reports = _Reports(trial, path, select, queue.optuna.TrialPruned)
        reports.update()
        finish_run(path, trial_config(protocol, settings), reports)
    except queue.optuna.TrialPruned:
        pruned = True
    except TrainingStoppedError as error:
        if not has_diverged(error):
            raise TrainingStoppedError(
                f"stopped on request: {label} is saved and queued. The same command resumes it.", error.exit_code
            ) from error
        failure = str(error)
    except ForeignRunError:
        raise
    except (ConfigError, InputError) as error:
        # Settings that contradict each other only in this combination, or that only the network refuses. The next draw
        # may be valid, and this one would fail again.
        failure = str(error)
    validation = read_validation(path, select)
    for name, value in validation.items():
        trial.set_user_attr(name, value)
    if failure is not None:
        trial.set_user_attr("failure", failure)
        logger.info(f"{label} failed: {failure}")
        return None
    if not validation:
        raise ConfigError(f"run.select {select!r} was not computed in {path}.")
    logger.info(
        f"{label} {'stopped early: ' if pruned else ''}validation {select} {100 * validation['value']:.2f} % at epoch "
        f"{validation['best_epoch']:g}, {validation['seconds']:,.0f} s"
    )
    if pruned:
        RunFolder(path).update_manifest(pruned={"at": now(), "epoch": max(epoch for epoch, _ in validation["curve"])})
        raise queue.optuna.TrialPruned
    return float(validation["value"])


class _Reports(Callback):
    """Reports each validation to Optuna, and stops a trial that falls behind the others."""

    def __init__(self, trial: Any, path: Path, select: str, pruned: type[Exception]) -> None:
        self.trial, self.path, self.select, self.pruned = trial, path, select, pruned
        self.epochs: set[int] = set()

    def update(self) -> bool:
        """Report every new evaluation, and return whether there is any; a resumed trial is a new one for Optuna.

        The untrained network's is not reported: the pruner compares a trial's best so far, and a start that is better than
        the trained network would keep every trial running.
        """
        validation = read_validation(self.path, self.select)
        for epoch, value in validation.get("curve", ()):
            if epoch > 0 and round(epoch) not in self.epochs:
                self.trial.report(value, round(epoch))
                self.epochs.add(round(epoch))
        return bool(validation)

    def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        if self.update() and step > 0 and self.trial.should_prune():
            raise self.pruned


# The end ----------------------------------------------------------------------------------------------------------------


def _final_result(closing: TrialQueue) -> dict[str, Any] | None:
    """The result of the final training, if it is done."""
    trials = closing.slots().values()
    return next((dict(trial.user_attrs["result"]) for trial in trials if trial.state.name == "COMPLETE"), None)


def _finish(closing: TrialQueue, protocol: Protocol, best: TrialRecord) -> None:
    """Train and test with the best trial's settings, unless that is already done or in progress.

    Raises:
        DataError: the test set is missing. Nothing is lost, and the study stays open; run the same command again once
            it is available.
    """
    done = _final_result(closing)
    if done is not None:
        logger.info(f"final      already done, with trial {done['trial']:04d}: showing the result, not repeating it")
        _log_metrics(done["metrics"])
        return
    # Checked before hours of training, and before the study is closed: without a test set it must stay open.
    data, splits = protocol.base.data, find_source(protocol.base.data.name).test_splits
    if data.test_split != "test" or "test" in splits:  # VehicleID has three, GLDv1 has none
        splits = (data.test_split,)
    tests = {f"{data.name}/{split}": load_split(data, split) for split in splits}
    closing.run(1, partial(_run_final, closing.folder / "final", protocol, best, tests))
    if _final_result(closing) is None:
        logger.info("final      is being trained by another process")


def _run_final(
    folder: Path, protocol: Protocol, best: TrialRecord, tests: Mapping[str, ImageSet], trial: Any, slot: int
) -> float:
    choice = {"trial": best.number, "settings": best.settings, "epoch": best.best_epoch, "value": best.value}
    choice = trial.user_attrs.get("chosen", choice)
    trial.set_user_attr("chosen", choice)  # from now on the study is closed
    epochs = max(1, round(choice["epoch"]))
    config = final_run_config(protocol, choice["settings"], epochs)
    logger.info(
        f"chosen     trial {choice['trial']:04d}: validation {config.run.select} {100 * choice['value']:.2f} %, best at epoch "
        f"{choice['epoch']:g}"
    )
    logger.info(f"final      {number_of(epochs, 'epoch')} on all training classes, in {folder}")
    outcome = finish_run(folder, config)
    metrics = {name: _test(folder, config, images) for name, images in tests.items()}
    _log_metrics(metrics)
    if not tests:
        logger.info(f"test       {config.data.title} has no test split: evaluate it with recollect eval {folder}")
    plan = RunFolder(folder).read_manifest().get("plan", {})
    result = {
        "folder": str(folder),
        "trial": choice["trial"],
        "validation": choice["value"],
        "settings": choice["settings"],
        "epochs": epochs,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "images": outcome.steps * int(plan.get("batch", 0)),
        "classes": plan.get("classes"),
        "metrics": metrics,
    }
    trial.set_user_attr("result", result)
    return float(choice["value"])


def _log_metrics(metrics: Mapping[str, Mapping[str, float]]) -> None:
    for name, values in metrics.items():
        texts = [f"{key} {100 * value:.2f}" for key, value in values.items() if key.startswith(("r@", "map@r"))]
        logger.info(f"test       {name}, in %: {'  '.join(texts)}")


def _test(folder: Path, config: Config, images: ImageSet) -> dict[str, float]:
    """Metrics of one test set, computed once and stored where ``recollect eval`` stores them.

    Images that cannot be read are left out and named, as in the verdict of a training: a search may not look at the test
    images before, and one broken photo must not end it after days.
    """
    data = replace(config.data, test_split=images.split, on_bad_image="skip")
    # The search is over and the set belongs to the data set: no image is left out.
    test = as_test_set(images, data, folder, trained_classes="keep")
    place = folder / "eval" / test.name
    if (place / "metrics.json").exists():
        return dict(read_json(place / "metrics.json", dict)["metrics"])
    device = None if config.run.device == "auto" else config.run.device
    metrics = measure_and_keep(open_model(folder, device=device), test)
    for bad in read_json(place / "metrics.json", dict)["source"]["skipped"]:
        logger.warning(f"left out of the test: {bad['name']}: {bad['reason']}")
    return metrics


# The plan ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedTuning:
    """The plan of a search.

    Attributes:
        protocol: what is searched, and on which classes. folder: of the study.
        typical: a trial in the middle of the search space, and ``trial`` its plan.
    """

    protocol: Protocol
    folder: Path
    trials: int
    sampler: str
    pruner: str
    typical: Mapping[str, Value]
    trial: Plan

    @property
    def seconds(self) -> float:
        """About how long all trials take."""
        return self.trial.seconds * self.trials

    def lines(self) -> list[str]:
        """The plan in words, one line each."""
        length = f"{in_words(self.seconds)} for {number_of(self.trials, 'trial')}"
        return [
            *study_lines(self.protocol, self.folder, self.trials, self.sampler, self.pruner),
            *(
                f"{name:<10} {text}"
                for name, text in self.trial.rows()
                if name in ("model", "batch", "chunk", "machine")
            ),
            f"a trial    of {self.typical['epochs']} epochs is {number_of(self.trial.steps, 'step')}",
            f"time       about {length}; then one training on all training classes, and the test",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, e.g. for ``--json``."""
        protocol = self.protocol
        return {
            **{name: getattr(self, name) for name in ("trials", "sampler", "pruner", "seconds")},
            "study": str(self.folder),
            "recipe": protocol.base.name,
            "space": protocol.ranges,
            "select": protocol.base.run.select,
            "train": dict(protocol.train),
            "validation": dict(protocol.validation),
            "notes": list(protocol.remarks),
            "typical_trial": {"settings": dict(self.typical), **self.trial.as_dict()},
        }


def plan_tuning(
    config: Config,
    out: Path | str | None = None,
    *,
    trials: int,
    space: list[str] | None = None,
    sampler: str = "random",
    pruner: str = "none",
) -> PlannedTuning:
    """What ``tune`` would do, with the time of a typical trial, measured on a few images; ``lines()`` returns it as text.

    Writes nothing except cached features.

    Args:
        config, out, trials, space, sampler, pruner: as for ``tune``.

    Example:
        >>> import recollect
        >>> settings = {"data.root": "photos", "model.init": "tiny", "batch.size": 8}
        >>> plan_tuning(recollect.resolve("folder", settings), trials=5).lines()[-1].split()[:2]
        ['time', 'about']

    Raises:
        ConfigError: settings that ``tune`` would refuse.
    """
    check_names(sampler, pruner)
    protocol = read_protocol(config, space)
    middle = {name: _middle(parameter) for name, parameter in protocol.space.items()}
    with only_splits(config.data.train_split):
        trial = trainer.plan(trial_config(protocol, as_settings(middle)))
    return PlannedTuning(protocol, study_folder(config, out), trials, sampler, pruner, middle, trial)


def _middle(parameter: Parameter) -> Value:
    if parameter.choices:
        return parameter.choices[len(parameter.choices) // 2]
    if isinstance(parameter.low, int) and isinstance(parameter.high, int):
        return (parameter.low + parameter.high) // 2
    return (parameter.low * parameter.high) ** 0.5 if parameter.log else (parameter.low + parameter.high) / 2
