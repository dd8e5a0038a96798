from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recollect.common.errors import ConfigError, DataError, DataWarning
from recollect.data import load
from recollect.data.sources import glyphs
from recollect.data.sources.glyphs.lookalikes import ink_difference, merge_lookalikes
from recollect.data.sources.glyphs.typefaces import EM, SIZE, Face, characters_of, find_faces

FACES = ("DejaVuSansMono-BoldOblique", "DejaVuSansMono-Oblique", "STIXGeneralItalic")


@pytest.fixture(scope="module")
def faces() -> list[Face]:
    """Three small faces that come with matplotlib: enough to see everything, quick to draw."""
    return [face for face in find_faces() if face.name in FACES]


@pytest.fixture(scope="module")
def small(faces: list[Face]) -> glyphs.Glyphs:
    return glyphs.make_glyphs(faces, min_faces=3)


def test_matplotlib_alone_brings_sixteen_faces() -> None:
    names = {face.name for face in find_faces()}
    assert sum(name.startswith(("DejaVu", "STIXGeneral")) for name in names) == 16
    assert not [name for name in names if name.startswith(("cm", "Last", "STIXSiz", "STIXNon"))]


def test_coverage_is_what_a_font_draws(faces: list[Face]) -> None:
    characters = characters_of(faces[0].path)
    assert {"A", "Ж", "ß", "∞", "7"} <= characters
    assert not {" ", "\u00a0", "\u0301", "\ue000", "漢"} & characters


def test_a_character_is_black_on_white_and_centred(faces: list[Face]) -> None:
    picture = faces[0].render("H")
    assert picture is not None
    assert (picture.shape, picture.dtype, picture[0, 0]) == ((SIZE, SIZE), np.uint8, 255)
    rows, columns = np.nonzero(picture < 255)
    for low, high in ((rows.min(), rows.max()), (columns.min(), columns.max())):
        assert abs((low + high + 1) / 2 - SIZE / 2) <= 0.5
    assert EM * 0.6 < rows.max() - rows.min() + 1 < EM * 0.85


def test_wide_characters_are_shrunk_not_cut(faces: list[Face]) -> None:
    for character in "€ЩÅ—‱":
        picture = next(face for face in find_faces() if face.name == "DejaVuSerif-Bold").render(character)
        assert picture is not None
        border = np.concatenate([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
        assert border.min() == 255, character


def test_next_to_no_ink_is_no_picture(faces: list[Face]) -> None:
    assert faces[0].render(" ") is None
    assert faces[0].render(".") is None


def test_look_alikes_are_joined_and_others_are_not(faces: list[Face]) -> None:
    dejavu = [face for face in find_faces() if face.name.startswith("DejaVu")]
    face_pictures = {
        c: {face.name: picture for face in dejavu if (picture := face.render(c)) is not None}
        for c in "AΑАaаoοоBВΒLЛOQĒĔΩ\u2126nп"
    }
    first = merge_lookalikes(face_pictures)
    groups = {"".join(sorted(c for c in first if first[c] == f)) for f in set(first.values())}
    assert groups == {"AΑА", "aа", "oοо", "BΒВ", "L", "Л", "O", "Q", "Ē", "Ĕ", "Ω\u2126", "n", "п"}


def test_ink_difference() -> None:
    square = np.full((1, SIZE, SIZE), 255, np.uint8)
    square[0, 10:20, 10:20] = 0
    moved = np.roll(square, (1, -1), (1, 2))
    assert ink_difference(square, moved).tolist() == [0.0]
    half = square.copy()
    half[0, 10:20, 15:20] = 255
    assert ink_difference(square, half).tolist() == [0.5]


def test_no_picture_twice_and_enough_of_each(small: glyphs.Glyphs) -> None:
    assert len({picture.tobytes() for picture in small.pixels}) == len(small.pixels)
    assert len(set(small.names)) == len(small.names) == len(small.labels)
    assert np.bincount(small.labels).min() == 3
    assert len(small.class_names) > 300
    assert all(picture.min() < 128 for picture in small.pixels)


def test_one_picture_a_face_of_look_alikes(small: glyphs.Glyphs) -> None:
    classes = {name.split()[0] for name in small.class_names}
    assert "U+0041" in classes
    assert not {"U+0391", "U+0410"} & classes
    label = next(i for i, name in enumerate(small.class_names) if name == "U+0041 A")
    names = [small.names[i] for i in np.flatnonzero(small.labels == label)]
    assert names == [f"U+0041/{face}" for face in FACES]


def test_making_is_deterministic(faces: list[Face], small: glyphs.Glyphs) -> None:
    again = glyphs.make_glyphs(list(faces), min_faces=3)
    assert again.names == small.names
    assert np.array_equal(again.pixels, small.pixels)


def test_split_depends_on_the_character_alone(small: glyphs.Glyphs) -> None:
    digests = [glyphs._digest(name) for name in small.class_names]
    assert digests == sorted(digests)
    assert 0.4 < np.mean(np.array(digests) < 0.5) < 0.6
    # Golden: a change here moves characters across the border of every set made so far.
    training = [c for c in "ABCDEFGHabcdefgh" if glyphs._digest(f"U+{ord(c):04X} {c}") < 0.5]
    assert "".join(training) == "BCFHegh"


@pytest.fixture
def three_faces(faces: list[Face], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glyphs, "find_faces", lambda system_fonts: faces)
    monkeypatch.setattr(glyphs, "characters_of", lambda path: {c for c in characters_of(path) if ord(c) < 0x200})
    return tmp_path / "cache" / "glyphs"


def test_cache_is_used_and_rebuilt_when_damaged(three_faces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = load("glyphs", min_faces=3)
    test = load("glyphs", split="test", min_faces=3)
    assert not set(train.class_names) & set(test.class_names)
    assert len(load("glyphs", split="all", min_faces=3)) == len(train) + len(test)
    [file] = three_faces.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(glyphs, "make_glyphs", lambda *_: pytest.fail("made although it is cached"))
        assert load("glyphs", min_faces=3).fingerprint == train.fingerprint
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:5000] + b"\xff" * 500 + whole[5500:], b"", b"not a zip"):
        file.write_bytes(damaged)
        assert load("glyphs", min_faces=3).fingerprint == train.fingerprint
        assert file.read_bytes() == whole


def test_other_fonts_or_options_are_another_set(three_faces: Path, faces: list[Face]) -> None:
    load("glyphs", min_faces=3)
    load("glyphs", min_faces=2)
    assert len(list(three_faces.iterdir())) == 2
    faces_before = list(faces)
    try:
        faces.pop()
        load("glyphs", min_faces=2)
    finally:
        faces[:] = faces_before
    assert len(list(three_faces.iterdir())) == 3


def test_a_cache_that_cannot_be_written_is_no_obstacle(three_faces: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(DataWarning, match="cannot be written"):
        assert len(load("glyphs", root=tmp_path / "file", min_faces=3)) > 100


def test_impossible_wishes(three_faces: Path) -> None:
    with pytest.raises(ConfigError, match=r"min_faces .*at least 2"):
        load("glyphs", min_faces=1)
    with pytest.raises(ConfigError, match="no split 'val'"):
        load("glyphs", split="val")
    with pytest.raises(DataError, match=r"9 .*pictures .*3 faces"):
        load("glyphs", min_faces=9)


@pytest.mark.slow
def test_the_whole_set() -> None:
    extra = len(find_faces()) > 40
    images = load("glyphs", split="all")  # drawn for this test or for another one of the same run
    assert images.class_sizes.min() == glyphs.MIN_FACES
    assert len({picture.tobytes() for picture in images.arrays}) == len(images)  # type: ignore[union-attr]
    # Loose bounds: the packages of fonts are not pinned and may grow.
    low, high = ((1800, 40_000), (2800, 60_000)) if extra else ((1000, 10_000), (2200, 25_000))
    assert low[0] < images.num_classes < high[0]
    assert low[1] < len(images) < high[1]
