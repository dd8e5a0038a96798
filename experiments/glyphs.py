"""Draws the characters of the data set ``glyphs`` and writes the file that the package contains.

    pip install -r experiments/typefaces.txt
    python -m experiments.glyphs               # draw and write
    python -m experiments.glyphs raw-pixels    # r@1 of the test characters by the cosine of their ink

The pixels depend on the font files and on the version of freetype inside Pillow; the file of the package was drawn with
freetype 2.14.3. What looks the same is decided in ``lookalikes.py``, fonts and rendering are in ``typefaces.py``.
"""

from __future__ import annotations

import io
import lzma
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.lookalikes import merge_lookalikes
from experiments.typefaces import Face, characters_of, find_faces
from recollect.common.console import ProgressLine
from recollect.data import load
from recollect.data.sources import glyphs
from recollect.evaluation import evaluate


@dataclass(frozen=True)
class Glyphs:
    """All pictures: N × 48 × 48 pixels, the name and class of each, and the classes' names."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: list[str]
    class_names: list[str]


def make_glyphs(faces: list[Face], min_faces: int = 8) -> Glyphs:
    """Draw every character that at least ``min_faces`` faces have, and remove ambiguous pictures.

    Look-alikes are one class (``lookalikes.py``) with one picture per face. Of identical pictures of a class one is
    kept; a picture that two classes share (the A and a of a face without small letters) is left out of both, because it
    has no right answer. Classes with fewer than ``min_faces`` pictures left are dropped. Classes are ordered by a hash of
    their code point: the training half, and its own first half, is a fair sample of all scripts, and a character
    stays in its half when fonts are added.
    """
    pictures = _draw(faces, min_faces)
    first = merge_lookalikes(pictures)
    classes: dict[str, dict[str, NDArray[np.uint8]]] = defaultdict(dict)
    for character in sorted(pictures):
        for face, picture in pictures[character].items():
            classes[first[character]].setdefault(face, picture)
    owners: dict[bytes, set[str]] = defaultdict(set)
    for character, of_face in classes.items():
        for picture in of_face.values():
            owners[picture.tobytes()].add(character)
    pictures_of: dict[str, dict[str, NDArray[np.uint8]]] = {}
    for character, of_face in classes.items():
        distinct = {picture.tobytes(): face for face, picture in reversed(of_face.items())}
        unique = {face: of_face[face] for content, face in distinct.items() if len(owners[content]) == 1}
        if len(unique) >= min_faces:
            pictures_of[_class_name(character)] = dict(sorted(unique.items()))
    if not pictures_of:
        raise ValueError(f"no character has {min_faces} different pictures in {len(faces)} faces.")
    names = sorted(pictures_of, key=glyphs.character_digest)
    return Glyphs(
        pixels=np.stack([picture for name in names for picture in pictures_of[name].values()]),
        labels=np.repeat(np.arange(len(names)), [len(pictures_of[name]) for name in names]).astype(np.int64),
        names=[f"{name.split()[0]}/{face}" for name in names for face in pictures_of[name]],
        class_names=names,
    )


def _draw(faces: list[Face], min_faces: int) -> dict[str, dict[str, NDArray[np.uint8]]]:
    coverage = [characters_of(face.path) for face in faces]
    count = Counter(character for characters in coverage for character in characters)
    enough = {character for character, number in count.items() if number >= min_faces}
    pictures: dict[str, dict[str, NDArray[np.uint8]]] = defaultdict(dict)
    with ProgressLine("drawing glyphs", sum(count[character] for character in enough)) as line:
        for face, characters in zip(faces, coverage, strict=True):
            for character in sorted(characters & enough):
                try:
                    picture = face.render(character)
                except OSError:  # a damaged system font, or a bitmap font; the others suffice
                    break
                if picture is not None:
                    pictures[character][face.name] = picture
            line.advance(len(characters & enough))
    return pictures


def _class_name(character: str) -> str:
    return f"U+{ord(character):04X} {character}"


def packed(sets: dict[int, Glyphs]) -> bytes:
    """The content of the package's file: every picture once, and each set's choice of them by ``min_faces``."""
    places: dict[bytes, int] = {}
    arrays: dict[str, NDArray[np.generic]] = {}
    for number, drawn in sets.items():
        pictures = [places.setdefault(picture.tobytes(), len(places)) for picture in drawn.pixels]
        arrays[f"pictures_{number}"] = np.array(pictures, np.int32)
        arrays[f"labels_{number}"] = drawn.labels.astype(np.int32)
        arrays[f"names_{number}"], arrays[f"class_names_{number}"] = np.array(drawn.names), np.array(drawn.class_names)
    side = next(iter(sets.values())).pixels.shape[1:]
    arrays["pixels"] = np.stack([np.frombuffer(picture, np.uint8).reshape(side) for picture in places])
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def raw_pixel_recall() -> float:
    test = load("glyphs", split="test")
    assert test.arrays is not None
    ink = 255 - torch.from_numpy(test.arrays).flatten(1).float()
    return evaluate(ink, test.labels, ks=(1,), metrics=("r@k",), similarity="cosine").metrics["r@1"]


if __name__ == "__main__":
    if sys.argv[1:] == ["raw-pixels"]:
        print(f"r@1 {100 * raw_pixel_recall():.1f}")
    else:
        faces = find_faces()
        out = Path(glyphs.__file__).with_name(glyphs.FILE)
        out.write_bytes(packed({number: make_glyphs(faces, number) for number in glyphs.DRAWN}))
        print(f"{len(faces)} typefaces, {out.stat().st_size:,} bytes: {out}")
