"""A model that needs no weights: an image shrunk to 4×4 pixels is its vector. It counts what it embeds."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recollect.common.errors import ImageError
from recollect.common.images import read_image
from recollect.common.pixels import to_rgb


class ToyEncoder:
    """``shift`` makes another model of it. ``log`` is a file that gets one line per image embedded."""

    dim = 48

    def __init__(self, shift: int = 0, log: Path | None = None, stop_after: int | None = None) -> None:
        self.shift, self.log, self.stop_after = shift, log, stop_after
        self.fingerprint = hashlib.sha256(f"toy {shift}".encode()).hexdigest()
        self.provenance: dict[str, Any] = {"model": None, "name": f"toy {shift}"}
        self.seen: list[str] = []

    def embed(self, images: Sequence[Any], on_bad: Any = None) -> np.ndarray:
        rows = np.full((len(images), self.dim), np.nan, np.float32)
        for number, image in enumerate(images):
            if self.stop_after is not None and len(self.seen) >= self.stop_after:
                raise KeyboardInterrupt
            try:
                rows[number] = self._vector(image)
            except ImageError as error:
                if on_bad is None:
                    raise
                on_bad(number, error)
                continue
            self.seen.append(str(image))
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(f"{hashlib.sha256(Path(image).read_bytes()).hexdigest()}\n")
        return rows

    def _vector(self, image: Any) -> np.ndarray:
        if isinstance(image, np.ndarray):
            image = Image.fromarray(image)
        picture = to_rgb(image) if isinstance(image, Image.Image) else read_image(image)
        values = np.asarray(picture.resize((4, 4), Image.Resampling.BILINEAR), np.float32).ravel() - 127.3
        values = np.roll(values, self.shift)
        return values / np.linalg.norm(values)


def make_photos(root: Path, classes: int = 4, each: int = 5, seed: int = 0, size: int = 12) -> Path:
    """Class folders of small PNG photos; photos of a class resemble each other."""
    random = np.random.default_rng(seed)
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        base = random.integers(0, 256, (4, 4, 3))
        for number in range(each):
            pixels = np.clip(base + random.normal(0, 25, (4, 4, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((size, size), Image.Resampling.NEAREST).save(folder / f"{number}.png")
    return root


def save_model(folder: Path | str, seed: int = 0) -> Path:
    """A small embedder, saved; another seed gives another one."""
    import torch

    from recollect.models import Embedder

    torch.manual_seed(seed)
    Embedder.create("tiny", size=16, dim=8).save(folder, overwrite=True)
    return Path(folder)


def contents(index: Any) -> dict[str, tuple[Any, ...]]:
    """Everything an index holds, comparable."""
    return {
        item.id: (np.round(item.vector, 5).tolist(), dict(item.metadata), item.digest, item.source, item.stamp)
        for item in index.store.iterate(index.generation.number, vectors=True)
    }
