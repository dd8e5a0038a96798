"""``Index`` on every kind of store: filling it, keeping it up to date, searching, another model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from recollect.common.errors import ConfigError, DataError, ImageError, InputError
from recollect.search import Index, OtherModelError, sync
from search.toy_model import ToyEncoder, contents, make_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


@pytest.fixture
def index(address: str) -> Iterator[Index]:
    with Index.create(address, ToyEncoder()) as made:
        yield made


def _touch(path: Path, colour: str) -> None:
    before = path.stat().st_mtime_ns if path.exists() else 0
    Image.new("RGB", (12, 12), colour).save(path)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_a_folder_is_indexed_and_searched(index: Index, photos: Path) -> None:
    changes = index.sync(photos)
    assert (changes.added, changes.embedded, changes.skipped) == (20, 20, [])
    assert len(index) == 20
    found = index.search(photos / "class2" / "3.png", k=3)
    assert found[0].id == "class2/3.png"
    assert found[0].similarity == pytest.approx(1, abs=1e-5)
    assert found[0].metadata == {"name": "3.png", "label": "class2"}
    assert found[0].level is None
    assert [m.id for m in index.search_id("class2/3.png", k=2)] == [m.id for m in found[1:]]
    rows = {item.id: item.vector for item in index.get([m.id for m in found], vectors=True).values()}
    for match in found:
        assert match.similarity == pytest.approx(float(rows[match.id] @ rows["class2/3.png"]), abs=1e-5)
    kept = index.search(photos / "class2" / "3.png", k=10, where={"label": ["class0", "class1"]})
    assert len(kept) == 10
    assert {m.metadata["label"] for m in kept} == {"class0", "class1"}
    by_vector = index.search(rows["class2/3.png"], k=3)
    assert [m.id for m in by_vector] == [m.id for m in found]
    with Image.open(photos / "class2" / "3.png") as image:
        assert index.search(image, k=1)[0].id == "class2/3.png"
    assert index.values("label") == {f"class{n}": 5 for n in range(4)}
    assert index.count({"label": "class1"}) == 5
    assert index.model["name"] == "toy 0"
    with pytest.raises(InputError, match="not an id"):
        index.search_id("nothing")


def test_only_what_changed_is_embedded(address: str, photos: Path) -> None:
    encoder = ToyEncoder()
    with Index.create(address, encoder) as index:
        index.sync(photos)
        encoder.seen.clear()
        again = index.sync(photos)
        assert (again.unchanged, again.embedded, encoder.seen) == (20, 0, [])
        _touch(photos / "class0" / "0.png", "red")
        _touch(photos / "class0" / "new.png", "green")
        (photos / "class1" / "0.png").rename(photos / "class1" / "moved.png")
        os.utime(photos / "class2" / "1.png")  # another time, the same contents
        changes = index.sync(photos)
        assert (changes.added, changes.updated, changes.removed, changes.embedded) == (2, 1, 0, 2)
        assert sorted(Path(name).name for name in encoder.seen) == ["0.png", "new.png"]
        assert index.search(photos / "class0" / "0.png", k=1)[0].id == "class0/0.png"
        assert len(index) == 22
        pruned = index.sync(photos, prune=True)
        assert (pruned.removed, pruned.embedded) == (1, 0)
        assert "class1/0.png" not in index.get(["class1/0.png"])
        assert index.sync(photos, prune=True, rehash=True).embedded == 0
        shutil.copytree(photos, photos.parent / "elsewhere")
        moved = index.sync(photos.parent / "elsewhere")
        assert (moved.embedded, moved.added) == (0, 0)
        assert index.get(["class2/2.png"])["class2/2.png"].source.startswith(str(photos.parent / "elsewhere"))


def test_a_model_that_is_not_needed_is_not_opened(address: str, photos: Path) -> None:
    with Index.create(address, ToyEncoder()) as index:
        index.sync(photos)
    with Index.open(address) as index:  # where its model is, it does not know
        (photos / "class0" / "0.png").unlink()
        changes = index.sync(photos, prune=True)
        assert (changes.unchanged, changes.removed, changes.embedded) == (19, 1, 0)
        _touch(photos / "class0" / "new.png", "green")
        with pytest.raises(ConfigError, match="--model"):
            index.sync(photos)


def test_equal_images_are_embedded_once(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "BATCH", 2)  # in other batches, too
    folder = tmp_path / "same"
    folder.mkdir()
    for name in "abc":
        Image.new("RGB", (9, 9), "blue").save(folder / f"{name}.png")
    changes = index.sync(folder)
    assert (changes.added, changes.embedded) == (3, 1)
    changes = index.rebuild(ToyEncoder(1))
    assert (changes.added, changes.embedded) == (3, 1)
    changes = index.add([b"".join([(folder / "a.png").read_bytes(), b" "])] * 3, ["x", "y", "z"])
    assert (changes.added, changes.embedded) == (3, 1)


def test_folders_are_kept_apart(index: Index, photos: Path, tmp_path: Path) -> None:
    index.sync(photos)
    (tmp_path / "other" / "class0").mkdir(parents=True)
    shutil.copy(photos / "class3" / "0.png", tmp_path / "other" / "class0")
    with pytest.raises(DataError, match="--prefix"):
        index.sync(tmp_path / "other")
    assert index.sync(tmp_path / "other", prefix="other/").added == 1
    assert index.sync(tmp_path / "other", prefix="other/", prune=True).removed == 0
    assert len(index) == 21


def test_a_list_with_columns_of_its_own(index: Index, photos: Path) -> None:
    table = photos / "list.csv"
    table.write_text("path,id,label,price\nclass0/0.png,sku-1,shoe,12\nclass0/1.png,,boot,\ngone.png,g,x,1\n")
    changes = index.sync(table)
    assert changes.added == 2
    assert any("gone.png" in remark for remark in changes.skipped)
    assert index.get(["sku-1"])["sku-1"].metadata == {"name": "0.png", "label": "shoe", "price": "12"}
    assert index.search(photos / "class0" / "0.png", where={"price": 12})[0].id == "sku-1"
    table.write_text("path,id,label,price\nclass0/0.png,sku-1,shoe,13\n")
    changes = index.sync(table, prune=True)
    assert (changes.updated, changes.removed, changes.embedded) == (1, 1, 0)
    assert index.get(["sku-1"])["sku-1"].metadata["price"] == "13"
    for text, message in (("file\na.png\n", "no column 'path'"), ("path\nclass0/0.png\nclass0/0.png\n", "already")):
        table.write_text(text)
        with pytest.raises(DataError, match=message):
            index.sync(table)
    (photos / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        index.sync(photos / "empty", prune=True)
    assert len(index) == 1


def test_images_are_added_and_removed(index: Index, photos: Path, tmp_path: Path) -> None:
    path, red = photos / "class1" / "1.png", Image.new("RGB", (10, 10), "red")
    content, grey = (photos / "class0" / "0.png").read_bytes(), np.full((8, 8), 200, np.uint8)
    grey[:4] = 20
    assert index.add([path, content, red, grey], ["p", "b", "r", "g"], [{"n": 1}, None, {}, {"n": 2.5}]).added == 4
    assert index.search(red, k=1)[0].id == "r"
    assert [index.picture(name) for name in ("p", "b", "nothing")] == [path.resolve(), content, None]
    assert isinstance(index.picture("g"), bytes)
    assert index.get(["g"])["g"].metadata == {"n": "2.5"}
    assert index.add([content], ["b"], [{"new": True}]).updated == 1
    assert index.remove(["p", "nothing"]) == 1
    index.add([path])  # an absolute path: only its name is shown to others
    assert "1.png" in index.get(["1.png"])
    (tmp_path / "bad.png").write_bytes(b"not an image")
    changes = index.add([tmp_path / "bad.png", tmp_path / "gone.png", b"junk"], ["x", "y", "z"])
    assert (changes.added, len(changes.skipped)) == (0, 3)
    for images, ids, metadata, message in (
        ([red], None, None, "no name"),
        ([red, red], ["a"], None, "1 ids"),
        ([red, red], ["a", "a"], None, "twice"),
        ([red], ["a"], [{}, {}], "2 metadata"),
        ([red], ["a"], [{"x": [1]}], "text"),
        ([3], ["a"], None, "an image must be"),
    ):
        with pytest.raises(InputError, match=message):
            index.add(images, ids, metadata)
    with pytest.raises(ImageError):
        index.search(b"junk")
    assert len(index) == 4


def test_files_that_are_not_in_the_index_are_named_and_counted(index: Index, photos: Path) -> None:
    """Copies of a broken file too: their contents are equal, and only one of them is read."""
    empty = ("empty-0.png", "empty-1.png", "empty-2.png")
    for name in empty:
        (photos / "class1" / name).write_bytes(b"")
    (photos / "class0" / "text.png").write_bytes(b"not an image")
    (photos / "class0" / "notes.txt").write_text("not an image")
    (photos / "class0" / "link.png").symlink_to(photos / "class0" / "gone.png")
    os.mkfifo(photos / "class0" / "pipe.png")
    changes = index.sync(photos)
    assert (changes.added, changes.embedded, len(changes.skipped)) == (20, 20, 6)
    assert (changes.left_out["empty"], changes.left_out["not an image"], changes.left_out["broken link"]) == (3, 2, 1)
    messages = "\n".join(changes.skipped)
    assert all(name in messages for name in ("text.png", "link.png", "pipe.png", *empty))


def test_a_file_that_changes_while_it_is_read_is_skipped(tmp_path: Path, photos: Path) -> None:
    class Editing(ToyEncoder):
        def embed(self, images: Sequence[Any], on_bad: Any = None) -> np.ndarray:
            _touch(photos / "class0" / "0.png", "red")
            return super().embed(images, on_bad)

    with Index.create(tmp_path / "x.index", Editing()) as index:
        changes = index.sync(photos)
        assert (changes.added, changes.left_out) == (19, {"changed meanwhile": 1})


def test_vectors_of_another_model_are_refused(address: str, photos: Path) -> None:
    with Index.create(address, ToyEncoder()) as index:
        index.sync(photos)
        rows = ToyEncoder().embed([photos / "class0" / "0.png"])
        with pytest.raises(OtherModelError, match="--rebuild"):
            index.add_vectors(rows, ["x"], fingerprint=ToyEncoder(3).fingerprint)
        with pytest.raises(OtherModelError, match="not the model"):
            index.search_vectors(rows, fingerprint=ToyEncoder(3).fingerprint)
        assert index.add_vectors(rows, ["x"], [{"a": 1}], fingerprint=ToyEncoder().fingerprint) == 1
        assert {m.id for m in index.search_vectors(rows, 2)[0]} == {"x", "class0/0.png"}
        with pytest.raises(InputError, match="48 values"):
            index.search(rows[0, :40])
        with pytest.raises(InputError, match="ids"):
            index.add_vectors(rows, ["x", "y"], fingerprint=ToyEncoder().fingerprint)
    with pytest.raises(OtherModelError, match="not the model"):
        Index.open(address, ToyEncoder(3))
    with pytest.raises(InputError, match="already"):
        Index.create(address, ToyEncoder())
    with Index.open(address) as index:
        assert len(index.search_id("x", 3)) == 3
        with pytest.raises(ConfigError, match="--model"):
            index.search(photos / "class0" / "0.png")
    with Index.open(address, ToyEncoder()) as index:
        assert index.search(photos / "class0" / "1.png")[0].id == "class0/1.png"


def test_rebuilding_with_another_model(address: str, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "BATCH", 4)
    content = (photos / "class0" / "0.png").read_bytes()
    with Index.create(address, ToyEncoder()) as index, Index.open(address, ToyEncoder()) as reader:
        index.sync(photos)
        index.add([content], ["handed over"], [{"label": "x"}])
        before = contents(index)
        answers = reader.search(photos / "class1" / "1.png", k=5)
        stopped = ToyEncoder(1, stop_after=10)
        with pytest.raises(KeyboardInterrupt):
            index.rebuild(stopped)
        assert contents(index) == before
        assert reader.search(photos / "class1" / "1.png", k=5) == answers
        with Index.open(address) as other:
            info = other.info()
        assert info["building"]["model"]["name"] == "toy 1"
        assert 4 <= info["building"]["items"] <= 10
        index.remove(["class3/4.png"])
        rest = ToyEncoder(1)
        changes = index.rebuild(rest)
        assert changes.unchanged == info["building"]["items"]
        assert len(rest.seen) == changes.embedded <= 20 - info["building"]["items"]
        assert index.model["name"] == "toy 1"
        assert index.store.generations() == [index.generation.number] == [2]
        fresh = index.search(photos / "class1" / "1.png", k=5)
        assert fresh[0].id == "class1/1.png"
        assert {name: entry[1:] for name, entry in contents(index).items()} == {
            name: entry[1:] for name, entry in before.items() if name != "class3/4.png"
        }
        with pytest.raises((OtherModelError, ConfigError)):  # the reader has the old model and is told
            reader.search(photos / "class1" / "1.png", k=5)
        assert [m.id for m in reader.search_id("class1/1.png", 4)] == [m.id for m in fresh[1:]]
        assert index.picture("handed over") == content
        (photos / "class0" / "0.png").unlink()
        with pytest.raises(DataError, match=r"1 images .*--prune"):  # and it does not switch
            index.rebuild(ToyEncoder(2))
        assert (index.model["name"], len(index)) == ("toy 1", 20)
        assert index.rebuild(ToyEncoder(2), on_bad_image="skip").unchanged == 19
        assert (index.model["name"], len(index)) == ("toy 2", 19)


def test_vectors_are_kept_short_and_in_half(address: str, photos: Path) -> None:
    half = not address.startswith("milvus")  # milvus-lite keeps none
    with Index.create(address, ToyEncoder(), dim=16, half=half) as index:
        index.sync(photos)
        assert (index.generation.dim, index.generation.half) == (16, half)
        row = ToyEncoder().embed([photos / "class1" / "1.png"])[0][:16]
        kept = index.get(["class1/1.png"], vectors=True)["class1/1.png"].vector
        np.testing.assert_allclose(kept, row / np.linalg.norm(row), atol=1e-3)
        assert index.search(photos / "class1" / "1.png", 1)[0].id == "class1/1.png"
    with pytest.raises(InputError, match="from 1 to 48"):
        Index.create(address + "x", ToyEncoder(), dim=49)


def test_approximate_search_is_measured(index: Index, photos: Path) -> None:
    with pytest.raises(InputError, match="empty"):
        index.approximate()
    index.sync(photos)
    facts = index.approximate(50)
    assert facts["recall"] > 0.9
    assert (facts["queries"], facts["candidates"], facts["k"]) == (20, 50, 10)
    assert index.info()["approximate"] == facts
    assert index.search(photos / "class1" / "1.png", 3)[0].id == "class1/1.png"
    index.rebuild(ToyEncoder(2))
    assert index.generation.approximate == facts
    for wrong in (0, 1001):
        with pytest.raises(InputError, match="from 1 to 1,000"):
            index.approximate(wrong)
    index.exact()
    index.rebuild(ToyEncoder(3))
    assert index.generation.approximate is False
