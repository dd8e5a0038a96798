"""The characters that the package contains."""

from __future__ import annotations

import numpy as np
import pytest

from recollect.common.errors import ConfigError
from recollect.data import load
from recollect.data.sources.glyphs import character_digest


@pytest.mark.parametrize(
    ("split", "min_faces", "images", "classes", "fingerprint"),
    [
        ("train", 8, 22_252, 1034, "1cc41035aab77da8"),
        ("test", 8, 24_453, 1176, "1f653a88f4d30bfc"),
        ("test", 32, 10_494, 240, "f0a304e2557d5d9b"),
    ],
)
def test_the_characters_are_those_of_the_published_figures(
    split: str, min_faces: int, images: int, classes: int, fingerprint: str
) -> None:
    found = load("glyphs", split=split, min_faces=min_faces)
    assert (len(found), found.num_classes, found.fingerprint[:16]) == (images, classes, fingerprint)
    assert found.class_sizes.min() >= min_faces


def test_no_picture_is_there_twice_and_no_character_on_both_sides() -> None:
    train, test = load("glyphs", split="train", min_faces=40), load("glyphs", split="test", min_faces=40)
    assert not set(train.class_names) & set(test.class_names)
    both = load("glyphs", split="all", min_faces=40)
    assert len(both) == len(train) + len(test)
    assert len({picture.tobytes() for picture in both.arrays}) == len(both)  # type: ignore[union-attr]
    assert both.class_sizes.min() >= 40


def test_the_split_depends_on_the_character_alone() -> None:
    digests = [character_digest(name) for name in load("glyphs", split="all").class_names]
    assert digests == sorted(digests)
    assert 0.4 < np.mean(np.array(digests) < 0.5) < 0.6
    training = [c for c in "ABCDEFGHabcdefgh" if character_digest(f"U+{ord(c):04X} {c}") < 0.5]
    assert "".join(training) == "BCFHegh"


def test_impossible_wishes() -> None:
    for number in (1, 54):
        with pytest.raises(ConfigError, match="min_faces must be from 8 to 53"):
            load("glyphs", min_faces=number)
    with pytest.raises(ConfigError, match="no split 'val'"):
        load("glyphs", split="val")
