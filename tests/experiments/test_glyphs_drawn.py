from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import glyphs
from experiments.lookalikes import merge_lookalikes
from experiments.typefaces import EM, SIZE, Face, find_faces
from recollect.data.sources import glyphs as source

FACES = ("DejaVuSansMono-BoldOblique", "DejaVuSansMono-Oblique", "STIXGeneralItalic")


@pytest.fixture(scope="module")
def faces() -> list[Face]:
    """Three small faces that come with matplotlib: enough to see everything, quick to draw."""
    return [face for face in find_faces() if face.name in FACES]


@pytest.fixture(scope="module")
def small(faces: list[Face]) -> glyphs.Glyphs:
    return glyphs.make_glyphs(faces, min_faces=3)


def test_a_character_is_black_on_white_and_centred(faces: list[Face]) -> None:
    picture = faces[0].render("H")
    assert (picture.shape, picture.dtype, picture[0, 0]) == ((SIZE, SIZE), np.uint8, 255)
    rows, columns = np.nonzero(picture < 255)
    for low, high in ((rows.min(), rows.max()), (columns.min(), columns.max())):
        assert abs((low + high + 1) / 2 - SIZE / 2) <= 0.5
    assert EM * 0.6 < rows.max() - rows.min() + 1 < EM * 0.85


def test_look_alikes_are_joined_and_others_are_not(faces: list[Face]) -> None:
    dejavu = [face for face in find_faces() if face.name.startswith("DejaVu")]
    face_pictures = {
        c: {face.name: picture for face in dejavu if (picture := face.render(c)) is not None}
        for c in "AΑАaаoοоBВΒLЛOQĒĔΩ\u2126nп"
    }
    first = merge_lookalikes(face_pictures)
    groups = {"".join(sorted(c for c in first if first[c] == f)) for f in set(first.values())}
    assert groups == {"AΑА", "aа", "oοо", "BΒВ", "L", "Л", "O", "Q", "Ē", "Ĕ", "Ω\u2126", "n", "п"}


def test_no_picture_twice_and_enough_of_each(small: glyphs.Glyphs) -> None:
    assert len({picture.tobytes() for picture in small.pixels}) == len(small.pixels)
    assert len(set(small.names)) == len(small.names) == len(small.labels)
    assert np.bincount(small.labels).min() == 3
    assert len(small.class_names) > 300
    assert all(picture.min() < 128 for picture in small.pixels)


def test_the_file_of_the_package_holds_what_was_drawn(
    small: glyphs.Glyphs, faces: list[Face], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.resources, "files", lambda package: tmp_path)
    monkeypatch.setattr(source, "DRAWN", (3, 32))
    (tmp_path / source.FILE).write_bytes(glyphs.packed({3: small, 32: small}))
    images = source.read(None, "all", min_faces=3)
    assert (images.names, list(images.class_names)) == (small.names, small.class_names)
    assert np.array_equal(images.arrays, small.pixels)
