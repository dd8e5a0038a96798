"""Reads a run folder: its settings, its manifest, and the current folder of its images.

``training/run_folder.py`` writes it. Reading is separate from training because evaluation, reports and search
need it without training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from recollect.common.errors import DataError
from recollect.common.reading import parse_yaml, read_json, read_torch, read_yaml_text
from recollect.config.resolve import from_mapping, missing_groups, untrusted_names
from recollect.config.schema import Config, DataConfig, ModelConfig

TO_END, END = ", up to the line of its end.", "# The end."
"""Start and end of a ``config.yaml``, by which a truncated one is recognized; files of earlier versions do not have them."""

CHECKPOINT_FORMAT = 1

_COUNTS = ("steps", "seconds", "chosen_step")
"""Numbers of a finished run's outcome."""

CHECKPOINT_REMEDY = (
    "Restore it from a complete copy, or remove checkpoints/last.pt: the run then starts again from its first step."
)


class RunFiles:
    """Paths of a run, and the content of its small files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.manifest_file = path / "manifest.json"
        self.last = path / "checkpoints" / "last.pt"
        self.model = path / "model"

    @property
    def is_run(self) -> bool:
        """Whether there is a run."""
        return self.config_file.is_file()

    def read_config(self) -> Config:
        """The run's configuration, with the current folder of its images and with its references sealed.

        Raises:
            DataError: the file is incomplete: missing settings would silently get defaults. ConfigError: it is not
                valid.
        """
        text = read_yaml_text(self.config_file)
        values = parse_yaml(text, str(self.config_file))
        missing = missing_groups(values) if isinstance(values, Mapping) else ["everything"]
        if TO_END in text.partition("\n")[0] and f"\n{END}" not in text:
            missing = missing or ["the end"]
        if missing:
            raise DataError(
                f"{self.config_file}: incomplete, {', '.join(missing)} is missing. Restore it from a complete copy; a run is "
                "not resumed with other settings than its own."
            )
        config = untrusted_names(from_mapping(values, str(self.config_file)))
        data, relative = config.data, self._relative_roots()
        root = self._found(data.root, relative.get("root"))
        validation_root = self._found(data.validation_root, relative.get("validation_root"))
        # Which folders are the classes was settled when the run was trained.
        options = {**data.options, "nested": True} if data.name == "folder" else data.options
        return replace(config, data=replace(data, root=root, validation_root=validation_root, options=options))

    def read_manifest(self) -> dict[str, Any]:
        """The content of ``manifest.json``; empty if there is none.

        Raises:
            DataError: it is damaged.
        """
        if not self.manifest_file.exists():
            return {}
        found = read_json(self.manifest_file, dict)
        groups = ("versions", "machine", "data", "weights", "plan", "outcome", "pruned", "verdicts")
        found = {key: value for key, value in found.items() if value is not None or key not in groups}
        sound = all(isinstance(found.get(key, {}), dict) for key in groups)
        lists = (found.get("resumed", []), outside := found.get("outside", []))
        sound = sound and all(isinstance(entry, list) for entry in lists)
        sound = sound and all(isinstance(entry, dict) for entry in outside)
        numbers = [found.get("processor_seconds", 0)]
        if sound:
            outcome, metrics = found.get("outcome", {}), found.get("outcome", {}).get("metrics", {})
            numbers += [found.get("plan", {}).get("batch", 0), *(outcome.get(key, 0) for key in _COUNTS)]
            sound = isinstance(metrics, dict) and all(isinstance(values, dict) for values in metrics.values())
        if sound:
            numbers += [number for values in metrics.values() for number in values.values()]
            sound = all(isinstance(number, int | float) and abs(number) < 1e18 for number in numbers)
        if not sound:
            raise DataError(
                f"{self.manifest_file}: entries of other types than recollect writes. Restore it from a complete copy."
            )
        return found

    @property
    def finished(self) -> bool:
        """Whether training finished."""
        return isinstance(self.read_manifest().get("outcome"), Mapping)

    def _relative_roots(self) -> Mapping[str, str]:
        try:
            noted = self.read_manifest().get("data")
        except DataError:
            return {}  # reported by the callers that need the manifest
        found = noted.get("relative") if isinstance(noted, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def _found(self, root: str | None, relative: str | None) -> str | None:
        """The folder of the images: the recorded one, or the one relative to the run if both were moved together."""
        if root is None or Path(root).expanduser().exists():
            return root
        moved = None if relative is None else Path(os.path.normpath(self.path.absolute() / relative))
        return str(moved) if moved is not None and moved.exists() else root


def refuse_moved(data: DataConfig) -> None:
    """Check that the folder of a run's images is there.

    Raises:
        DataError: it is not; the message says how to name another.
    """
    if data.root is not None and not Path(data.root).expanduser().exists():
        what = "name their list" if Path(data.root).suffix else "name their folder"
        raise DataError(f"the run's images are no longer in {data.root}: {what} with --root.")


def absolute_roots(data: DataConfig) -> DataConfig:
    """``data`` with its folders as absolute paths, as ``config.yaml`` keeps them: a run is used from any folder."""
    return replace(data, root=_absolute(data.root), validation_root=_absolute(data.validation_root))


def _absolute(root: str | None) -> str | None:
    # Links are not resolved: the user chose that name.
    return None if root is None else os.path.abspath(Path(root).expanduser())  # noqa: PTH100


def absolute_weights(model: ModelConfig) -> ModelConfig:
    """``model`` with an absolute path of its starting weights, for the same reason."""
    return model if model.weights in (None, "none") else replace(model, weights=_absolute(model.weights))


def relative_roots(data: DataConfig, run: Path) -> dict[str, str]:
    """The same folders as seen from the run, for ``manifest.json``."""
    found: dict[str, str] = {}
    for name in ("root", "validation_root"):
        if (root := getattr(data, name)) is not None:
            try:
                found[name] = Path(os.path.relpath(Path(root).expanduser(), run)).as_posix()
            except ValueError:  # another drive
                continue
    return found


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint with at least a model's weights, on the CPU; no code in the file is ever run.

    Raises:
        DataError: it cannot be read, or is not a checkpoint.
    """
    try:
        content = read_torch(path)
    except DataError as error:
        raise DataError(f"{error} {CHECKPOINT_REMEDY}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: contains a {type(content).__name__}, not a checkpoint. {CHECKPOINT_REMEDY}")
    if content.get("format") != CHECKPOINT_FORMAT:
        raise DataError(
            f"{path}: checkpoint format {content.get('format')} is not {CHECKPOINT_FORMAT}, the one known here."
        )
    if not isinstance(content.get("model"), dict):
        raise DataError(f"{path}: incomplete checkpoint, the model is missing. {CHECKPOINT_REMEDY}")
    return content
