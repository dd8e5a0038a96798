"""Files for the tests of sources."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from PIL import Image


def touch(root: Path, *names: str, size: tuple[int, int] = (2, 2)) -> None:
    """Images of one colour, PNG whatever their names."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(root / name, format="PNG")


def write(path: Path, lines: str | Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines if isinstance(lines, str) else "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path
