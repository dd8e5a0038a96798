"""Copies of photos are found, different pictures that look alike from afar are not."""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance

from recollect.report import near_copies
from recollect.report.near_copies import AGREE, CANDIDATES, agreement, group_copies
from recollect.report.small_pictures import FINE, SIDE, SmallPictures


def photo(seed: int) -> Image.Image:
    """Coarse shapes and finer ones, as in a photo."""
    random = np.random.default_rng(seed)
    sheet = np.zeros((192, 192, 3))
    for cells, strength in ((6, 60), (24, 30), (48, 15)):
        noise = Image.fromarray(random.integers(0, 256, (cells, cells, 3), np.uint8))
        sheet += strength / 128 * (np.asarray(noise.resize((192, 192), Image.Resampling.BICUBIC), float) - 128)
    return Image.fromarray((128 + sheet).clip(0, 255).astype(np.uint8))


def on_white(seed: int) -> Image.Image:
    """A dark oval on white, with details of its own: from afar all look the same."""
    image = Image.new("RGB", (192, 192), "white")
    ImageDraw.Draw(image).ellipse((30, 60, 162, 132), fill=(60, 60, 60))
    details = np.asarray(photo(seed), np.int16) - 128
    pixels = np.asarray(image, np.int16)
    return Image.fromarray(np.where(pixels < 200, pixels + details, pixels).clip(0, 255).astype(np.uint8))


def recompressed(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=30)
    return Image.open(io.BytesIO(file.getvalue()))


EDITS = {
    "recompressed": recompressed,
    "smaller": lambda image: image.resize((110, 110), Image.Resampling.LANCZOS),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "cropped": lambda image: image.crop((6, 6, 186, 186)),
    "shifted": lambda image: image.crop((0, 4, 188, 192)),
}


def small(images: list[Image.Image]) -> SmallPictures:
    box = Image.Resampling.BOX
    return SmallPictures(
        np.arange(len(images)),
        np.stack([np.asarray(image.convert("RGB").resize((SIDE, SIDE), box)) for image in images]),
        np.ones(len(images)),
        np.stack([np.asarray(image.convert("L").resize((FINE, FINE), box)) for image in images]),
    )


def correlation(pictures: SmallPictures) -> NDArray[np.float32]:
    rows = pictures.signatures()
    result: NDArray[np.float32] = rows @ rows.T
    return result


@pytest.mark.parametrize("name", EDITS)
def test_copies_agree(name: str) -> None:
    originals = [photo(seed) for seed in range(8)] + [on_white(seed) for seed in range(8)]
    found = agreement(small(originals).fine, small([EDITS[name](image) for image in originals]).fine)
    assert (found >= AGREE).all(), found


def test_different_pictures_that_look_alike_from_afar_do_not() -> None:
    pictures = small([on_white(seed) for seed in range(8)])
    left, right = np.triu_indices(8, 1)
    assert (correlation(pictures)[left, right] >= CANDIDATES).all()
    assert (agreement(pictures.fine[left], pictures.fine[right]) < AGREE).all()
    assert group_copies(pictures)[0].tolist() == list(range(8))


def letter(accent: int) -> Image.Image:
    """A black shape on white, below an accent of its own."""
    image = Image.new("L", (192, 192), "white")
    draw = ImageDraw.Draw(image)
    for box in ((60, 80, 78, 170), (60, 80, 130, 96), (60, 118, 120, 134), (60, 154, 130, 170)):
        draw.rectangle(box, fill=0)
    if accent == 0:
        draw.ellipse((86, 36, 106, 56), fill=0)
    elif accent == 1:
        draw.line((70, 36, 95, 62, 120, 36), fill=0, width=9)
    elif accent == 2:
        draw.rectangle((64, 42, 126, 54), fill=0)
    return image


def test_characters_that_differ_in_an_accent_are_no_copies() -> None:
    letters = [letter(accent) for accent in range(3)]
    pictures = small([*letters, *(recompressed(image) for image in letters)])
    assert (correlation(pictures)[np.triu_indices(3, 1)] >= CANDIDATES).all()
    assert group_copies(pictures)[0].tolist() == [0, 1, 2, 0, 1, 2]


def test_groups_of_copies() -> None:
    """Every copy is in the group of its original, also if pairs are compared one by one."""
    originals = [photo(0), on_white(1), on_white(2)]
    pictures = small([*originals, *(recompressed(image) for image in originals), EDITS["cropped"](originals[1])])
    roots, lowest = group_copies(pictures)
    assert roots.tolist() == [0, 1, 2, 0, 1, 2, 1]
    assert CANDIDATES <= lowest[1] <= lowest[0] <= 1.001


def test_copies_cost_little_and_the_number_of_comparisons_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = near_copies.agreement

    def counted(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.float32]:
        compared.append(len(left))
        return real(left, right)

    monkeypatch.setattr(near_copies, "agreement", counted)
    monkeypatch.setattr(near_copies, "_AT_ONCE", 10)
    many = small([photo(0)] * 40)
    assert set(group_copies(many)[0].tolist()) == {0}
    assert sum(compared) < 40 * 39 / 2 / 3  # pairs within a group are not compared again
    compared.clear()
    monkeypatch.setattr(near_copies, "MOST_CHECKED", 20)
    group_copies(small([on_white(seed) for seed in range(12)]))
    assert sum(compared) == 20


def test_plain_pictures_are_no_copies() -> None:
    plain = [Image.new("RGB", (64, 64), colour) for colour in ("white", "white", "gray")]
    assert group_copies(small(plain))[0].tolist() == [0, 1, 2]
    assert agreement(small(plain).fine[:2], small(plain).fine[1:]).tolist() == [0, 0]
