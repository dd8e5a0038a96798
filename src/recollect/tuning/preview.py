"""A preview of a search: what it would do and about how long it would take. Writes nothing except cached features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.common.text import in_words, number_of
from recollect.config.schema import Config
from recollect.data import only_splits
from recollect.training import trainer
from recollect.training.estimate import Plan
from recollect.tuning.protocol import Protocol, read_protocol, trial_config
from recollect.tuning.space import Parameter, Value, as_settings
from recollect.tuning.study import lines, study_folder
from recollect.tuning.study_database import check_words


@dataclass(frozen=True)
class PlannedTuning:
    """The plan of a search.

    Attributes:
        protocol: what is searched, and on which classes. folder: of the study.
        typical: a trial in the middle of the search space, and ``trial`` its plan; ``said``: that plan in words.
    """

    protocol: Protocol
    folder: Path
    trials: int
    sampler: str
    pruner: str
    typical: Mapping[str, Value]
    trial: Plan
    said: Sequence[str]

    @property
    def seconds(self) -> float:
        """About how long all trials take."""
        return self.trial.time.seconds * self.trials

    def lines(self) -> list[str]:
        """The plan in words, one line each."""
        length = f"{in_words(self.seconds)} for {number_of(self.trials, 'trial')}"
        return [
            *lines(self.protocol, self.folder, self.trials, self.sampler, self.pruner),
            *(line for line in self.said if line.startswith(("model", "batch", "chunk", "machine"))),
            f"a trial    of {self.typical['epochs']} epochs is {number_of(self.trial.length.steps, 'step')}",
            f"time       about {length}; then one training on all training classes, and the test",
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, e.g. for ``--json``."""
        protocol = self.protocol
        return {
            **{name: getattr(self, name) for name in ("trials", "sampler", "pruner", "seconds")},
            "study": str(self.folder),
            "recipe": protocol.base.name,
            "space": {name: str(parameter) for name, parameter in protocol.space.items()},
            "select": protocol.base.run.select,
            "train": dict(zip(("classes", "images"), protocol.train, strict=True)),
            "validation": dict(zip(("classes", "images"), protocol.validation, strict=True)),
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
    check_words(sampler, pruner)
    protocol = read_protocol(config, space)
    middle = {name: _middle(parameter) for name, parameter in protocol.space.items()}
    with only_splits(config.data.train_split):
        trial, said = trainer.plan(trial_config(protocol, as_settings(middle)))
    return PlannedTuning(protocol, study_folder(config, out), trials, sampler, pruner, middle, trial, said)


def _middle(parameter: Parameter) -> Value:
    if parameter.choices:
        return parameter.choices[len(parameter.choices) // 2]
    if isinstance(parameter.low, int) and isinstance(parameter.high, int):
        return (parameter.low + parameter.high) // 2
    return (parameter.low * parameter.high) ** 0.5 if parameter.log else (parameter.low + parameter.high) / 2
