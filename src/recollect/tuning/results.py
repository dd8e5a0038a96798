"""A study as plain records: every trial, the chosen one, the importance of each parameter, the cost.

Read from the database only, so that every participating machine can write the whole report. ``study_page.py`` and
the command line show these records; ``trials.csv`` and ``study.json`` contain them.
"""

from __future__ import annotations

import csv
import io
import math
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from recollect._version import __version__
from recollect.common.files import write_json, write_text
from recollect.tuning.protocol import Protocol
from recollect.tuning.study_database import StudyDatabase

_STATES = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "queued"}
MIN_FOR_IMPORTANCE = 20
"""Trials below which the importance of parameters is noise."""
BEST_SHARE = 0.3
"""Share of best trials that are compared with all. A tenth of 20 would be two, and anything these two have in common
would appear important."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial. ``value`` is the best validation metric as a fraction; values that are not known yet are None."""

    number: int
    state: str
    drawn: dict[str, Any]
    settings: dict[str, Any]
    value: float | None = None
    best_epoch: float | None = None
    best_step: int | None = None
    map_at_r: float | None = None
    steps: int = 0
    seconds: float = 0.0
    images: int = 0
    host: str = ""
    failure: str = ""
    curve: list[tuple[float, float]] = field(default_factory=list)

    @property
    def merit(self) -> tuple[float, float, int]:
        """The key for comparing trials: the validation metric; among equals mAP@R, then the earlier trial."""
        return self.value or 0.0, self.map_at_r or 0.0, -self.number


@dataclass(frozen=True)
class StudyResults:
    """A study.

    Attributes:
        name: name of the study. recipe: the tuned recipe. select: the validation metric.
        space: parameter → its range, as text.
        trials: by number. chosen: the number of the best, None as long as there is none.
        importance: parameter → share; empty with few trials.
        seconds, images: cost of the search, over all trials.
        final: the training on all classes and its test, once done.
        protocol: classes and images of both halves, remarks.
    """

    name: str
    folder: str
    recipe: str
    data: str
    select: str
    sampler: str
    seed: int
    space: dict[str, str]
    trials: list[TrialRecord]
    chosen: int | None
    importance: dict[str, float]
    seconds: float
    images: int
    final: dict[str, Any] | None
    protocol: dict[str, Any]

    @property
    def best(self) -> TrialRecord | None:
        """The chosen trial."""
        return next((trial for trial in self.trials if trial.number == self.chosen), None)

    def count(self, *states: str) -> int:
        """How many trials are in one of these states."""
        return sum(trial.state in states for trial in self.trials)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in ``study.json``."""
        return {"written_by": f"recollect {__version__}", **asdict(self)}


def read_results(store: StudyDatabase, protocol: Protocol, final: dict[str, Any] | None = None) -> StudyResults:
    """Everything the database contains about a study."""
    trials = [_record(slot, trial) for slot, trial in store.slots().items()]
    best = best_trial(trials)
    base = protocol.base
    return StudyResults(
        name=store.study.study_name,
        folder=str(store.folder),
        recipe=base.name,
        data=base.data.title,
        select=base.run.select,
        sampler=store.sampler,
        seed=store.seed,
        space={name: str(parameter) for name, parameter in protocol.space.items()},
        trials=trials,
        chosen=None if best is None else best.number,
        importance=importance(
            store.optuna, store.study, [name for name, parameter in protocol.space.items() if not parameter.fixed]
        ),
        seconds=round(sum(trial.seconds for trial in trials), 1),
        images=sum(trial.images for trial in trials),
        final=final,
        protocol={
            "train": {"classes": protocol.train[0], "images": protocol.train[1]},
            "validation": {"classes": protocol.validation[0], "images": protocol.validation[1]},
            "fingerprints": dict(protocol.fingerprints),
            "batch": protocol.batch,
            "final_batch": base.batch.size,
            "remarks": list(protocol.remarks),
            "published": dict(base.published),
        },
    )


def best_trial(trials: list[TrialRecord]) -> TrialRecord | None:
    """The completed trial with the highest validation metric; among equals see ``TrialRecord.merit``."""
    done = [trial for trial in trials if trial.state == "done" and trial.value is not None]
    return max(done, key=lambda trial: trial.merit, default=None)


def write_tables(folder: Path, results: StudyResults) -> None:
    """Write ``trials.csv`` and ``study.json``."""
    write_json(folder / "study.json", results.as_dict())
    text = io.StringIO()
    keys = list(dict.fromkeys(key for trial in results.trials for key in trial.settings))
    head = [
        "trial",
        "state",
        "chosen",
        results.select,
        "map@r",
        "best_epoch",
        "steps",
        "seconds",
        "images",
        *keys,
        "host",
    ]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*head, "failure"])
    for trial in results.trials:
        chosen = "yes" if trial.number == results.chosen else ""
        known = [trial.number, trial.state, chosen, trial.value, trial.map_at_r, trial.best_epoch]
        values = [_cell(trial.settings.get(key)) for key in keys]
        writer.writerow([*known, trial.steps, trial.seconds, trial.images, *values, trial.host, trial.failure])
    write_text(folder / "trials.csv", text.getvalue())


def _cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _record(slot: int, trial: Any) -> TrialRecord:
    known = trial.user_attrs
    return TrialRecord(
        number=slot,
        state=_STATES[trial.state.name],
        drawn=dict(known.get("drawn", {})),
        settings=dict(known.get("settings", {})),
        value=None if trial.state.name == "FAIL" else known.get("value"),
        best_epoch=known.get("best_epoch"),
        best_step=known.get("best_step"),
        map_at_r=known.get("map_at_r"),
        steps=int(known.get("steps", 0)),
        seconds=float(known.get("seconds", 0.0)),
        images=int(known.get("images", 0)),
        host=str(known.get("owner", {}).get("host", "")),
        failure=str(known.get("failure", "")),
        curve=[(float(epoch), float(value)) for epoch, value in known.get("curve", [])],
    )


def importance(optuna: Any, study: Any, names: list[str]) -> dict[str, float]:
    """PED-ANOVA: how far the best trials' values of a parameter differ from all values. Needs no other package.

    Returns:
        Parameter → share; empty with fewer than ``MIN_FOR_IMPORTANCE`` finished trials, or if all have one value.
    """
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    if len(done) < MIN_FOR_IMPORTANCE or not names or len({trial.value for trial in done}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls the evaluator experimental
        found = optuna.importance.get_param_importances(study, evaluator=_evaluator(optuna), params=names)
    shares = {str(name): round(float(value), 4) for name, value in found.items()}
    return shares if math.isfinite(sum(shares.values())) else {}


def _evaluator(optuna: Any) -> Any:
    kind = optuna.importance.PedAnovaImportanceEvaluator
    try:
        return kind(target_quantile=BEST_SHARE)
    except TypeError:  # the option's name in Optuna's earlier releases
        return kind(baseline_quantile=BEST_SHARE)
