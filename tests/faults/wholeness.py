"""Whether what a command left is whole, and the same as what an undisturbed one makes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from safetensors import safe_open

from faults.conftest import World
from recollect.common.reading import read_json, read_json_lines, read_npz, read_torch
from recollect.common.yaml_text import read_yaml


def weights(folder: Path) -> bytes:
    """Every weight of an embedder."""
    with safe_open(folder / "model.safetensors", "numpy") as tensors:
        return b"".join(name.encode() + tensors.get_tensor(name).tobytes() for name in sorted(tensors.keys()))


def strays(folder: Path) -> list[str]:
    """Temporary files that were left."""
    return [path.name for path in folder.rglob(".*.part")]


def differs(world: World, run_folder: Path) -> str | None:
    """Whether a run that came to its end is another than the undisturbed one."""
    if weights(run_folder / "model") != weights(world.finished / "model"):
        return "ended with other weights and no word"
    left = strays(run_folder)
    return f"left {left} behind" if left else None


def arrays(path: Path) -> dict[str, bytes]:
    """The arrays of an ``.npz``."""
    return {name: array.tobytes() for name, array in read_npz(path).items()}


def compared(folder: Path) -> list[Any]:
    """What a comparison of losses measured, without its times."""
    found = read_json(folder / "comparison.json", dict)
    return [[row[key] for key in ("loss", "by_seed", "learning_rate", "steps")] for row in found["losses"]]


def reproduced(folder: Path) -> list[str]:
    """What the runs of a study measured, in any order."""
    found = read_json_lines(folder / "page" / "runs.jsonl", print)
    return sorted(f"{run['settings']['loss']} {run['settings']['optimizer']['lr']} {run['metrics']}" for run in found)


def broken(paths: list[Path]) -> str | None:
    """What of these files and folders is there and not whole."""
    for path in (file for place in paths for file in ([place] if place.is_file() else sorted(place.rglob("*")))):
        if path.is_file() and path.name != "metrics.jsonl" and (check := _CHECKS.get(path.suffix)) is not None:
            try:
                check(path)
            except Exception as error:
                return f"{path.name} is not whole: {type(error).__name__} {error}"
    return None


def _page(path: Path) -> None:
    assert path.read_text().rstrip().endswith("</html>"), "cut short"


def _database(path: Path) -> None:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    database.close()


def _tensors(path: Path) -> None:
    with safe_open(path, "numpy") as tensors:
        assert all(np.isfinite(tensors.get_tensor(name)).all() for name in tensors.keys())  # noqa: SIM118


_CHECKS: dict[str, Callable[[Path], object]] = {
    ".json": lambda path: read_json(path),
    ".npz": read_npz,
    ".html": _page,
    ".db": _database,
    ".pt": read_torch,
    ".yaml": read_yaml,
    ".safetensors": _tensors,
    ".onnx": lambda path: onnx.load(str(path)),
}
