"""Loggers by name: TensorBoard, Weights & Biases, MLflow, or your own. ``make_loggers`` looks them up.

To add one, write a ``Callback`` and a row of ``LOGGERS``; its arguments are its options (``run.logger_options``). Loggers
outside the package are found by ``common/plugins.py``: ``my.py:MyLogger``, or a name that an installed package adds. Packages
are required when a logger is made, before anything is trained. ``metrics.jsonl`` is always written, by ``run_folder.Log``.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from recollect.common import plugins
from recollect.common.errors import ConfigError, require
from recollect.config.schema import RunConfig
from recollect.inference.models import RunFiles
from recollect.training.callbacks import Callback, Guarded

if TYPE_CHECKING:
    from recollect.training.outcome import Outcome


class TensorBoard(Callback):
    """Event files in the run's folder ``tensorboard``; see them with ``tensorboard --logdir RUN``."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._module = require("torch.utils.tensorboard", "tensorboard", "the logger tensorboard")

    def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """See ``Callback``."""
        # Entries that an interrupted run wrote after its last checkpoint are hidden.
        self._writer = self._module.SummaryWriter(str(run / "tensorboard"), purge_step=step + 1 if step else None)

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self._write("train", step, values)

    def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self._write(split, step, metrics)

    def on_end(self, outcome: Outcome | None) -> None:
        """See ``Callback``."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, prefix: str, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(f"{prefix}/{key}", value, step)


class WeightsAndBiases(Callback):
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
        self._run: Any = None

    def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """See ``Callback``."""
        self._run = self._wandb.init(
            **{"name": run.name, "id": run_id(run), "resume": "allow", **self._options},
            dir=str(run),
            config=dict(config),
        )

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self._run.log({f"train/{key}": value for key, value in values.items()}, step=step)

    def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self._run.log({f"{split}/{key}": value for key, value in metrics.items()}, step=step)

    def on_end(self, outcome: Outcome | None) -> None:
        """See ``Callback``."""
        if self._run is not None:
            self._run.finish(exit_code=0 if outcome is not None else 1)


class MLflow(Callback):
    """A run of MLflow; a resumed training continues it.

    Args:
        uri: address of the tracking server or store; by default ``MLFLOW_TRACKING_URI``, or else MLflow's own default.
        experiment: its experiment, created if missing.
    """

    _AT_ONCE = 500  # metrics in one request; the server takes 1,000
    _SECONDS = 10.0  # between requests

    def __init__(self, uri: str | None = None, experiment: str = "recollect") -> None:
        self._mlflow: Any = require("mlflow", "mlflow", "the logger mlflow")
        self._uri, self._experiment = uri, experiment
        self._waiting: list[Any] = []
        self._sent_at = time.monotonic()

    def on_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """See ``Callback``."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        place = found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
        name = run_id(run)
        known = self._client.search_runs([place], f"tags.recollect = '{name}'", max_results=1)
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(place, run_name=run.name, tags={"recollect": name}).info.run_id
        entities = self._mlflow.entities
        settings = [entities.Param(key, str(value)[:6000]) for key, value in flat(config)]
        for start in range(0, len(settings), 100):
            self._client.log_batch(self._id, params=settings[start : start + 100])

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self._keep("train", step, values)

    def on_evaluation(self, split: str, step: int, metrics: Mapping[str, float]) -> None:
        """See ``Callback``."""
        self._keep(split, step, metrics)

    def on_end(self, outcome: Outcome | None) -> None:
        """See ``Callback``."""
        self._send()
        self._client.set_terminated(self._id, "FINISHED" if outcome is not None else "FAILED")

    def _keep(self, prefix: str, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        # MLflow's names have no @.
        self._waiting += [
            self._mlflow.entities.Metric(f"{prefix}/{key.replace('@', '_at_')}", float(value), now, step)
            for key, value in values.items()
        ]
        if len(self._waiting) >= self._AT_ONCE or time.monotonic() - self._sent_at > self._SECONDS:
            self._send()

    def _send(self) -> None:
        for start in range(0, len(self._waiting), self._AT_ONCE):
            self._client.log_batch(self._id, metrics=self._waiting[start : start + self._AT_ONCE])
        self._waiting, self._sent_at = [], time.monotonic()


LOGGERS: dict[str, Callable[..., Callback]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def make_loggers(run: RunConfig, report: Callable[[str], None]) -> list[Callback]:
    """The loggers of ``run.loggers`` and ``run.tensorboard``, each dropped if it fails.

    Args:
        run: the settings.
        report: called with the failure, once per logger.

    Raises:
        ConfigError: an unknown name or option. MissingExtraError: a package that is not installed.
    """
    names = list(dict.fromkeys([*run.loggers, *["tensorboard"] * run.tensorboard]))
    return [Guarded(name, make_callback(name, run.logger_options.get(name) or {}), report) for name in names]


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
    if not callable(maker):
        raise ConfigError(f"logger {name!r} is a {type(maker).__name__}: it must be a class of callbacks.")
    if not isinstance(options, Mapping):
        raise ConfigError(f"run.logger_options {name!r} is {options!r}: it must be a mapping of options.")
    plugins.check_options(maker, options, f"logger {name!r}")
    with plugins.errors_as_config(f"logger {name!r}"):
        made = maker(**options)
    methods = [method for method in vars(Callback) if method.startswith("on_")]
    if not any(callable(getattr(made, method, None)) for method in methods):
        raise ConfigError(f"logger {name!r} has none of the methods {', '.join(methods)}: see recollect.Callback.")
    callback: Callback = made
    return callback


def run_id(run: Path) -> str:
    """A unique name for a run that stays the same when it is resumed."""
    started = RunFiles(run).read_manifest().get("started", "")
    return hashlib.sha256(f"{run.name} {started}".encode()).hexdigest()[:16]


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings with dotted names."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        found += flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + str(key), value)]
    return found


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a record, which are passed to callbacks."""
    return {
        key: value
        for key, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
