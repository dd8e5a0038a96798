"""Everything that observes a training: callbacks, loggers, the log and the progress line.

Callbacks passed in Python (``recollect.train(callbacks=[…])``) are part of the run: they are called on every process, and
an exception in one ends the run. Loggers (``run.loggers``) only observe: they are called on the first process, and a logger
that fails is reported once and dropped (``CallbackList``), so that it never ends a run. ``metrics.jsonl``, ``train.log`` and
the progress line are always written, by ``Log``.

To add a logger, write a ``Callback`` and a row of ``LOGGERS``; its arguments are its options (``run.logger_options``). Loggers
outside the package are found by ``common/plugins.py``: ``my.py:MyLogger``, or a name that an installed package adds. Packages
are required when a logger is made, before anything is trained.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from recollect.common import plugins
from recollect.common.console import PROGRESS, ProgressLine
from recollect.common.errors import ConfigError, InputError, RecollectError, in_one_line, require
from recollect.common.text import flat
from recollect.config.schema import RunConfig
from recollect.inference.models import RunFiles
from recollect.training.run import Outcome, RunFolder

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


class CallbackList:
    """The callbacks and loggers of a training, called in this order.

    Args:
        callbacks: those of the user; an exception in one ends the run.
        loggers: by name; one that fails is reported once and dropped.

    Raises:
        InputError: a callback is a class, or something else.
    """

    def __init__(
        self, callbacks: Sequence[Callback] = (), loggers: Mapping[str, Callback] = MappingProxyType({})
    ) -> None:
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise InputError(
                    f"callbacks has {callback!r}: give an object of a class derived from recollect.Callback."
                )
        self.callbacks, self.loggers = callbacks, dict(loggers)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of each."""
        for callback in self.callbacks:
            getattr(callback, method)(*arguments)
        for name, observer in list(self.loggers.items()):
            try:
                if hasattr(observer, method):  # a logger from outside need not have all of them
                    getattr(observer, method)(*arguments)
            except TrainingStoppedError:
                raise
            except Exception as error:
                del self.loggers[name]
                logger.warning(
                    f"logger {name} failed in {method} and is no longer used ({type(error).__name__}: "
                    f"{in_one_line(error)}). The run continues."
                )


class MetricLogger(Callback):
    """A logger that writes the values of steps and evaluations alike."""

    def write(self, prefix: str, step: int, values: Mapping[str, float]) -> None:
        """Log ``values`` under ``train``, ``val`` or ``test``."""
        raise NotImplementedError

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self.write("train", step, values)

    def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self.write(split, step, metrics)


class TensorBoard(MetricLogger):
    """Event files in the run's folder ``tensorboard``; see them with ``tensorboard --logdir RUN``."""

    def __init__(self) -> None:
        self._module = require("torch.utils.tensorboard", "tensorboard", "the logger tensorboard")

    def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """See ``Callback``."""
        # Entries that an interrupted run wrote after its last checkpoint are hidden.
        self._writer = self._module.SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None)

    def on_end(self, outcome: Outcome | None) -> None:
        """See ``Callback``."""
        self._writer.close()

    def write(self, prefix: str, step: int, values: Mapping[str, float]) -> None:
        """See ``MetricLogger``."""
        for key, value in values.items():
            self._writer.add_scalar(f"{prefix}/{key}", value, step)


class WeightsAndBiases(MetricLogger):
    """A run of Weights & Biases; a resumed training continues it.

    Args:
        project: its project.
        mode: ``"online"``, ``"offline"`` or ``"disabled"``; by default that of ``WANDB_MODE``. Offline runs are in the
            run's folder ``wandb``, and ``wandb sync`` uploads them.
        **options: options of ``wandb.init``, e.g. ``entity``, ``tags``.
    """

    def __init__(self, project: str = "recollect", mode: str | None = None, **options: Any) -> None:
        self._wandb: Any = require("wandb", "wandb", "the logger wandb")
        self._options = {"project": project, "mode": mode, **options}

    def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """See ``Callback``."""
        self._run = self._wandb.init(
            **{"name": run.name, "id": run_id(run), "resume": "allow", **self._options},
            dir=str(run),
            config=dict(config),
        )

    def write(self, prefix: str, step: int, values: Mapping[str, float]) -> None:
        """See ``MetricLogger``."""
        self._run.log({f"{prefix}/{key}": value for key, value in values.items()}, step=step)

    def on_end(self, outcome: Outcome | None) -> None:
        """See ``Callback``."""
        self._run.finish(exit_code=0 if outcome is not None else 1)


class MLflow(MetricLogger):
    """A run of MLflow; a resumed training continues it.

    Args:
        uri: address of the tracking server or store; by default ``MLFLOW_TRACKING_URI``, or else MLflow's own default.
        experiment: its experiment, created if missing.
    """

    _AT_ONCE = 500  # metrics of a request, and those of a step; the server takes 1,000
    _SECONDS = 10.0  # between requests

    def __init__(self, uri: str | None = None, experiment: str = "recollect") -> None:
        self._mlflow: Any = require("mlflow", "mlflow", "the logger mlflow")
        self._uri, self._experiment = uri, experiment
        self._waiting: list[Any] = []
        self._sent_at = time.monotonic()

    def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """See ``Callback``."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        experiment = self._client.get_experiment_by_name(self._experiment)
        place = experiment.experiment_id if experiment is not None else self._client.create_experiment(self._experiment)
        name = run_id(run)
        runs = self._client.search_runs([place], f"tags.recollect = '{name}'", max_results=1)
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(place, run_name=run.name, tags={"recollect": name}).info.run_id
        entities = self._mlflow.entities
        settings = [entities.Param(key, str(value)[:6000]) for key, value in flat(config)]
        for start in range(0, len(settings), 100):
            self._client.log_batch(self._id, params=settings[start : start + 100])

    def on_end(self, outcome: Outcome | None) -> None:
        """See ``Callback``."""
        self._send()
        self._client.set_terminated(self._id, "FINISHED" if outcome is not None else "FAILED")

    def write(self, prefix: str, step: int, values: Mapping[str, float]) -> None:
        """See ``MetricLogger``; values are sent together."""
        now = int(time.time() * 1000)
        # MLflow's names have no @.
        self._waiting += [
            self._mlflow.entities.Metric(f"{prefix}/{key.replace('@', '_at_')}", float(value), now, step)
            for key, value in values.items()
        ]
        if len(self._waiting) >= self._AT_ONCE or time.monotonic() - self._sent_at > self._SECONDS:
            self._send()

    def _send(self) -> None:
        self._client.log_batch(self._id, metrics=self._waiting)
        self._waiting, self._sent_at = [], time.monotonic()


LOGGERS: dict[str, Callable[..., Callback]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def make_loggers(run: RunConfig) -> dict[str, Callback]:
    """The loggers of ``run.loggers`` and ``run.tensorboard``, by name.

    Raises:
        ConfigError: an unknown name or option. MissingExtraError: a package that is not installed.
    """
    names = dict.fromkeys([*run.loggers, *["tensorboard"] * run.tensorboard])
    return {name: make_callback(name, run.logger_options.get(name) or {}) for name in names}


def make_callback(name: str, options: Mapping[str, Any] = MappingProxyType({})) -> Callback:
    """The logger or callback of a name or reference.

    Raises:
        ConfigError: an unknown name or option. MissingExtraError: a package that is not installed.
    """
    maker: Any = LOGGERS.get(name)
    if maker is None:
        loaded = plugins.load("logger", name)
        if loaded is None:
            raise plugins.unknown("logger", name, LOGGERS)
        maker = loaded.target
    with plugins.errors_as_config(f"logger {name!r}"):
        plugins.check_options(maker, options, f"logger {name!r}")
        callback: Callback = maker(**options)
    methods = [method for method in vars(Callback) if method.startswith("on_")]
    if not any(callable(getattr(callback, method, None)) for method in methods):
        raise ConfigError(f"logger {name!r} has none of the methods {', '.join(methods)}: see recollect.Callback.")
    return callback


def run_id(run: Path) -> str:
    """A unique name for a run that stays the same when it is resumed."""
    started = RunFiles(run).read_manifest().get("started", "")
    return hashlib.sha256(f"{run.name} {started}".encode()).hexdigest()[:16]


class Log:
    """Writes the logs of a training: ``metrics.jsonl``, ``train.log``, the progress line.

    Args:
        folder: the run; None on all processes except the first, which then write nothing.
        line: the progress line.
    """

    def __init__(self, folder: RunFolder | None, line: ProgressLine) -> None:
        self.folder, self.line = folder, line
        self.latest: dict[str, dict[str, float]] = {}
        self._watched = ""
        for record in () if folder is None else folder.read_metrics():  # of a run that is resumed
            if record["kind"] == "evaluation":
                values = {key: value for key, value in record.items() if key not in ("kind", "step", "split")}
                self.latest[record["split"]] = values

    def step(self, **record: Any) -> None:
        """One optimizer step."""
        memory = record["memory_mb"]
        # The most important comes first: a narrow terminal cuts the rest.
        note = (
            f"loss {record['loss']:.4f} {record['images_per_second']:,.0f} images/s{self._watched} "
            f"epoch {record['epoch']:.1f}{'' if memory is None else f' {memory:,} MB'}"
        )
        progress = self.line.advance(1, note=note)
        if progress is not None and self.folder is not None:
            self.folder.append_log(progress)
        self._write({"kind": "step", **record})

    def evaluation(self, name: str, step: int, metrics: Mapping[str, float]) -> None:
        """One evaluation of the set ``name``."""
        self.latest[name] = dict(metrics)
        first = next(iter(metrics))
        self._watched = f" {name} {first} {100 * metrics[first]:.1f}"
        if self.folder is not None:
            # A custom metric need not be a fraction.
            figures = "  ".join(
                f"{key} {100 * v:.1f}" if abs(v) <= 1 else f"{key} ({v:.4g})" for key, v in metrics.items()
            )
            line = f"{name:<10} after step {step:,}, in %: {figures}"
            logger.info(line, extra=PROGRESS)
            self.folder.append_log(line)
        self._write({"kind": "evaluation", "step": step, "split": name, **metrics})

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.folder is not None:
            self.folder.append_metrics(record)
