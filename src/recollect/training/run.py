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
configuration. A folder that is not empty is never overwritten.

A checkpoint holds everything that the next step depends on: weights, the loss's parameters and memory, the optimizer, the
scaler of fp16, the position of the sampler in its epoch, and the random states of every process. The schedule is a function
of the step and is not stored. Anything added to the loop's state must be added there, or resuming is no longer exact.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from recollect._version import __version__
from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError, StorageError, in_one_line
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
from recollect.common.images import MAX_PIXELS, BadImage
from recollect.common.reading import read_bytes
from recollect.common.text import number_of, printable
from recollect.config.resolve import absolute_names, as_mapping, changeable_settings, with_changes, with_settings
from recollect.config.schema import Config
from recollect.data.folders import counted
from recollect.evaluation import Verdict
from recollect.inference.models import (
    CHECKPOINT_FORMAT,
    CHECKPOINT_REMEDY,
    END,
    TO_END,
    RunFiles,
    absolute_paths,
    places_of_images,
    read_checkpoint,
    refuse_moved,
)
from recollect.inference.training_record import TrainedOn
from recollect.step.distributed import Processes, part_of, whole
from recollect.step.large_batch import random_state, set_random_state

logger = logging.getLogger(__name__)
_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "pytorch-metric-learning")


def refuse_used(path: Path) -> None:
    """Refuse a folder for a new run that is not empty.

    Raises:
        ConfigError: a file, or a folder that is not empty.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        hint = f", or resume it: recollect train --resume {path}" if (path / "config.yaml").exists() else ""
        raise ConfigError(f"{path} exists and is not empty; a run is never overwritten. Choose another --out{hint}.")


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
        # A folder that exists is perhaps a mount point, which cannot be replaced.
        with contextlib.nullcontext(self.path) if self.path.is_dir() else new_folder(self.path) as folder:
            run = RunFolder(folder)
            write_json(run.manifest_file, manifest)
            if trained_on is not None:
                trained_on.write(folder)
            run.write_config(config)  # last: it makes the folder a run

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

    def delete_other_best(self, step: int | None) -> None:
        """Remove the best weights of all steps except ``step``; with None, all."""
        for path in self.last.parent.glob("best-*.pt"):
            if step is None or path != self.best(step):
                path.unlink(missing_ok=True)

    def write_config(self, config: Config) -> None:
        """Write the resolved configuration, with absolute paths of images, weights and references."""
        settings = as_mapping(absolute_names(absolute_paths(config)))
        text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=120)
        head = f"# Written by recollect {__version__}: every setting of this run{TO_END}"
        write_text(self.config_file, f"{head}\n{text}{END}\n")

    def update_manifest(self, **values: Any) -> None:
        """Add entries to ``manifest.json``."""
        write_json(self.manifest_file, {**self.read_manifest(), **values})

    def note_skipped(self, bad: Sequence[BadImage], reported: Collection[str] = ()) -> str:
        """List images that could not be read in the manifest; returns a message about those not ``reported`` before."""
        self.update_manifest(skipped=[{"name": each.name, "reason": each.reason, "kind": each.kind} for each in bad])
        new = [each for each in bad if each.name not in reported]
        count = f"{len(new):,}{' more' if reported else ''} {'image' if len(new) == 1 else 'images'}"
        reasons = counted(Counter(each.kind for each in new))
        listed = "" if len(new) == 1 else f" ({reasons}) and are listed in manifest.json. The first:"
        return f"skipped    {count} cannot be read{listed or '.'} {printable(str(new[0]))}"

    def keep_batch(self, rank: int, batch: Mapping[str, Any], facts: Mapping[str, Any]) -> Path:
        """Save the batch at which a training diverged, for inspection.

        Args:
            rank: of the process.
            batch: tensors, into ``batch.pt``.
            facts: plain values with the ``step``, into ``batch.json``.

        Returns:
            Its folder.
        """
        folder = self.stopped / f"step-{facts['step']}" / f"process-{rank}"
        with atomic_write(folder / "batch.pt") as file:
            torch.save(dict(batch), file)
        write_json(folder / "batch.json", dict(facts))
        return folder

    def append_log(self, *lines: str) -> None:
        """Add lines to ``train.log``."""
        append_line(self.log_file, "\n".join(f"{now()} {printable(line)}" for line in lines))

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        append_line(self.metrics_file, json.dumps(record, allow_nan=False))

    def read_metrics(self, remark: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; incomplete and damaged ones are skipped and reported to ``remark``."""
        content = read_bytes(self.metrics_file, limit=2**30) if self.metrics_file.exists() else b""
        records = [_record(line) for line in content.splitlines()]
        if damaged := [number for number, record in enumerate(records, 1) if record is None]:
            count = number_of(len(damaged), "damaged line is/damaged lines are")
            remark(
                f"{self.metrics_file}: {count} skipped, the first in line {damaged[0]}; the last line may be incomplete after "
                "a crash."
            )
        return [record for record in records if record is not None]

    def truncate_records(self, step: int, remark: Callable[[str], None] = lambda line: None) -> None:
        """Remove the lines of steps after ``step``, which a resumed run repeats, and damaged lines."""
        records = [record for record in self.read_metrics(remark) if record["step"] <= step]
        if self.metrics_file.exists():
            write_text(self.metrics_file, "".join(json.dumps(record) + "\n" for record in records))


def _record(line: bytes) -> dict[str, Any] | None:
    """A line of ``metrics.jsonl``, which is of a step or an evaluation; None if it is damaged."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        record: dict[str, Any] = json.loads(line)
        if isinstance(record["step"], int) and (record.get("kind") == "step" or "split" in record):
            return record
    return None


def circumstances(device: torch.device, processes: int) -> dict[str, Any]:
    """Versions, machine and command of a run."""
    versions = {"recollect": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
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
def exclusive_lock(folder: RunFolder, processes: Processes) -> Iterator[None]:
    """Hold the run's lock: two processes that write the same run would damage it, so the second is refused."""
    lock = try_lock(folder.lock) if processes.rank == 0 else None
    free = processes.broadcast(lock is not None or processes.rank != 0)
    if not free:
        raise ConfigError(f"{folder.path} is being trained by another process: wait for it, or stop it first.")
    if lock is not None:
        remove_strays(folder.path)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()  # the file stays: if it were removed, one process could lock the old file and another a new one


def _processor_name() -> str:
    """The processor's display name, e.g. ``Intel(R) Xeon(R) Platinum 8481C``."""
    with contextlib.suppress(OSError, ValueError, StopIteration), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


# Checkpoints -----------------------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """The progress of a training."""

    step: int = 0
    """Optimizer steps taken."""
    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are done."""
    seconds: float = 0.0
    """Time spent, over all resumptions."""
    best: dict[str, Any] = field(default_factory=dict)
    """``step``, ``value`` and ``tie`` of the best evaluation so far; empty without validation."""


@dataclass
class Trained:
    """The objects whose states make a checkpoint."""

    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    device: torch.device
    processes: Processes
    average: WeightAverage | None = None

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The network with the average of its weights, if there is one, inside the block."""
        if self.average is None:
            yield
            return
        self.average.swap()
        try:
            yield
        finally:
            self.average.swap()


class WeightAverage:
    """The exponential moving average of the trained weights.

    Args:
        model: the network. Those of its weights that are trained are averaged.
        decay: weight of the former average at each step; less in the first steps, which would otherwise be those of the start.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.updates = decay, 0
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.values = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take the present weights into the average."""
        self.updates += 1
        share = 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, weight in self._weights.items():
            self.values[name].lerp_(weight, share)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights of the network and the average."""
        for name, weight in self._weights.items():
            before = weight.detach().clone()
            weight.copy_(self.values[name])
            self.values[name] = before


def save_checkpoint(path: Path, trained: Trained, progress: Progress, sampler: dict[str, Any], chunk: int) -> None:
    """Write a checkpoint. Every process calls it, one writes."""
    states, average = trained.processes.all_gather(random_state(trained.device)), trained.average
    content = {
        "format": CHECKPOINT_FORMAT,
        "progress": vars(progress),
        "sampler": sampler,
        "chunk": chunk,
        "model": whole(trained.model.state_dict()),
        "loss": trained.loss.state_dict(),
        "optimizer": whole(trained.optimizer.state_dict()),
        "scaler": trained.scaler.state_dict(),
        "random": states,
    }
    if average is not None:
        content["average"] = {"updates": average.updates, "values": whole(average.values)}
    if trained.processes.rank == 0:
        with atomic_write(path) as file:
            torch.save(content, file)
    trained.processes.barrier()


def load_checkpoint(path: Path, trained: Trained, seed: int = 0) -> tuple[Progress, dict[str, Any], int, int]:
    """Restore everything; returns the progress, the sampler's state, the chunk size and the former number of processes.

    With another number of processes, each draws new random numbers, by ``seed``, step and rank. The file holds whole
    tensors, also of a training that divides them among its processes.

    Raises:
        DataError: the file is damaged or belongs to another training.
    """
    content = read_checkpoint(path)
    try:
        states, processes = content["random"], trained.processes
        progress = Progress(**content["progress"])
        current, optimizer = trained.model.state_dict(), content["optimizer"]
        content["model"] = {name: part_of(value, current.get(name, value)) for name, value in content["model"].items()}
        parameters = [weight for group in trained.optimizer.param_groups for weight in group["params"]]
        for number, values in optimizer["state"].items():
            of_weight = {
                name: value
                for name, value in values.items()
                if getattr(value, "shape", None) == parameters[number].shape
            }
            values |= {name: part_of(value, parameters[number]) for name, value in of_weight.items()}
        for name in ("model", "loss", "optimizer", "scaler"):
            getattr(trained, name).load_state_dict(content[name])
        if (average := trained.average) is not None:
            average.updates = content["average"]["updates"]
            for name, value in content["average"]["values"].items():
                average.values[name].copy_(part_of(value, average.values[name]))
        if len(states) == processes.size:
            state = [state.cpu() for state in states[processes.rank]]
            # A run that began on a CPU has no state of a GPU's generator, which keeps its seed.
            state += random_state(trained.device)[len(state) :]
            set_random_state(trained.device, state)
        else:
            torch.manual_seed(int(np.random.SeedSequence((seed, progress.step, processes.rank)).generate_state(1)[0]))
        return progress, content["sampler"], content["chunk"], len(states)
    except Exception as error:
        raise DataError(
            f"{path}: not a checkpoint of this training ({type(error).__name__}: {in_one_line(error)}). {CHECKPOINT_REMEDY}"
        ) from error


def save_best(path: Path, weights: Mapping[str, Any], step: int, value: float) -> None:
    """Write the best weights so far, a state dict."""
    with atomic_write(path) as file:
        torch.save({"format": CHECKPOINT_FORMAT, "step": step, "value": value, "model": weights}, file)


# Resuming --------------------------------------------------------------------------------------------------------------


def resume_command(run: Path, outside: Sequence[plugins.Loaded] = ()) -> str:
    """How to resume a run: in Python if objects were passed, with ``--trust`` if it names code from outside."""
    if any(loaded.reference.startswith(f"{plugins.PASSED}:") for loaded in outside):
        return f"recollect.train(resume={str(run)!r}, …) in Python, with the same objects"
    trust = " --trust" if any(plugins.is_reference(loaded.reference) for loaded in outside) else ""
    return f"recollect train --resume {run}{trust}"


def resumed_config(run: RunFolder, settings: Mapping[str, Any] | Iterable[str] = ()) -> Config:
    """The configuration of a run to resume; ``settings``: those of ``CHANGEABLE``.

    That the training images are still the same is checked when they are loaded (``refuse_other_training_images``).

    Raises:
        ConfigError: other settings. DataError: its images moved, or some of them would be refused.
    """
    before = run.read_config()
    config = with_changes(before, settings, "a resumed run keeps its own settings")
    refuse_moved(config.data)
    least = before.data.max_pixels or MAX_PIXELS
    if (config.data.max_pixels or MAX_PIXELS) < least:
        raise DataError(
            f"{run.path} was started with images of up to {least:,} pixels, and some of them may have more than "
            f"{config.data.max_pixels:,}: give --max-pixels {least} or more, or none."
        )
    return config


def note_resumption(folder: RunFolder, config: Config, outside: Sequence[plugins.Loaded]) -> None:
    """Record that a run was resumed and where its images are now, and report code from outside that has changed."""
    manifest = folder.read_manifest()
    with plugins.trusting():  # the references are only written back
        before = folder.read_config()
        now_read = with_settings(before, changeable_settings(config))
        if now_read != before:
            folder.write_config(now_read)
    places = {**manifest.get("data", {}), **places_of_images(config.data, folder.path)}
    folder.update_manifest(resumed=[*manifest.get("resumed", []), now()], data=places)
    for line in plugins.changed_code(manifest.get("outside", []), outside):
        logger.warning(line)
        folder.append_log(line)


def refuse_other_weights(run: RunFolder, digest: str | None) -> None:
    """Check that a run starts from the weights that it was started with; their file may have been replaced.

    Args:
        run: the run to resume, or to repeat on all classes.
        digest: SHA-256 of the weights; None if there are none.

    Raises:
        ConfigError: others are recorded.
    """
    weights = run.read_manifest().get("weights") or {}
    before = str(weights.get("sha256") or "")
    if before and before != digest:
        these = "random ones" if digest is None else f"{digest[:16]}…"
        raise ConfigError(
            f"{run.path} was started from other weights: {weights.get('file')} with the SHA-256 {before[:16]}…, not {these}. "
            "Name their file with --weights PATH, or start a new run."
        )


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """A full disk ends a run, but its last checkpoint is safe; add how to resume to the error."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error} The run is safe up to its last checkpoint. Resume it with: {how}") from error


# The result -----------------------------------------------------------


_OUTCOME = {"steps": 0, "seconds": 0.0, "chosen_step": 0, "metrics": {}}


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
        values = {name: vars(self)[name] for name in _OUTCOME}
        verdicts = {name: each.as_dict() for name, each in self.verdicts.items()}
        return {"outcome": {**values, **more}, "verdicts": verdicts}

    @classmethod
    def of_manifest(cls, folder: Path, outcome: Mapping[str, Any], verdicts: Mapping[str, Any]) -> Outcome:
        """The inverse of ``for_manifest``, also of what earlier versions wrote."""
        values = {name: outcome.get(name, default) for name, default in _OUTCOME.items()}
        return cls(folder, **values, verdicts={name: Verdict.from_dict(each) for name, each in verdicts.items()})
