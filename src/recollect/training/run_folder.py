"""A training on disk: one folder that says what was done, with what, and what came of it.

    config.yaml      every setting, resolved; ``recollect train RUN/config.yaml`` does it again
    manifest.json    versions, machine, command, data fingerprints, weights, plan, and the outcome once there is one
    metrics.jsonl    a line a step and a line an evaluation, in order
    checkpoints/     last.pt to go on from, best-STEP.pt by validation
    model/           the final embedder
    stopped/         the batch at which a run stopped on a loss that is no number
    trained_on.npz   names of the training classes and digests of the training images
    .lock            held by the process that trains; it stays, for whoever waits at it must meet the next at it too

Everything but ``metrics.jsonl`` is written whole or not at all. A folder that holds anything is never written over.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from recollect._version import __version__
from recollect.common.errors import ConfigError, DataError
from recollect.common.files import make_folder_for, read_json, write_json, write_text
from recollect.config.overrides import as_mapping
from recollect.config.schema import Config
from recollect.inference.run_files import RunFiles, absolute_roots, relative_roots
from recollect.inference.trained_on import note_training, refuse_other_training_images

if TYPE_CHECKING:
    from recollect.training.session import Session

_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "pytorch-metric-learning")


def refuse_used(path: Path) -> None:
    """Refuse a place for a new run where something lies already; the lock of a run that never began is nothing.

    Raises:
        ConfigError: a file, or a folder that is not empty.
    """
    if path.exists() and (not path.is_dir() or any(entry.name != ".lock" for entry in path.iterdir())):
        hint = f", or go on with it: recollect train --resume {path}" if (path / "config.yaml").exists() else ""
        raise ConfigError(f"{path} exists and is not empty; a run is never written over. Choose another --out{hint}.")


class RunFolder(RunFiles):
    """Paths of a run and the small files in it. Make one with ``create`` or ``open``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.metrics_file = path / "metrics.jsonl"
        self.stopped = path / "stopped"
        self.lock = path / ".lock"

    @classmethod
    def create(cls, path: Path | str | None, name: str) -> RunFolder:
        """A new, empty run.

        Args:
            path: where; None for ``runs/<name>-<date>-<time>``.
            name: what it is called by default.

        Raises:
            ConfigError: there is something already.
        """
        if path is None:
            stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
            base = Path("runs") / f"{name.replace('/', '-')}-{stamp}"
            path = next(p for n in range(1, 1000) if not (p := base if n == 1 else Path(f"{base}-{n}")).exists())
        path = Path(path)
        refuse_used(path)
        make_folder_for(path / "config.yaml")
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """A run that exists.

        Raises:
            DataError: there is none.
        """
        run = cls(Path(path))
        if not run.config_file.is_file():
            raise DataError(f"{path} is no run: it has no config.yaml.")
        return run

    def best(self, step: int) -> Path:
        """Where weights lie that are best so far, those of ``step``.

        One file a step: until a checkpoint speaks of the new ones, the last one speaks of those before them.
        """
        return self.last.with_name(f"best-{step}.pt")

    def forget_best_but(self, step: int | None) -> None:
        """Remove best weights of other steps than ``step``; of None, all."""
        for path in self.last.parent.glob("best-*.pt"):
            if step is None or path != self.best(step):
                path.unlink(missing_ok=True)

    def write_config(self, config: Config) -> None:
        """Write the resolved configuration, its images by absolute paths."""
        config = replace(config, data=absolute_roots(config.data))
        text = yaml.safe_dump(as_mapping(config), sort_keys=False, allow_unicode=True, width=120)
        write_text(self.config_file, f"# Written by recollect {__version__}: every setting of this run.\n{text}")

    def update_manifest(self, **values: Any) -> None:
        """Add entries to ``manifest.json``."""
        known = read_json(self.manifest_file) if self.manifest_file.exists() else {}
        write_json(self.manifest_file, {**known, **values})

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of ``metrics.jsonl``; a last line cut short by a crash is left out."""
        if not self.metrics_file.exists():
            return
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue

    def forget_after(self, step: int) -> None:
        """Drop the lines of steps after ``step``: a resumed run takes them again."""
        kept = [record for record in self.read_metrics() if record["step"] <= step]
        if self.metrics_file.exists():
            write_text(self.metrics_file, "".join(json.dumps(record) + "\n" for record in kept))


def place_of_run(session: Session, run: RunFolder | None, out: Path | str | None) -> RunFolder:
    """The folder of ``run``, or of a new one, made and still empty. Every process calls it."""
    if session.team.rank == 0 and run is None:
        run = RunFolder.create(out, session.config.name)
    place = session.team.from_first(None if run is None else str(run.path))
    return RunFolder(Path(place))


def note_start(session: Session, folder: RunFolder, resumed: bool) -> None:
    """Write a run's first files, or that it is resumed. By the one process that holds the run's lock."""
    if resumed:
        refuse_other_training_images(folder.path, session.sets.train)
        folder.update_manifest(resumed=[*folder.read_manifest().get("resumed", []), now()])
    else:
        note_training(folder.path, session.sets.train, session.sets.validation)
        folder.update_manifest(**_beginning(session, folder.path))
        folder.write_config(session.config)


def _beginning(session: Session, run: Path) -> dict[str, Any]:
    """What the manifest of a new run says."""
    config, sets = session.config, session.sets
    named = (("train", sets.train), ("validation", sets.validation), ("test", sets.test))
    return {
        **circumstances(session.device, session.team.size),
        "data": {
            "name": config.data.name,
            "root": config.data.root,
            "relative": relative_roots(config.data, run),
            "fingerprints": {name: images.fingerprint for name, images in named if images is not None},
        },
        "weights": session.network.embedder.config.provenance.as_dict(),
        "choices": [str(choice) for choice in session.choices],
        "plan": session.plan.as_dict(),
    }


def circumstances(device: torch.device, processes: int) -> dict[str, Any]:
    """With what and on what a run is done."""
    versions = {"recollect": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    machine: dict[str, Any] = {
        "system": platform.platform(),
        "host": platform.node(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "processes": processes,
    }
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
        machine["cuda"] = torch.version.cuda
    # A database's address may carry a password, and manifests are passed around.
    command = [re.sub(r"(://[^/@:\s]*):\S*@", r"\1:***@", argument) for argument in sys.argv]
    return {"started": now(), "command": command, "versions": versions, "machine": machine}


def now() -> str:
    """This moment, to the second, with its offset."""
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
