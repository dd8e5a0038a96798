"""One trial: an ordinary training in an ordinary run folder, resumed exactly if it was started before.

The result of a trial is read from the run's own ``metrics.jsonl``, so a trial that was killed after its last step has
the same result as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.common import plugins
from recollect.common.console import only_warnings
from recollect.common.errors import ConfigError
from recollect.config.resolve import absolute_names, as_mapping, changeable_settings, differences
from recollect.config.schema import Config
from recollect.training.callbacks import Callback, TrainingStoppedError
from recollect.training.run_folder import RunFolder, now
from recollect.training.trainer import Outcome, train
from recollect.training.validation import merit


class ForeignRunError(ConfigError):
    """A trial's folder contains a run of another study; this is not a failure of the trial's settings."""


@dataclass(frozen=True)
class Validated:
    """The result of a run on the validation classes.

    Attributes:
        value: the best value of the selection metric among all evaluations after training has begun.
        step, epoch: where it was reached; among equals the one with the highest mAP@R, then the last.
        map_at_r: mAP@R there, which decides between trials that are equal in ``value``.
        curve: epoch → value of every evaluation.
        steps, seconds, images: its cost.
    """

    value: float
    step: int
    epoch: float
    map_at_r: float
    curve: dict[float, float]
    steps: int
    seconds: float
    images: int

    def facts(self) -> dict[str, Any]:
        """Plain values for the database."""
        return {
            "best_step": self.step,
            "best_epoch": self.epoch,
            "map_at_r": self.map_at_r,
            "steps": self.steps,
            "seconds": self.seconds,
            "images": self.images,
            "curve": [[epoch, value] for epoch, value in self.curve.items()],
        }


def run(path: Path, config: Config, callback: Callback | None = None) -> Outcome:
    """As ``begin_or_resume``, but the plan and remarks are written to the run's folder only."""
    with only_warnings("recollect.training"):
        return begin_or_resume(path, config, callback)


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
    """Check that the run in the folder is this trial; machine and place may differ."""
    with plugins.trusting():  # the references are only compared with the user's settings
        one = as_mapping(folder.read_config())
    other = as_mapping(absolute_names(config))
    # References to code are compared first: a resumed trial must not run code that the study does not name.
    named = (("data", "name"), ("data", "augmentation"), ("model", "init"), ("run", "select"), ("run", "loggers"))
    settings = (("optimizer", None), ("loss", None), ("batch", "size"))
    length = (("run", "epochs"), ("run", "steps"), ("run", "seed"))
    for part, name in (*named, *settings, *length):
        there, here = (values[part] if name is None else values[part][name] for values in (one, other))
        if not _agree(there, here):
            key = part if name is None else f"{part}.{name}"
            found = differences({key: there}, {key: here})
            raise ForeignRunError(
                f"{folder.path} contains a run with other settings: {'; '.join(found[:3])}. It is from another study: choose "
                "another --out."
            )


def _agree(there: object, here: object) -> bool:
    """Whether a run's setting is what the study asks for; a run's own configuration says what "auto" came to."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        return there.keys() == here.keys() and all(_agree(there[name], here[name]) for name in here)
    return there == here or (here == "auto" and not (isinstance(there, str) and plugins.is_reference(there)))


def has_diverged(error: TrainingStoppedError) -> bool:
    """Whether a training ended because its loss diverged, not because it was asked to stop."""
    return error.exit_code < 128


def validated(path: Path, select: str) -> Validated | None:
    """The result of a run's evaluations so far; None before the first evaluation after training has begun.

    The untrained network's value is in the curve but is never the best, because it does not depend on the settings.
    """
    folder = RunFolder(path)
    epochs: dict[int, float] = {0: 0.0}
    curve: dict[int, float] = {}
    merits: dict[int, tuple[float, float, int]] = {}
    seconds = 0.0
    for record in folder.read_metrics():
        if record["kind"] == "step":
            epochs[record["step"]] = round(float(record.get("epoch") or 0), 2)
            seconds = float(record.get("seconds") or 0)
        elif record.get("split") == "val" and select in record:
            curve[record["step"]] = float(record[select])
            merits[record["step"]] = merit(record, select, record["step"])
    trained = [step for step in curve if step > 0]
    if not trained:
        return None
    best = max(trained, key=merits.__getitem__)
    manifest = folder.read_manifest()
    outcome: Mapping[str, Any] = manifest.get("outcome") or {}
    steps = max(epochs)
    return Validated(
        value=curve[best],
        step=best,
        epoch=epochs[best],
        map_at_r=merits[best][1],
        curve={epochs[step]: value for step, value in curve.items()},
        steps=steps,
        seconds=round(float(outcome.get("seconds", seconds)), 1),
        images=steps * int(manifest.get("plan", {}).get("batch", 0)),
    )


def mark_pruned(path: Path, epoch: float) -> None:
    """Record in the run's manifest why it stopped early."""
    RunFolder(path).update_manifest(pruned={"at": now(), "epoch": epoch})
