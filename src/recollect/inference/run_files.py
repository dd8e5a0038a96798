"""A run folder as it is read: its settings, what it noted, and where its images are now.

``training/run_folder.py`` writes what is read here. Reading lies below training because evaluation, reports and search
need it and have no need to train.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from recollect.common.errors import DataError, in_one_line
from recollect.common.files import read_json
from recollect.config.overrides import from_mapping
from recollect.config.schema import Config, DataConfig

CHECKPOINT_FORMAT = 1

CHECKPOINT_REMEDY = (
    "Put a whole copy of it back, or remove checkpoints/last.pt: the run then starts again from its first step."
)


class RunFiles:
    """Paths of a run, and what its small files say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.manifest_file = path / "manifest.json"
        self.last = path / "checkpoints" / "last.pt"
        self.model = path / "model"

    @property
    def is_run(self) -> bool:
        """Whether there is a run at all."""
        return self.config_file.is_file()

    def read_settings(self) -> Mapping[str, Any]:
        """The settings as written, without judging them.

        Raises:
            DataError: not a YAML file, or not settings.
        """
        try:
            values = yaml.safe_load(self.config_file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise DataError(f"{self.config_file}: not a YAML file ({in_one_line(error)}).") from error
        if not isinstance(values, Mapping):
            raise DataError(f"{self.config_file}: holds no settings. Put a whole copy of it back.")
        return values

    def read_config(self) -> Config:
        """The configuration that was written, with its images where they are now.

        Raises:
            DataError: not a YAML file. ConfigError: settings of another version.
        """
        config = from_mapping(self.read_settings(), str(self.config_file))
        data, relative = config.data, self._relative_roots()
        root = self._found(data.root, relative.get("root"))
        validation_root = self._found(data.validation_root, relative.get("validation_root"))
        return replace(config, data=replace(data, root=root, validation_root=validation_root))

    def read_manifest(self) -> dict[str, Any]:
        """What ``manifest.json`` says; empty without one.

        Raises:
            DataError: it holds something else.
        """
        if not self.manifest_file.exists():
            return {}
        known = read_json(self.manifest_file)
        if not isinstance(known, dict):
            raise DataError(f"{self.manifest_file}: not the manifest of a run. Put a whole copy of it back.")
        return known

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return isinstance(self.read_manifest().get("outcome"), Mapping)

    def _relative_roots(self) -> Mapping[str, str]:
        try:
            noted = self.read_manifest().get("data")
        except DataError:
            return {}  # said by whoever needs the manifest
        found = noted.get("relative") if isinstance(noted, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def _found(self, root: str | None, relative: str | None) -> str | None:
        """Where the images are: as they were, or where they lie seen from the run if both were moved together."""
        if root is None or Path(root).expanduser().exists():
            return root
        moved = None if relative is None else Path(os.path.normpath(self.path.absolute() / relative))
        return str(moved) if moved is not None and moved.exists() else root


def absolute_roots(data: DataConfig) -> DataConfig:
    """``data`` with its folders as absolute paths, as ``config.yaml`` keeps them: a run is used from any folder."""
    return replace(data, root=_absolute(data.root), validation_root=_absolute(data.validation_root))


def _absolute(root: str | None) -> str | None:
    # Not resolved: a link is a name that people chose.
    return None if root is None else os.path.abspath(Path(root).expanduser())  # noqa: PTH100


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
    """The content of a file that holds at least a model's weights, on the CPU; no code in the file is ever run.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DataError(
            f"{path}: not a checkpoint that can be read ({type(error).__name__}: {in_one_line(error)}). {CHECKPOINT_REMEDY}"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__} and is not a checkpoint. {CHECKPOINT_REMEDY}")
    if content.get("format") != CHECKPOINT_FORMAT:
        raise DataError(
            f"{path}: checkpoint format {content.get('format')} is not {CHECKPOINT_FORMAT}, the one known here."
        )
    if not isinstance(content.get("model"), dict):
        raise DataError(f"{path}: not a whole checkpoint, it lacks model. {CHECKPOINT_REMEDY}")
    return content
