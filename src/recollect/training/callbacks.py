"""``Callback``: the common base of callbacks and loggers of a training.

Callbacks passed in Python (``recollect.train(callbacks=[…])``) are part of the run: they are called on every process, and
an exception in one ends the run. Loggers (``run.loggers``, ``loggers.py``) only observe: they are called on the first
process, and a logger that fails is reported once and dropped (``Guarded``), so that it never ends a run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.common.errors import InputError, RecollectError, in_one_line

if TYPE_CHECKING:
    from recollect.training.outcome import Outcome

logger = logging.getLogger(__name__)


class TrainingStoppedError(RecollectError):
    """A run stopped early: by a loss that is NaN or infinite, on request, or by a callback that raised this.

    Args:
        message: why it stopped.
        exit_code: exit code of the process, on the command line.

    Example:
        >>> class Patience(Callback):
        ...     def on_step(self, step, values):
        ...         if values["loss"] < 0.01:
        ...             raise TrainingStoppedError("the loss is small enough")
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Callback:
    """Base of callbacks and loggers; override what you need.

    Example:
        >>> class Best(Callback):
        ...     best = 0.0
        ...     def on_evaluation(self, split, step, metrics):
        ...         self.best = max(self.best, metrics["r@1"])
    """

    def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """Before the first step.

        Args:
            run: the run folder.
            config: every setting, as in ``config.yaml``.
            step: steps already taken; above 0 for a resumed run.
        """

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """After an optimizer step: ``loss``, ``lr``, ``gradient_norm``, ``images_per_second`` and more."""

    def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        """After an evaluation of ``"val"`` or ``"test"``; metrics as fractions."""

    def on_end(self, outcome: Outcome | None) -> None:
        """After the last step, with the outcome; None for a run that was stopped or failed."""


def checked_callback(callback: Any) -> Callback:
    """``callback``, if it is one.

    Raises:
        InputError: it is a class, or something else.
    """
    if isinstance(callback, Callback):
        return callback
    is_class = isinstance(callback, type)
    name = callback.__name__ if is_class else type(callback).__name__
    instead = (
        f"the class {name}: make an object of it, {name}()"
        if is_class
        else f"a {name}: derive it from recollect.Callback"
    )
    raise InputError(f"callbacks has {instead}.")


class Guarded(Callback):
    """A logger that is dropped when it fails.

    Args:
        name: for the report of its failure.
        inner: the logger.
        report: called once with a message about the failure.
    """

    def __init__(self, name: str, inner: Callback, report: Callable[[str], None]) -> None:
        self.name, self._report = name, report
        self._inner: Callback | None = inner

    def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """See ``Callback``."""
        self._call("on_start", run, config, step)

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self._call("on_step", step, values)

    def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self._call("on_evaluation", split, step, metrics)

    def on_end(self, outcome: Outcome | None) -> None:
        """See ``Callback``."""
        self._call("on_end", outcome)

    def _call(self, method: str, *arguments: Any) -> None:
        try:
            if (found := getattr(self._inner, method, None)) is not None:
                found(*arguments)
        except TrainingStoppedError:
            raise
        except Exception as error:
            self._inner = None
            self._report(
                f"logger {self.name} failed in {method} and is no longer used ({type(error).__name__}: "
                f"{in_one_line(error)}). The run continues."
            )
