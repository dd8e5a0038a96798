"""``Outcome``: the result of a training, as returned by ``train`` and stored in the manifest; and ``--final``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataWarning, WeightsError
from recollect.common.files import sha256
from recollect.config.automatic import is_pretrained
from recollect.config.resolve import with_changes
from recollect.config.schema import Config, ModelConfig
from recollect.data.registry import find_source
from recollect.evaluation import Verdict
from recollect.inference.models import refuse_moved
from recollect.inference.training_record import read_trained_on, refuse_foreign_images
from recollect.models.weight_files import obtain_weights
from recollect.models.zoo import find
from recollect.training.build import load_split
from recollect.training.resuming import refuse_other_weights
from recollect.training.run_folder import RunFolder

_KEPT = {"steps": 0, "seconds": 0.0, "chosen_step": 0, "metrics": {}}


@dataclass(frozen=True)
class Outcome:
    """The result of a training."""

    folder: Path
    """The run; ``recollect.load(outcome.folder)`` opens its embedder."""
    steps: int
    seconds: float
    chosen_step: int
    """The step whose weights are in ``folder/model``."""
    metrics: dict[str, dict[str, float]]
    """The last evaluation of each watched set, as fractions."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """Verdicts on the held-out classes, by baseline: ``"pretrained"``, ``"start"``."""

    def for_manifest(self, **more: Any) -> dict[str, Any]:
        """Plain values: ``outcome``, with ``more`` in it, and ``verdicts``."""
        kept = {name: value for name, value in vars(self).items() if name in _KEPT}
        return {"outcome": {**kept, **more}, "verdicts": {name: each.as_dict() for name, each in self.verdicts.items()}}

    @classmethod
    def of_manifest(cls, folder: Path, outcome: Mapping[str, Any], verdicts: Mapping[str, Any]) -> Outcome:
        """The inverse of ``for_manifest``, also of what earlier versions wrote."""
        values = {name: outcome.get(name, default) for name, default in _KEPT.items()}
        return cls(folder, **values, verdicts={name: Verdict.from_dict(each) for name, each in verdicts.items()})


def final_config(path: Path | str, settings: Mapping[str, Any] | Iterable[str] = ()) -> Config:
    """The configuration of a training on all classes, with the settings of the run in ``path`` and its chosen step.

    Args:
        path: a finished run.
        settings: changes to those that do not change what is trained: ``{"data.on_bad_image": "skip"}``.

    Raises:
        ConfigError: a run that is not finished, or of a data set that has no split with all classes; other settings; none
            of the run's training images are there.
        DataError: its images moved.

    Example:
        >>> config = final_config("run")
        >>> config.data.train_split, config.run.steps
        ('all', 1)
    """
    run = RunFolder.open(path)
    config, outcome = run.read_config(), run.read_manifest().get("outcome")
    if not isinstance(outcome, dict):
        raise ConfigError(f"{path} is not finished, so its length is not known: recollect train --resume {path} first.")
    if "all" not in find_source(config.data.name).splits:
        raise ConfigError(f"{config.data.name} has no split with all classes, which --final needs.")
    config = with_changes(config, settings, "--final takes its settings from the run")
    refuse_moved(config.data)
    data = replace(config.data, train_split="all", validation="none", validation_root=None)
    _refuse_replaced_weights(run, config.model)
    if (known := read_trained_on(run.path)) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # training loads them again and says it
            images = load_split(data, "all")
        if (missing := refuse_foreign_images(run.path, known, images)) is not None:
            warnings.warn(missing, DataWarning, stacklevel=2)
    return replace(
        config,
        data=data,
        run=replace(config.run, steps=int(outcome.get("chosen_step", 0)), epochs=None, watch_test=False, verdict=False),
    )


def _refuse_replaced_weights(run: RunFolder, model: ModelConfig) -> None:
    if not (run.read_manifest().get("weights") or {}).get("sha256"):
        return
    try:
        found = (
            sha256(obtain_weights(find(model.init), model.weights, download=False)) if is_pretrained(model) else None
        )
    except WeightsError:  # training says so, unless it downloads them or gets a model in Python
        return
    refuse_other_weights(run, found)
