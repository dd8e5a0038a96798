"""The folder of a run: its settings, records and results.

    config.yaml      every setting, resolved; ``recollect train RUN/config.yaml`` repeats the run
    manifest.json    versions, machine, command, data fingerprints, weights, plan, and finally the outcome
    metrics.jsonl    one line per step and one per evaluation, in order
    train.log        the plan, remarks, and the progress every 30 seconds, with the time of day
    checkpoints/     last.pt to resume from, best-STEP.pt by validation
    model/           the final embedder
    stopped/         the batch at which a run stopped because the loss was not finite
    trained_on.npz   names of the training classes and digests of the training images
    .lock            held by the training process; never removed, since another process may be waiting on it

Everything except ``metrics.jsonl`` and ``train.log`` is written atomically, including the folder itself with its
configuration. A folder that is not empty is never overwritten, except for the remains of an interrupted start.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml

from recollect._version import __version__
from recollect.common.console import PROGRESS, ProgressLine
from recollect.common.errors import ConfigError, DataError
from recollect.common.files import (
    append_line,
    atomic_write,
    make_folder_for,
    new_folder,
    remove_strays,
    try_lock,
    write_json,
    write_text,
)
from recollect.common.images import BadImage
from recollect.common.reading import read_json, read_json_lines
from recollect.common.text import printable
from recollect.config.resolve import absolute_names, as_mapping
from recollect.config.schema import Config
from recollect.data.folders import counted
from recollect.inference.models import END, TO_END, RunFiles, absolute_roots, absolute_weights
from recollect.inference.training_record import FILE as TRAINED_ON, TrainedOn, carry_record
from recollect.models import Embedder
from recollect.step.team import Team

logger = logging.getLogger(__name__)
_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "pytorch-metric-learning")


def refuse_used(path: Path) -> None:
    """Refuse a folder for a new run that is not empty; the remains of an interrupted start do not count.

    Raises:
        ConfigError: a file, or a folder that is not empty.
    """
    if path.exists() and (not path.is_dir() or not all(_is_left_over(entry) for entry in path.iterdir())):
        hint = f", or resume it: recollect train --resume {path}" if (path / "config.yaml").exists() else ""
        raise ConfigError(f"{path} exists and is not empty; a run is never overwritten. Choose another --out{hint}.")


def _is_left_over(entry: Path) -> bool:
    """Whether these are the remains of a run that ended before it had a configuration: its lock or its manifest."""
    if entry.name == "manifest.json" and not entry.with_name("config.yaml").exists():
        try:
            return "recollect" in read_json(entry, dict).get("versions", {})
        except DataError:
            return False
    return entry.name in (".lock", TRAINED_ON) or (entry.name.startswith(".") and entry.name.endswith(".part"))


class RunFolder(RunFiles):
    """Paths of a run and its small files. Make one with ``create`` or ``open``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.metrics_file = path / "metrics.jsonl"
        self.log_file = path / "train.log"
        self.stopped = path / "stopped"
        self.lock = path / ".lock"

    @classmethod
    def create(cls, path: Path | str | None, name: str) -> RunFolder:
        """The path of a new run, which ``begin`` creates.

        Args:
            path: the folder; None for ``runs/<name>-<date>-<time>``.
            name: used in the default path.

        Raises:
            ConfigError: the folder is not empty.
        """
        if path is None:
            stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
            base = Path("runs") / f"{name.replace('/', '-')}-{stamp}"
            path = next(p for n in range(1, 1000) if not (p := base if n == 1 else Path(f"{base}-{n}")).exists())
        path = Path(path)
        refuse_used(path)
        make_folder_for(path / "config.yaml" if path.is_dir() else path)
        return cls(path)

    def begin(self, config: Config, manifest: Mapping[str, Any], trained_on: TrainedOn | None = None) -> None:
        """Create the folder with its first files atomically.

        Raises:
            StorageError: it cannot be written, or another process started a run there meanwhile.
        """
        if (
            self.path.is_dir()
        ):  # perhaps a mount point, which cannot be replaced; without a configuration it is not a run
            self._write_first(config, manifest, trained_on)
            return
        with new_folder(self.path) as folder:
            RunFolder(folder)._write_first(config, manifest, trained_on)

    def _write_first(self, config: Config, manifest: Mapping[str, Any], trained_on: TrainedOn | None) -> None:
        """The configuration is written last: it makes the folder a run."""
        write_json(self.manifest_file, manifest)
        if trained_on is not None:
            trained_on.write(self.path)
        self.write_config(config)

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """An existing run.

        Raises:
            DataError: there is no run.
        """
        run = cls(Path(path))
        if not run.config_file.is_file():
            raise DataError(f"{path} is not a run: it has no config.yaml.")
        return run

    def best(self, step: int) -> Path:
        """The file of the best weights so far, those of ``step``.

        One file per step: until the next checkpoint is written, the last one refers to the earlier file.
        """
        return self.last.with_name(f"best-{step}.pt")

    def forget_best_but(self, step: int | None) -> None:
        """Remove the best weights of all steps except ``step``; with None, all."""
        for path in self.last.parent.glob("best-*.pt"):
            if step is None or path != self.best(step):
                path.unlink(missing_ok=True)

    def write_config(self, config: Config) -> None:
        """Write the resolved configuration, with absolute paths of images, weights and references."""
        settled = replace(config, data=absolute_roots(config.data), model=absolute_weights(config.model))
        config = absolute_names(settled)
        text = yaml.safe_dump(as_mapping(config), sort_keys=False, allow_unicode=True, width=120)
        head = f"# Written by recollect {__version__}: every setting of this run{TO_END}"
        write_text(self.config_file, f"{head}\n{text}{END}\n")

    def save_model(self, embedder: Embedder) -> None:
        """Write the trained embedder, with the record of what it was trained on: it may be copied out of the run."""
        embedder.save(self.model, overwrite=True)
        carry_record(self.path, self.model)

    def update_manifest(self, **values: Any) -> None:
        """Add entries to ``manifest.json``."""
        write_json(self.manifest_file, {**self.read_manifest(), **values})

    def note_skipped(self, bad: Sequence[BadImage], told: Collection[str] = ()) -> str:
        """List images that could not be read in the manifest; returns a message about those not ``told`` of before."""
        self.update_manifest(skipped=[{"name": each.name, "reason": each.reason, "kind": each.kind} for each in bad])
        new = [each for each in bad if each.name not in told]
        more = " more" if told else ""
        if len(new) == 1:
            return f"skipped    1{more} image cannot be read. {printable(str(new[0]))}"
        reasons = counted(Counter(each.kind for each in new))
        return (
            f"skipped    {len(new):,}{more} images cannot be read ({reasons}) and are listed in manifest.json. The first: "
            f"{printable(str(new[0]))}"
        )

    def keep_batch(self, rank: int, batch: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
        """Save the batch at which a training diverged, for inspection.

        Args:
            rank: of the process.
            batch: tensors, into ``batch.pt``.
            about: plain values with the ``step``, into ``batch.json``.

        Returns:
            Its folder.
        """
        folder = self.stopped / f"step-{about['step']}" / f"process-{rank}"
        with atomic_write(folder / "batch.pt") as file:
            torch.save(dict(batch), file)
        write_json(folder / "batch.json", dict(about))
        return folder

    def append_log(self, *lines: str) -> None:
        """Add lines to ``train.log``."""
        append_line(self.log_file, "\n".join(f"{now()} {printable(line)}" for line in lines))

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        append_line(self.metrics_file, json.dumps(record, allow_nan=False))

    def read_metrics(self, remark: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; incomplete and damaged ones are skipped and reported to ``remark``."""
        return read_json_lines(self.metrics_file, remark, _is_record) if self.metrics_file.exists() else []

    def forget_after(self, step: int, remark: Callable[[str], None] = lambda line: None) -> None:
        """Remove the lines of steps after ``step``, which a resumed run repeats, and damaged lines."""
        kept = [record for record in self.read_metrics(remark) if record["step"] <= step]
        if self.metrics_file.exists():
            write_text(self.metrics_file, "".join(json.dumps(record) + "\n" for record in kept))


def _is_record(record: Mapping[str, Any]) -> bool:
    """Whether a line of ``metrics.jsonl`` has everything its readers need."""
    step, kind = record.get("step"), record.get("kind")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        return False
    values = [value for key, value in record.items() if key not in ("kind", "split")]
    if kind == "step":
        return all(value is None or isinstance(value, int | float) for value in values)
    return (
        kind == "evaluation"
        and isinstance(record.get("split"), str)
        and all(isinstance(v, int | float) for v in values)
    )


def circumstances(device: torch.device, processes: int) -> dict[str, Any]:
    """Versions, machine and command of a run."""
    versions = {"recollect": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    machine: dict[str, Any] = {
        "system": platform.platform(),
        "host": platform.node(),
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": os.environ.get("ONEDNN_MAX_CPU_ISA", "all"),
        "device": str(device),
        "processes": processes,
    }
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
        machine["cuda"] = torch.version.cuda
    # A database's address may contain a password, and manifests are shared.
    command = [re.sub(r"(://[^/@:\s]*):\S*@", r"\1:***@", argument) for argument in sys.argv]
    return {"started": now(), "command": command, "versions": versions, "machine": machine}


def now() -> str:
    """The current time, to the second, with its UTC offset."""
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


@contextlib.contextmanager
def alone(folder: RunFolder, team: Team) -> Iterator[None]:
    """Hold the run's lock: two processes that write the same run would damage it, so the second is refused."""
    lock = try_lock(folder.lock) if team.rank == 0 else None
    free = team.from_first(lock is not None or team.rank != 0)
    if not free:
        raise ConfigError(f"{folder.path} is being trained by another process: wait for it, or stop it first.")
    if lock is not None:
        remove_strays(folder.path)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()  # the file stays: if it were removed, one process could lock the old file and another a new one


class Log:
    """Writes the logs of a training: ``metrics.jsonl``, ``train.log``, the progress line. Other loggers: ``loggers.py``.

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
        told = self.line.advance(1, note=note)
        if told is not None and self.folder is not None:
            self.folder.append_log(told)
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


def _processor_name() -> str:
    """The processor's display name, e.g. ``Intel(R) Xeon(R) Platinum 8481C``."""
    with contextlib.suppress(OSError, UnicodeDecodeError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
