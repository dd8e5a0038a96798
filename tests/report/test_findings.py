from __future__ import annotations

import codecs
import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from recollect.common.errors import InputError
from recollect.data import ImageSet
from recollect.report.findings import COLUMNS, KINDS, Findings, find_all, write_findings
from recollect.report.neighbours import neighbours_of_all
from recollect.report.small_pictures import read_small


def _photo(seed: int) -> Image.Image:
    """A smooth picture, as photos are."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    return Image.fromarray(coarse).resize((90, 70), Image.Resampling.BICUBIC)


def _recompressed(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer).convert("RGB")


def _set(folder: Path, photos: dict[str, tuple[str, Image.Image]], name: str = "s") -> ImageSet:
    classes = sorted({label for label, _ in photos.values()})
    folder.mkdir(parents=True)
    for file, (_, image) in photos.items():
        image.save(folder / file)
    labels = [classes.index(label) for label, _ in photos.values()]
    return ImageSet(name, list(photos), labels, classes, root=folder)


def _found(images: ImageSet, training: ImageSet | None = None, **options: Any) -> Findings:
    vectors = np.random.default_rng(0).normal(size=(len(images), 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    neighbours = neighbours_of_all(vectors)
    return find_all(vectors, images.labels, images.class_names, neighbours, images, training, **options)


def test_near_duplicates_and_where_they_lie(tmp_path: Path) -> None:
    one, two, three = _photo(1), _photo(2), _photo(3)
    photos = {
        "a0.png": ("a", one),
        "a1.png": ("a", _recompressed(one)),
        "a2.png": ("a", two),
        "b0.png": ("b", two.resize((60, 50))),
        "b1.png": ("b", three),
        "b2.png": ("b", _photo(4)),
        "b3.png": ("b", Image.new("RGB", (50, 50), "white")),
        "b4.png": ("b", Image.new("RGB", (50, 50), "black")),
    }
    images = _set(tmp_path / "test", photos)
    brighter = ImageEnhance.Brightness(three).enhance(1.1)
    training = _set(tmp_path / "train", {"t0.png": ("t", brighter), "t1.png": ("t", _photo(9)), "t2.png": ("t", one)})
    found = _found(images, training)
    assert sorted((KINDS.index(g.kind), g.images, g.training, g.classes) for g in found.duplicates) == [
        (0, [0, 1], [2], ["a", "t"]),
        (0, [4], [0], ["b", "t"]),
        (1, [2, 3], [], ["a", "b"]),
    ]
    assert all(0.95 <= group.similarity <= 1 for group in found.duplicates)
    assert found.twins()[2] == {2, 3}
    alone = _found(images)
    assert [(g.kind, g.images) for g in alone.duplicates] == [(KINDS[1], [2, 3]), (KINDS[2], [0, 1])]
    assert len(_found(images, most=3).small.places) == 3  # type: ignore[union-attr]


def test_a_jpeg_is_read_at_a_fraction_and_looks_the_same(tmp_path: Path) -> None:
    photo = _photo(5).resize((1200, 900), Image.Resampling.BICUBIC)
    images = _set(tmp_path / "s", {"a.jpg": ("a", photo), "b.png": ("a", photo), "c.png": ("a", photo)})
    (tmp_path / "s" / "c.png").write_bytes(b"no image")
    small = read_small(images, [2, 1, 0])
    assert small.places.tolist() == [0, 1]
    assert small.shapes.tolist() == pytest.approx([4 / 3, 4 / 3], abs=0.01)
    assert float(np.prod(small.signatures(), axis=0).sum()) > 0.99
    assert small.of([1]).places.tolist() == [1]


def _listed(path: Path, found: Findings, images: ImageSet) -> list[dict[str, str]]:
    write_findings(path, found, list(images.names), images.labels, images.class_names, overwrite=False)
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_every_image_is_listed_with_the_one_it_resembles_and_their_own_similarity(tmp_path: Path) -> None:
    one, two = _photo(1), _photo(2)
    images = _set(
        tmp_path / "test",
        {"a0.png": ("a", one), "a1.png": ("a", _recompressed(one)), "b0.png": ("b", one), "b1.png": ("b", two)},
    )
    rows = _listed(tmp_path / "one.csv", _found(images), images)
    pairs = {row["image"]: (row["other_image"], row["similarity"]) for row in rows if row["group"]}
    assert pairs["a0.png"] == ("b0.png", "1.0000")  # the same bytes, in a group whose least similar pair is another
    assert pairs["b0.png"] == ("a0.png", "1.0000")
    assert pairs["a1.png"][0] == "b0.png"
    assert float(pairs["a1.png"][1]) < 1
    training = _set(tmp_path / "train", {"t0.png": ("t", two), "t1.png": ("t", _photo(3))})
    rows = _listed(tmp_path / "two.csv", _found(images, training, copies=[3]), images)
    assert [(row["part"], row["other_image"], row["similarity"]) for row in rows if row["image"] == "b1.png"] == [
        ("test", "t0.png", "1.0000")  # once, not also as a copy
    ]
    assert not any(row["finding"] == "copy of a training image" for row in rows)


def test_a_copy_of_a_training_image_is_listed_with_that_image(tmp_path: Path) -> None:
    plain = Image.new("RGB", (50, 50), "white")  # of one colour, so no near-duplicate of anything
    images = _set(tmp_path / "test", {"a.png": ("a", plain), "b.png": ("a", _photo(1)), "c.png": ("a", _photo(2))})
    training = _set(tmp_path / "train", {"t0.png": ("t", _photo(3)), "t1.png": ("t", plain)})
    rows = _listed(tmp_path / "list.csv", _found(images, training, copies=[0]), images)
    copies = [row for row in rows if row["finding"] == "copy of a training image"]
    assert [(row["image"], row["other_image"], row["other_class"]) for row in copies] == [("a.png", "t1.png", "t")]
    gone = _listed(tmp_path / "list.csv", _found(images, copies=[0]), images)
    assert [row["other_image"] for row in gone if row["finding"] == "copy of a training image"] == [""]


def test_a_spreadsheet_reads_the_list_as_utf_8(tmp_path: Path) -> None:
    images = _set(tmp_path / "s", {"é.png": ("é", _photo(1)), "b.png": ("b", _photo(2)), "c.png": ("b", _photo(3))})
    rows = _listed(tmp_path / "list.csv", _found(images), images)
    assert (tmp_path / "list.csv").read_bytes().startswith(codecs.BOM_UTF8)
    assert "é" in {row["class"] for row in rows}
    _listed(tmp_path / "list.csv", _found(images), images)  # a list with the mark may be replaced by a newer one


def test_the_list_is_written_and_harmless(tmp_path: Path) -> None:
    photo = _photo(1)
    names = {"=cmd|' C calc'!A0.png": ("@evil", photo), 'b,"c"\n.png': ("-b", photo), "d.png": ("-b", _photo(2))}
    images = _set(tmp_path / "s", names)
    found = _found(images)
    path = write_findings(
        tmp_path / "list.csv", found, list(images.names), images.labels, images.class_names, overwrite=False
    )
    rows = list(csv.DictReader(path.open(newline="", encoding="utf-8-sig")))
    assert tuple(rows[0]) == COLUMNS
    copies = [row for row in rows if row["finding"] == f"near-duplicates {KINDS[1]}"]
    assert [(row["image"], row["class"]) for row in copies] == [
        ("'=cmd|' C calc'!A0.png", "'@evil"),
        ('b,"c"\n.png', "'-b"),
    ]
    assert any(row["finding"] == "only image of its class" and row["class"] == "'@evil" for row in rows)
    assert not any(cell[:1] in ("=", "+", "-", "@") for row in rows for cell in row.values())
    write = (found, list(images.names), images.labels, images.class_names)
    write_findings(path, *write, overwrite=False)  # a list may be replaced by a newer one
    path.write_text("mine")
    with pytest.raises(InputError, match="exists"):
        write_findings(path, *write, overwrite=False)
    assert path.read_text() == "mine"
    write_findings(path, *write, overwrite=True)
