"""Messy folders, and the command line as a user runs it: shared by the tests of this folder."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cli.running import run
from recollect.common.errors import ConfigError, DataError, InputError

SMALL = ["--image-size", "32", "--dim", "16", "--device", "cpu"]
"""A pre-trained network at a size that costs little."""


def photo(path: Path, seed: int, colour: int) -> None:
    """A noisy photo of one colour."""
    noise = np.random.default_rng(seed).normal(0, 40, (40, 48, 3))
    base = np.random.default_rng(1000 + colour).integers(40, 215, (1, 1, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((base + noise).clip(0, 255).astype(np.uint8)).save(path)


def classes(root: Path, names: list[str], seed: int, count: int = 4) -> Path:
    """A folder per class, each of a colour of its own."""
    for number, name in enumerate(names):
        for image in range(count):
            photo(root / name / f"{image}.jpg", seed + 10 * number + image, seed + number)
    return root


def good(place: Path, *words: str) -> str:
    """What a command that must end well prints."""
    with contextlib.chdir(place):
        return str(run(*words).output)


def refused(place: Path, *words: str) -> str:
    """The sentence of a command that must be refused."""
    with contextlib.chdir(place), pytest.raises((ConfigError, DataError, InputError)) as refusal:
        run(*words)
    return str(refusal.value)


def manifest(run: Path) -> dict[str, Any]:
    """``manifest.json`` of a run."""
    result: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return result
