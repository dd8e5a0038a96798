"""A preview of a search: what it would do and about how long it would take. Writes nothing except cached features."""

from __future__ import annotations

from pathlib import Path

from recollect.common.words import in_words, number_of
from recollect.config.schema import Config
from recollect.data import only_splits
from recollect.training import trainer
from recollect.tuning.protocol import read_protocol, trial_config
from recollect.tuning.space import Parameter, Value, as_settings
from recollect.tuning.study import lines, study_folder
from recollect.tuning.study_database import check_words


def plan_tuning(
    config: Config,
    out: Path | str | None = None,
    *,
    trials: int,
    space: list[str] | None = None,
    sampler: str = "random",
    pruner: str = "none",
) -> list[str]:
    """What ``tune`` would do, in lines of text, with the time of a typical trial, measured on a few images.

    Args:
        config, out, trials, space, sampler, pruner: as for ``tune``.

    Example:
        >>> import recollect
        >>> settings = {"data.root": "photos", "model.init": "tiny", "batch.size": 8}
        >>> plan_tuning(recollect.resolve("folder", settings), trials=5)[-1].split()[:2]
        ['time', 'about']

    Raises:
        ConfigError: settings that ``tune`` would refuse.
    """
    check_words(sampler, pruner)
    protocol = read_protocol(config, space)
    middle = {name: _middle(parameter) for name, parameter in protocol.space.items()}
    with only_splits(config.data.train_split):
        trial, said = trainer.plan(trial_config(protocol, as_settings(middle)))
    length = f"{in_words(trial.time.seconds * trials)} for {number_of(trials, 'trial')}"
    return [
        *lines(protocol, study_folder(config, out), trials, sampler, pruner),
        *(line for line in said if line.startswith(("model", "batch", "chunk", "machine"))),
        f"a trial    of {middle['epochs']} epochs is {number_of(trial.length.steps, 'step')}",
        f"time       about {length}; then one training on all training classes, and the test",
    ]


def _middle(parameter: Parameter) -> Value:
    if parameter.choices:
        return parameter.choices[len(parameter.choices) // 2]
    if isinstance(parameter.low, int) and isinstance(parameter.high, int):
        return (parameter.low + parameter.high) // 2
    return (parameter.low * parameter.high) ** 0.5 if parameter.log else (parameter.low + parameter.high) / 2
