"""Which characters look the same: Latin A, Greek Α and Cyrillic А.

Decided from the renderings, not from a table: two characters are one class when most faces that have both draw them
alike.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Pictures = Mapping[str, Mapping[str, NDArray[np.uint8]]]  # character → face → picture

ALIKE = (
    0.05  # share of ink that may differ: enough for hinting and rounding, less than the difference of macron and breve
)
SHARE = 0.5  # share of the faces that draw both characters alike
FACES = 3  # minimum number of faces that draw both characters


def merge_lookalikes(pictures: Pictures) -> dict[str, str]:
    """Maps every character to the first, by code point, of the characters that look like it.

    Two characters are joined if they are canonically equivalent in Unicode (the ohm sign and omega), or if at least
    one face draws them identically and at least ``SHARE`` of the faces that draw both, ``FACES`` or more, draw them
    alike: less than ``ALIKE`` of the ink differs at the best shift by a pixel. Joining is transitive.
    """
    first = {character: character for character in sorted(pictures)}

    def find(character: str) -> str:
        while first[character] != character:
            character = first[character]
        return character

    pairs = _canonical_pairs(pictures) | {pair for pair in _identical_pairs(pictures) if _alike(*pair, pictures)}
    for one, other in sorted(pairs):
        low, high = sorted((find(one), find(other)))
        first[high] = low
    return {character: find(character) for character in first}


def ink_difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The share of ink in which pictures differ, N × H × W of each, at the best shift of up to one pixel in each direction."""
    dark, other_dark = 255 - one.astype(np.int32), 255 - other.astype(np.int32)
    ink = np.maximum(dark.sum((1, 2)), other_dark.sum((1, 2)))
    shifted = (np.roll(other_dark, (dy, dx), (1, 2)) for dy in (-1, 0, 1) for dx in (-1, 0, 1))
    least = np.min([np.abs(dark - moved).sum((1, 2)) for moved in shifted], axis=0)
    return least / np.maximum(ink, 1)  # type: ignore[no-any-return]


def _canonical_pairs(pictures: Pictures) -> set[tuple[str, str]]:
    normal = ((character, unicodedata.normalize("NFC", character)) for character in pictures)
    return {(character, same) for character, same in normal if same != character and same in pictures}


def _identical_pairs(pictures: Pictures) -> set[tuple[str, str]]:
    """Pairs that at least one face draws identically; only these are compared closely."""
    drawn: dict[tuple[str, bytes], list[str]] = defaultdict(list)
    for character in sorted(pictures):
        for face, picture in pictures[character].items():
            drawn[face, picture.tobytes()].append(character)
    return {(one, other) for same in drawn.values() for i, one in enumerate(same) for other in same[i + 1 :]}


def _alike(one: str, other: str, pictures: Pictures) -> bool:
    faces = sorted(pictures[one].keys() & pictures[other].keys())
    if len(faces) < FACES:
        return False
    difference = ink_difference(*(np.stack([pictures[c][face] for face in faces]) for c in (one, other)))
    return float((difference < ALIKE).mean()) >= SHARE
