"""What is found in the data, against references that look at every pair, and how it is shown and listed."""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance

from recollect.data import ImageSet
from recollect.report.checks import (
    AGREE,
    AGREEING,
    AMONG,
    CANDIDATES,
    CLEAR,
    COLUMNS,
    FEW,
    KINDS,
    Duplicates,
    Findings,
    Suspect,
    agreement,
    data_section,
    find_all,
    group_copies,
    lonely_images,
    neighbours_of_all,
    suspected_labels,
    write_findings,
)
from recollect.report.galleries import confused_pairs
from recollect.report.map import FINE, SIDE, Atlas, SmallPictures
from recollect.report.results import ReportImages
from recollect.search.exact import Neighbours
from report.report_runs import NAMES, made_result, text_of


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


def test_plain_pictures_are_no_copies() -> None:
    plain = [Image.new("RGB", (64, 64), colour) for colour in ("white", "white", "gray")]
    assert group_copies(small(plain))[0].tolist() == [0, 1, 2]
    assert agreement(small(plain).fine[:2], small(plain).fine[1:]).tolist() == [0, 0]


def _set(folder: Path, photos: dict[str, tuple[str, Image.Image]], name: str = "s") -> ImageSet:
    classes = sorted({label for label, _ in photos.values()})
    folder.mkdir(parents=True)
    for file, (_, image) in photos.items():
        image.save(folder / file)
    labels = [classes.index(label) for label, _ in photos.values()]
    return ImageSet(name, list(photos), labels, classes, root=folder)


def _about(images: ImageSet) -> ReportImages:
    return ReportImages("s", "test", list(images.names), images.labels, list(images.class_names), len(images), images)


def _found(images: ImageSet, training: ImageSet | None = None, **options: Any) -> Findings:
    vectors = np.random.default_rng(0).normal(size=(len(images), 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    neighbours = neighbours_of_all(vectors)
    return find_all(vectors, _about(images), neighbours, training, **options)


def test_near_duplicates_and_where_they_lie(tmp_path: Path) -> None:
    one, two, three = photo(1), photo(2), photo(3)
    photos = {
        "a0.png": ("a", one),
        "a1.png": ("a", recompressed(one)),
        "a2.png": ("a", two),
        "b0.png": ("b", two.resize((60, 50))),
        "b1.png": ("b", three),
        "b2.png": ("b", photo(4)),
        "b3.png": ("b", Image.new("RGB", (50, 50), "white")),
        "b4.png": ("b", Image.new("RGB", (50, 50), "black")),
    }
    images = _set(tmp_path / "test", photos)
    brighter = ImageEnhance.Brightness(three).enhance(1.1)
    training = _set(tmp_path / "train", {"t0.png": ("t", brighter), "t1.png": ("t", photo(9)), "t2.png": ("t", one)})
    found = _found(images, training)
    assert sorted((KINDS.index(g.kind), g.images, g.training, g.classes) for g in found.duplicates) == [
        (0, [0, 1], [2], ["a", "t"]),
        (0, [4], [0], ["b", "t"]),
        (1, [2, 3], [], ["a", "b"]),
    ]
    assert all(0.95 <= group.similarity <= 1 for group in found.duplicates)
    assert found.twins()[2] == {2, 3}
    without_training = _found(images)
    assert [(g.kind, g.images) for g in without_training.duplicates] == [(KINDS[1], [2, 3]), (KINDS[2], [0, 1])]
    assert len(_found(images, most=3).small.places) == 3


def _listed(path: Path, found: Findings, images: ImageSet) -> list[dict[str, str]]:
    write_findings(path, found, _about(images))
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_the_list_is_written_and_harmless(tmp_path: Path) -> None:
    one = photo(1)
    names = {"=cmd|' C calc'!A0.png": ("@evil", one), 'b,"c"\n.png': ("-b", one), "d.png": ("-b", photo(2))}
    images = _set(tmp_path / "s", names)
    rows = _listed(tmp_path / "list.csv", _found(images), images)
    assert (tmp_path / "list.csv").read_bytes().startswith(codecs.BOM_UTF8), "spreadsheets read it as UTF-8"
    assert tuple(rows[0]) == COLUMNS
    copies = [row for row in rows if row["finding"] == f"near-duplicates {KINDS[1]}"]
    assert [(row["image"], row["class"]) for row in copies] == [
        ("'=cmd|' C calc'!A0.png", "'@evil"),
        ('b,"c"\n.png', "'-b"),
    ]
    assert any(row["finding"] == "only image of its class" and row["class"] == "'@evil" for row in rows)
    assert not any(cell[:1] in ("=", "+", "-", "@") for row in rows for cell in row.values())


def _unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _order(vectors: np.ndarray) -> list[list[int]]:
    """For each image all others, most similar first: a plain sort of all pairs."""
    exact = vectors.astype(np.float64)
    similar = exact @ exact.T
    return [sorted((j for j in range(len(exact)) if j != i), key=lambda j: -similar[i, j]) for i in range(len(exact))]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(8, 40))
def test_confusions_and_suspects_are_those_of_all_pairs(seed: int, classes: int, count: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    vectors = _unit(random.normal(size=(classes, 4))[labels] + random.normal(size=(count, 4)))
    assume(np.diff(np.sort(vectors.astype(np.float64) @ vectors.T, axis=1)).min() > 1e-6)  # no order by rounding
    found = neighbours_of_all(vectors)
    order = _order(vectors)
    assert found.indices.tolist() == [row[:10] for row in order]
    sizes = Counter(labels.tolist())
    wrong = [i for i in range(count) if sizes[labels[i]] > 1 and labels[order[i][0]] != labels[i]]
    times = Counter((int(labels[i]), int(labels[order[i][0]])) for i in wrong)
    pairs = confused_pairs(labels, found)
    assert {(c.query_class, c.result_class): c.times for c in pairs} == times
    assert [c.times for c in pairs] == sorted(times.values(), reverse=True)
    for pair in pairs:
        assert pair.queries == sizes[pair.query_class]
        assert pair.example in wrong
        assert (labels[pair.example], labels[order[pair.example][0]]) == (pair.query_class, pair.result_class)
    suspected = set()
    for i in range(count):
        other, agreeing = Counter(int(labels[j]) for j in order[i][:AMONG]).most_common(1)[0]
        asked = AGREEING if sizes[labels[i]] > FEW else max(AGREEING, min(AMONG, sizes[other], count - 1))
        clear = order[i][: min(CLEAR, sizes[other])]
        if other != labels[i] and agreeing >= asked and not any(labels[j] == labels[i] for j in clear):
            suspected.add((i, other))
    assert {(s.image, s.suggested) for s in suspected_labels(vectors, labels, found)} == suspected


def test_the_list_is_ordered_by_the_gap_between_the_two_classes() -> None:
    random = np.random.default_rng(1)
    labels = np.repeat(np.arange(4), 12)
    vectors = _unit(np.eye(4)[labels] + random.normal(size=(48, 4)) * 0.05)
    vectors[[1, 2]] = _unit(np.array([[0.5, 0.85, 0, 0], [0, 0, 1, 0]]))  # the first is also similar to its own class
    found = suspected_labels(vectors, labels, neighbours_of_all(vectors))
    assert [(s.image, s.suggested) for s in found] == [(2, 2), (1, 1)]
    assert found[0].margin > 0.8 > 0.4 > found[1].margin > 0


def test_an_image_is_lonely_if_it_is_in_any_embedding() -> None:
    """Whitened vectors scatter so much that not even noise is far from the others; those of the network do not."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 10)
    known = _unit(np.eye(8)[labels] + random.normal(size=(40, 8)) * 0.05)
    known[7] = np.eye(8)[6]
    scattered = Neighbours(np.ones((40, 1), np.int64), np.linspace(0.1, 0.9, 40, dtype=np.float32)[:, None])
    assert lonely_images(scattered) is None, "it cannot be judged"
    (lonely,) = lonely_images(scattered, neighbours_of_all(known)) or []
    assert lonely.image == 7
    assert lonely.depth > 3


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_images_have_few_neighbours_and_no_findings(count: int) -> None:
    vectors, labels = _unit(np.ones((count, 3))), np.zeros(count, np.int64)
    found = neighbours_of_all(vectors)
    assert found.indices.shape == (count, max(0, count - 1))
    assert confused_pairs(labels, found) == []
    assert suspected_labels(vectors, labels, found) == []
    assert lonely_images(found) == []


def test_everything_found_is_listed() -> None:
    model, shown = made_result("after training", 0.7)
    found = neighbours_of_all(model.vectors)
    findings = find_all(model.vectors, shown, found, copies=[5])
    suspect = Suspect(3, 1, 4, 5, 12, 0.81, 0.42)
    groups = [Duplicates([0, 1], [2], 0.96, NAMES[:1], KINDS[0]), Duplicates([3, 12], [], 0.99, NAMES[:2], KINDS[1])]
    given = {"training_images": shown.images, "training": 40, "compared_training": 40}
    findings = replace(findings, suspects=[suspect], duplicates=groups, **given)
    atlas = Atlas(shown.images)
    said = text_of(data_section(findings, found, shown, atlas, Atlas(shown.images, "t")))
    assert "Suspected wrong labels 1" in said
    assert f"labelled {NAMES[0]} ; 4 of its 5 nearest are {NAMES[1]} (mean similarity 0.81; the nearest" in said
    assert f"only images of the split “{shown.split}” are checked" in said
    assert "Test images that were trained on 1" in said
    assert "Near-duplicates across classes 1 group " in said
    assert "(1 of them trained on)" in said
    assert "40 test images and all 40 training images were compared" in said
    assert "--csv" in said
    assert "training images are checked" in text_of(
        data_section(findings, found, replace(shown, split="train"), atlas, Atlas(None))
    )
