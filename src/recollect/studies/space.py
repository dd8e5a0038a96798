"""The search space: the paper's four parameters (learning rate, decay steps, decay size, epochs) and any other setting.

A parameter is drawn by Optuna and becomes ordinary settings, so that a trial is an ordinary run. Two parameters have no
setting of their own: ``decays`` and ``first_decay`` make ``optimizer.milestones``. Defaults are in ``default_space``;
other files take the space as a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from recollect.common.errors import ConfigError
from recollect.common.reading import parse_yaml
from recollect.config.schema import Config

SHORT = {"lr": "optimizer.lr", "gamma": "optimizer.gamma", "epochs": "run.epochs"}
DECAYS, FIRST_DECAY = "decays", "first_decay"
_DERIVED = ("optimizer.milestones", "optimizer.schedule", "run.steps")
_PROTOCOL = (
    *("data.", "name", "run.seed", "run.watch_test", "run.verdict"),
    *("run.select", "run.evaluate_every", "run.device"),
)

Value = float | int | str | bool | None


@dataclass(frozen=True)
class Parameter:
    """One parameter, searched from ``low`` to ``high`` or among ``choices``; a single choice is fixed.

    Args:
        name: ``lr``, ``gamma``, ``epochs``, ``decays``, ``first_decay``, or a setting's key.
        low, high: bounds, both included; values are whole numbers if both bounds are.
        log: draw uniformly in the logarithm.
        choices: instead of bounds.

    Examples:
        >>> str(Parameter("lr", 1e-5, 1e-3, log=True))
        '1e-05:0.001:log'
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Value, ...] = ()

    def __str__(self) -> str:
        if self.choices:
            return ",".join("null" if value is None else str(value) for value in self.choices)
        return f"{self.low:g}:{self.high:g}{':log' if self.log else ''}"

    @property
    def fixed(self) -> bool:
        """Whether it has a single value."""
        return len(self.choices) == 1 or (not self.choices and self.low == self.high)

    @property
    def ends(self) -> tuple[Value, Value]:
        """The first and the last of its values."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.low, self.high)

    def draw(self, trial: Any) -> Value:
        """A value from Optuna's trial, rounded to three digits, so that reports print exactly the value used."""
        if self.fixed:
            return self.ends[0]
        if self.choices:
            value: Value = trial.suggest_categorical(self.name, list(self.choices))
            return value
        if isinstance(self.low, int) and isinstance(self.high, int):
            return int(trial.suggest_int(self.name, self.low, self.high, log=self.log))
        return float(f"{trial.suggest_float(self.name, self.low, self.high, log=self.log):.3g}")


Space = Mapping[str, Parameter]


def default_space(config: Config, epochs: int) -> dict[str, Parameter]:
    """The space around a recipe.

    Learning rates within a factor of ten of the recipe's; from half to one and a half of its epochs, so that a trial
    costs on average what the recipe does on half of the classes; one to three decays of 0.1 to 0.5 (released: two or
    three of 0.3), the first after 10 to 80 % of the training (released: 11 to 47 %).

    Args:
        config: settings without any ``"auto"``.
        epochs: number of epochs of the recipe.
    """
    lr = float(config.optimizer.lr)
    space = [
        Parameter("lr", float(f"{lr / 10:.3g}"), float(f"{lr * 10:.3g}"), log=True),
        Parameter(DECAYS, 1, 3),
        Parameter(FIRST_DECAY, 0.1, 0.8),
        Parameter("gamma", 0.1, 0.5),
        Parameter("epochs", max(1, epochs // 2), max(1, math.ceil(1.5 * epochs))),
    ]
    return {parameter.name: parameter for parameter in space}


def read_space(texts: Iterable[str], defaults: Space) -> dict[str, Parameter]:
    """The default space with the user's changes.

    Args:
        texts: ``NAME=LOW:HIGH``, ``NAME=LOW:HIGH:log``, ``NAME=A,B,C`` or ``NAME=VALUE`` (not searched); a name is one
            of the five or the key of a setting, except those of ``data``.
        defaults: see ``default_space``.

    Raises:
        ConfigError: any other text, or a setting that the protocol fixes.

    Examples:
        >>> space = read_space(["lr=1e-4:1e-2", "loss.options.tau1=0.5,1,2"], {})
        >>> {name: str(parameter) for name, parameter in space.items()}
        {'lr': '0.0001:0.01:log', 'loss.options.tau1': '0.5,1,2'}
    """
    return {**defaults, **{parameter.name: parameter for parameter in map(parse_parameter, texts)}}


def parse_parameter(text: str) -> Parameter:
    """Parse one parameter."""
    name, _, values = (part.strip() for part in text.partition("="))
    form = ConfigError(
        f"--space {text}: write NAME=LOW:HIGH, NAME=LOW:HIGH:log, NAME=A,B,C or NAME=VALUE, bounds as numbers."
    )
    if not name or not values:
        raise form
    name = next((short for short, key in SHORT.items() if key == name), name)
    if name in _DERIVED:
        raise ConfigError(f"--space {name}: it is computed from decays, first_decay and epochs; give those instead.")
    if name.startswith(_PROTOCOL):
        raise ConfigError(
            f"--space {name}: it cannot be searched, because the protocol fixes it. Use --set to change it for the study."
        )
    if ":" not in values:
        return Parameter(name, choices=tuple(dict.fromkeys(_scalar(part, text) for part in values.split(","))))
    first, last, *more = values.split(":")
    low, high, log = _scalar(first, text), _scalar(last, text), bool(more) or name == "lr"
    if more not in ([], ["log"]) or not (_is_number(low) and _is_number(high)):
        raise form
    if low > high or (log and low <= 0):
        raise ConfigError(f"--space {text}: the lower bound comes first{', and both must be above 0' if log else ''}.")
    return Parameter(name, low, high, log=log)


def _scalar(part: str, text: str) -> Value:
    value = parse_yaml(part, f"--space {text[:80]}")
    if isinstance(value, str):
        try:
            return float(value)  # YAML reads 1e-4 as text, because its numbers need a decimal point
        except ValueError:
            return value
    if value is not None and not isinstance(value, bool | int | float):
        raise ConfigError(f"--space {text}: {part!r} is not a single value.")
    return value


def _is_number(value: Value) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_settings(values: Mapping[str, Value]) -> dict[str, Any]:
    """Convert drawn values to settings.

    ``decays`` milestones are spread evenly from ``first_decay`` (a share of the training) to its end: with 3 and 0.4,
    50 epochs have the released 20, 30, 40.

    Examples:
        >>> as_settings({"lr": 1e-4, "gamma": 0.3, "epochs": 50, "decays": 3, "first_decay": 0.4})["optimizer.milestones"]
        [20.0, 30.0, 40.0]
    """
    settings: dict[str, Any] = {SHORT.get(name, name): value for name, value in values.items()}
    decays, first = settings.pop(DECAYS), settings.pop(FIRST_DECAY)
    epochs = settings["run.epochs"]
    if type(decays) is not int or decays < 0:
        raise ConfigError(f"decays is {decays!r}: it must be a whole number, 0 or more.")
    if not _is_number(first) or not 0 < first < 1:
        raise ConfigError(f"first_decay is {first!r}: it must be a share of the training, above 0 and below 1.")
    shares = [first + (1 - first) * number / decays for number in range(decays)]
    return {
        **settings,
        "run.steps": None,
        "optimizer.schedule": "milestones",
        "optimizer.milestones": [round(epochs * share, 4) for share in shares],
    }


def corners(space: Space) -> Sequence[dict[str, Value]]:
    """Draws to check before a search begins: all lower and all upper ends, and each choice and bound of each parameter
    with the first value of the others.

    Examples:
        >>> [list(draw.values()) for draw in corners(read_space(["gamma=0.1:0.5", "loss.options.k=1,2,4"], {}))]
        [[0.1, 1], [0.5, 4], [0.5, 1], [0.1, 2], [0.1, 4]]
    """
    first, last = ({name: parameter.ends[end] for name, parameter in space.items()} for end in (0, 1))
    draws = [first, last]
    for name, parameter in space.items():
        draws += [{**first, name: value} for value in parameter.choices or parameter.ends]
    return [draw for place, draw in enumerate(draws) if draw not in draws[:place]]
