"""``glyphs``: characters in many typefaces, generated from fonts that pip installs. Nothing is downloaded.

A class is a character, an image is that character in one typeface, and test characters are never seen in training:
open-set retrieval of real designs. Generated once, in seconds, and cached; the cache key covers the font files and
everything else the pixels depend on, so other fonts give another set. Fonts and rendering are in
``data/sources/glyphs/typefaces.py``.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError, DataError, DataWarning
from recollect.common.files import atomic_write, cache_folder, sha256
from recollect.common.reading import read_npz
from recollect.data.image_set import ImageSet
from recollect.data.registry import Source
from recollect.data.sources.glyphs.lookalikes import merge_lookalikes
from recollect.data.sources.glyphs.typefaces import SIZE, Face, characters_of, find_faces, renderer_version

MIN_FACES = 8


@dataclass(frozen=True)
class Glyphs:
    """All pictures: N × SIZE × SIZE pixels, the name and class of each, and the classes' names."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: list[str]
    class_names: list[str]


def read(root: Path | None, split: str, *, min_faces: int = MIN_FACES, system_fonts: bool = False) -> ImageSet:
    """The glyphs of a split, from the cache or newly generated.

    Args:
        root: where to keep the cache, instead of ``cache_folder()``.
        split: ``"train"``, ``"test"`` or ``"all"``; half of the characters are for training, by a hash of their code.
        min_faces: characters with fewer different pictures are left out.
        system_fonts: also use the fonts of this machine; the set then depends on the machine.
    """
    if min_faces < 2:
        raise ConfigError(
            f"min_faces must be at least 2, not {min_faces}: a class of one image has nothing to retrieve."
        )
    glyphs = _cached(find_faces(system_fonts), min_faces, (root or cache_folder()) / "glyphs")
    images = ImageSet("glyphs", glyphs.names, glyphs.labels, glyphs.class_names, arrays=glyphs.pixels)
    return images if split == "all" else on_side(images, split)


def on_side(images: ImageSet, split: str) -> ImageSet:
    """The characters that are on the side ``"train"`` or ``"test"``."""
    wanted = [label for label, name in enumerate(images.class_names) if (_digest(name) < 0.5) == (split == "train")]
    return images.of_classes(wanted, split)


def make_glyphs(faces: list[Face], min_faces: int = MIN_FACES) -> Glyphs:
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
    kept: dict[str, dict[str, NDArray[np.uint8]]] = {}
    for character, of_face in classes.items():
        distinct = {picture.tobytes(): face for face, picture in reversed(of_face.items())}
        chosen = {face: of_face[face] for content, face in distinct.items() if len(owners[content]) == 1}
        if len(chosen) >= min_faces:
            kept[_class_name(character)] = dict(sorted(chosen.items()))
    if not kept:
        raise SOURCE.trouble(f"no character has {min_faces} different pictures in {len(faces)} faces: lower min_faces.")
    names = sorted(kept, key=_digest)
    return Glyphs(
        pixels=np.stack([picture for name in names for picture in kept[name].values()]),
        labels=np.repeat(np.arange(len(names)), [len(kept[name]) for name in names]).astype(np.int64),
        names=[f"{name.split()[0]}/{face}" for name in names for face in kept[name]],
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


def _digest(class_name: str) -> float:
    """A number from 0 to 1 that depends on the code point alone."""
    return int.from_bytes(hashlib.sha256(class_name.split()[0].encode()).digest()[:6]) / 2**48


def _cached(faces: list[Face], min_faces: int, folder: Path) -> Glyphs:
    key = hashlib.sha256(f"{renderer_version()}\0{min_faces}".encode())
    for face in faces:
        key.update(f"{face.name}\0{sha256(face.path)}\0{face.axes}\n".encode())
    path = folder / f"{key.hexdigest()[:24]}.npz"
    glyphs = _read_cache(path)
    if glyphs is None:
        glyphs = make_glyphs(faces, min_faces)
        try:
            _write_cache(path, glyphs)
        except (OSError, DataError) as error:
            warnings.warn(
                f"glyphs: the cache {folder} cannot be written ({error}), so they are generated again each time. "
                "Set RECOLLECT_CACHE to a folder that can be written.",
                DataWarning,
                stacklevel=4,
            )
    return glyphs


def _write_cache(path: Path, glyphs: Glyphs) -> None:
    with atomic_write(path) as file:
        np.savez_compressed(
            file,
            pixels=glyphs.pixels,
            labels=glyphs.labels,
            names=np.array(glyphs.names),
            class_names=np.array(glyphs.class_names),
        )


def _read_cache(path: Path) -> Glyphs | None:
    """The content of the cache; None if it does not exist or its checksums do not match."""
    try:
        kept = read_npz(path)
        pixels, labels = kept["pixels"], kept["labels"]
        names, class_names = kept["names"].tolist(), kept["class_names"].tolist()
    except (DataError, KeyError):
        return None
    if pixels.dtype != np.uint8 or pixels.shape != (len(names), SIZE, SIZE) or labels.shape != (len(names),):
        return None
    return Glyphs(pixels, labels.astype(np.int64), names, class_names)


SOURCE = Source(
    name="glyphs",
    title="Characters in many typefaces, made here from installed fonts: no download",
    read=read,
    splits=("train", "test", "all"),
    layout='nothing: fonts come with matplotlib, more with  pip install "recollect[glyphs]"',
    homepage="made on this machine",
    licence="the fonts' own: DejaVu and STIX (free), OFL or Apache for the extra's",
    needs_root=False,
)
SOURCES = (SOURCE,)
