"""Every data set in its true format, made small, against published counts made small likewise."""

from __future__ import annotations

import io
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.image_files import touch, write
from recollect.common.errors import ConfigError, DataError, DataWarning, InputError
from recollect.data import Counts, Pipeline, Source, available, from_hugging_face, load
from recollect.data.transforms import LongerSide


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a source be published with other counts for the length of a test."""

    def publish(name: str, **counts: Counts) -> None:
        changed: dict[str, Source] = {**available(), name: replace(available()[name], published=counts)}
        monkeypatch.setattr("recollect.data.registry.available", lambda: changed)

    return publish


def quiet_load(*arguments: Any, **options: Any) -> Any:
    """Load, and fail on any warning about counts or files."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        return load(*arguments, **options)


def test_published_counts_are_the_papers() -> None:
    counts = {name: [str(count) for count in source.published.values()] for name, source in available().items()}
    assert counts["inaturalist"] == ["325,846 images of 5,690 classes", "136,093 images of 2,452 classes"]
    assert counts["sop"] == ["59,551 images of 11,318 classes", "60,502 images of 11,316 classes"]
    assert counts["cars196"] == ["8,054 images of 98 classes", "8,131 images of 98 classes"]
    assert counts["vehicleid"][0] == "110,178 images of 13,134 classes"
    # The paper prints one row for the three lists together.
    tests = [available()["vehicleid"].published[split] for split in available()["vehicleid"].test_splits]
    assert (sum(test.images for test in tests), sum(test.classes for test in tests)) == (40_365, 4_800)


def test_unknown_names_splits_and_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'sops' .*cars196, .*vehicleid"):
        load("sops", tmp_path)
    with pytest.raises(ConfigError, match="'folder' with the root"):
        load(str(tmp_path))
    with pytest.raises(ConfigError, match=r"'val': .*train, test"):
        load("sop", tmp_path, "val")
    with pytest.raises(ConfigError, match=r"'test_shar'.*Did you mean test_share"):
        load("folder", tmp_path, test_shar=0.3)


def test_a_missing_list_says_where_and_whence(tmp_path: Path) -> None:
    for name, file in (
        ("sop", "Ebay_train.txt"),
        ("inaturalist", "Inaturalist_train_set1.txt"),
        ("vehicleid", "train_list.txt"),
        ("gldv1", "train.csv"),
        ("cub", "images.txt"),
        ("cars196", "no cars_annos.mat"),
    ):
        with pytest.raises(DataError) as caught:
            load(name, tmp_path)
        message = str(caught.value)
        assert file in message
        assert str(tmp_path) in message
        assert available()[name].homepage in message
        assert available()[name].layout in message


def make_sop(root: Path) -> None:
    header = "image_id class_id super_class_id path"
    write(
        root / "Ebay_train.txt",
        [header, "1 10 1 chair_final/a b.JPG", "2 10 1 chair_final/b.JPG", "3 9 1 chair_final/c.JPG"],
    )
    write(root / "Ebay_test.txt", [header, "4 11 2 lamp_final/d.JPG"])
    touch(root, *["chair_final/a b.JPG", "chair_final/b.JPG", "chair_final/c.JPG", "lamp_final/d.JPG"])


def test_sop(tmp_path: Path, published: Any) -> None:
    make_sop(tmp_path)
    published("sop", train=Counts(3, 2), test=Counts(2, 1))
    train = quiet_load("sop", tmp_path)
    assert list(train.names) == ["chair_final/a b.JPG", "chair_final/b.JPG", "chair_final/c.JPG"]
    assert list(train.class_names) == ["9", "10"]  # by number, not by spelling
    assert train.labels.tolist() == [1, 1, 0]
    assert (list(train.coarse_names), train.coarse_labels.tolist()) == (["chair"], [0, 0, 0])
    assert train.read(0).size == (2, 2)
    with pytest.warns(DataWarning, match=r"1 images.*published split has 2 images"):
        assert len(load("sop", tmp_path, "test")) == 1


def test_sop_faults(tmp_path: Path, published: Any) -> None:
    make_sop(tmp_path)
    published("sop")
    (tmp_path / "chair_final" / "c.JPG").unlink()
    with pytest.raises(DataError, match=r"1 of 3 images .*chair_final/c\.JPG"):
        load("sop", tmp_path)
    with pytest.warns(DataWarning, match="1 of 3 images"):
        assert load("sop", tmp_path, on_bad_image="skip").class_names == ["10"]
    write(tmp_path / "Ebay_train.txt", ["1 10 1 chair_final/b.JPG"])
    with pytest.raises(DataError, match=r"Ebay_train\.txt .*'image_id"):
        load("sop", tmp_path)
    for row, message in (("1 10 a.JPG", r"line 2: .*found '1 10 a"), ("1 ten 1 a.JPG", r"class_id .*number.*'ten'")):
        write(tmp_path / "Ebay_train.txt", ["image_id class_id super_class_id path", row])
        with pytest.raises(DataError, match=message):
            load("sop", tmp_path)
    (tmp_path / "Ebay_train.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        load("sop", tmp_path)


def test_inaturalist(tmp_path: Path, published: Any) -> None:
    names = ["train_val2018/Aves/7/a.jpg", "train_val2018/Aves/12/b.jpg", "train_val2018/Insecta/7/c.jpg"]
    touch(tmp_path, *names)
    write(tmp_path / "Inat_dataset_splits" / "Inaturalist_train_set1.txt", names)
    write(tmp_path / "Inat_dataset_splits" / "Inaturalist_test_set1.txt", ["b.jpg"])
    published("inaturalist", train=Counts(3, 3))
    train = quiet_load("inaturalist", tmp_path)
    assert list(train.names) == names
    assert [train.class_names[label] for label in train.labels] == ["Aves/7", "Aves/12", "Insecta/7"]
    assert [train.coarse_names[label] for label in train.coarse_labels] == ["Aves", "Aves", "Insecta"]
    with pytest.raises(DataError, match=r"line 1: .*found 'b\.jpg'"):
        load("inaturalist", tmp_path, "test")


def test_vehicleid_has_three_tests(tmp_path: Path, published: Any) -> None:
    lists = {
        "train_list": ["12 3", "13 3"],
        "test_list_800": ["1 5"],
        "test_list_1600": ["1 5", "2 6"],
        "test_list_2400": ["7 8"],
    }
    for name, lines in lists.items():
        write(tmp_path / "train_test_split" / f"{name}.txt", lines)
    touch(tmp_path, *[f"image/{number:07d}.jpg" for number in (12, 13, 1, 2, 7)])
    published(
        "vehicleid", train=Counts(2, 1), test_small=Counts(1, 1), test_medium=Counts(2, 2), test_large=Counts(1, 1)
    )
    assert list(quiet_load("vehicleid", tmp_path).names) == ["image/0000012.jpg", "image/0000013.jpg"]
    assert list(quiet_load("vehicleid", tmp_path, "test_medium").class_names) == ["5", "6"]
    assert list(quiet_load("vehicleid", tmp_path, "test_large").names) == ["image/0000007.jpg"]
    assert quiet_load("vehicleid", tmp_path, "test").names == quiet_load("vehicleid", tmp_path, "test_small").names


def test_a_copy_as_distributed_is_accepted_with_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "train_test_split" / "train_list.txt", ["12 3", "13 3"])
    touch(tmp_path, *["image/0000012.jpg", "image/0000013.jpg"])
    changed = replace(available()["vehicleid"], distributed={"train": Counts(2, 1)})
    monkeypatch.setattr("recollect.data.registry.available", lambda: {"vehicleid": changed})
    with caplog.at_level("INFO", "recollect"):
        quiet_load("vehicleid", tmp_path)
    assert "2 images of 1 classes, as distributed; the paper's table has 110,178 images of 13,134" in caplog.text


def test_gldv1_counts_what_is_missing_and_drops_small_classes(tmp_path: Path, published: Any) -> None:
    rows = [f"{landmark}{i:x},http://x/{i},{landmark}" for landmark, n in ((1, 5), (2, 4), (3, 6)) for i in range(n)]
    write(tmp_path / "train.csv", ["id,url,landmark_id", *rows, "ff,http://x,None"])
    present = [f"1{i:x}" for i in range(5)] + [f"2{i:x}" for i in range(3)] + [f"3{i:x}" for i in range(4)]
    touch(tmp_path, *[f"images/{identity}.jpg" for identity in present])
    published("gldv1", train=Counts(9, 2))
    with pytest.warns(DataWarning) as caught:
        images = load("gldv1", tmp_path)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert "3 of 15 images" in texts[0]
    assert "1 of 3 landmarks have fewer than 4 photos and are dropped (3 photos)" in texts[1]
    assert list(images.class_names) == ["1", "3"]
    assert images.class_sizes.tolist() == [5, 4]
    assert images.names[0] == "images/10.jpg"
    write(tmp_path / "train.csv", ["id,url,landmark_id", "nothing,http://x,1"])
    with pytest.raises(DataError, match=r"none of .*train\.csv .*images"):
        load("gldv1", tmp_path)
    write(tmp_path / "train.csv", ["id,url,landmark_id", "../x,http://x,1"])
    with pytest.raises(DataError, match=r"'\.\./x' .*image id"):
        load("gldv1", tmp_path)


def test_cub_splits_at_a_hundred(tmp_path: Path, published: Any) -> None:
    files = {1: ("001.Albatross/a.jpg", 1), 2: ("100.Pelican/b.jpg", 100), 3: ("101.White_Pelican/c.jpg", 101)}
    write(tmp_path / "images.txt", [f"{i} {name}" for i, (name, _) in files.items()])
    write(tmp_path / "image_class_labels.txt", [f"{i} {label}" for i, (_, label) in files.items()])
    touch(tmp_path, *[f"images/{name}" for name, _ in files.values()])
    published("cub", train=Counts(2, 2), test=Counts(1, 1))
    assert list(quiet_load("cub", tmp_path).class_names) == ["001.Albatross", "100.Pelican"]
    assert list(quiet_load("cub", tmp_path, "test").names) == ["images/101.White_Pelican/c.jpg"]
    write(tmp_path / "image_class_labels.txt", ["1 1"])
    with pytest.raises(DataError, match=r"image 2 .*no class"):
        load("cub", tmp_path)


CARS = np.array([[f"Car {number:03d}" for number in range(1, 197)]], dtype=object)


def write_cars(path: Path, fields: str, rows: list[tuple[Any, ...]], **more: Any) -> None:
    """A list of photos in Matlab's format."""
    records = np.zeros((1, len(rows)), dtype=[(field, object) for field in fields.split()])
    for index, row in enumerate(rows):
        records[0, index] = row
    pytest.importorskip("scipy.io").savemat(path, {"annotations": records, **more})


def make_cars(root: Path) -> list[str]:
    names = [f"car_ims/{number:06d}.jpg" for number in range(1, 197)]
    rows = [(name, 1, 1, 2, 2, index + 1, index % 2) for index, name in enumerate(names)]
    fields = "relative_im_path bbox_x1 bbox_y1 bbox_x2 bbox_y2 class test"
    write_cars(root / "cars_annos.mat", fields, rows, class_names=CARS)
    touch(root, *names)
    return names


def test_cars196_from_annotations(tmp_path: Path, published: Any) -> None:
    names = make_cars(tmp_path)
    published("cars196", train=Counts(98, 98), test=Counts(98, 98))
    train, test = (quiet_load("cars196", tmp_path, split) for split in ("train", "test"))
    assert list(train.names) == names[:98]
    assert list(test.names) == names[98:]
    assert (train.class_names[0], train.class_names[97], test.class_names[0]) == ("Car 001", "Car 098", "Car 099")
    assert train.boxes is None
    (tmp_path / "cars_annos.mat").write_bytes(b"no matrix at all")
    with pytest.raises(DataError, match=r"cars_annos\.mat: not .*Cars196"):
        load("cars196", tmp_path)


def make_kit(root: Path, form: str) -> None:
    """The development kit: two photos of each model, whose numbers repeat, one in each list."""
    kit = root / ("car_devkit/devkit" if form == "kaggle" else "devkit")
    kit.mkdir(parents=True)
    write_cars(kit / "cars_meta.mat", "none", [], class_names=CARS)
    names = [f"{number:05d}.jpg" for number in range(1, 197)]
    rows = [(1, 1, 2, 2, index + 1, name) for index, name in enumerate(names)]
    labelled = {
        "torchvision": root / "cars_test_annos_withlabels.mat",
        "kaggle": kit / "cars_test_annos_with_labels.mat",
    }
    for path, part in ((kit / "cars_train_annos.mat", "cars_train"), (labelled[form], "cars_test")):
        write_cars(path, "bbox_x1 bbox_y1 bbox_x2 bbox_y2 class fname", rows)
        folder = f"{part}/{part}" if form == "kaggle" else part
        touch(root, *[f"{folder}/{name}" for name in names])


@pytest.mark.parametrize("form", ["torchvision", "kaggle"])
def test_cars196_from_the_development_kit(tmp_path: Path, published: Any, form: str) -> None:
    make_kit(tmp_path, form)
    published("cars196", train=Counts(196, 98), test=Counts(196, 98))
    train, test = (quiet_load("cars196", tmp_path, split) for split in ("train", "test"))
    inner = "cars_train/cars_train" if form == "kaggle" else "cars_train"
    assert list(train.names)[:2] == [f"{inner}/00001.jpg", f"{inner}/00002.jpg"]
    assert (train.class_names[0], train.class_names[97], test.class_names[0]) == ("Car 001", "Car 098", "Car 099")
    assert train.read(0).size == (2, 2)
    (tmp_path / "cars_annos.mat").write_bytes(b"of photos that are not here")
    assert len(quiet_load("cars196", tmp_path)) == 196
    next(tmp_path.rglob("cars_test_annos_with*")).unlink()
    with pytest.raises(DataError, match="cars_test_annos_withlabels"):
        load("cars196", tmp_path)


@pytest.mark.parametrize("form", ["plain", "halves", "classification"])
def test_cars196_from_class_folders(tmp_path: Path, published: Any, form: str) -> None:
    titles = [f"Model {number:03d}" for number in range(196)]
    halves = [["train/" if number < 98 else "test/"] for number in range(196)]
    parts = {"plain": [[""]] * 196, "halves": halves, "classification": [["train/", "test/"]] * 196}[form]
    touch(
        tmp_path,
        *[f"{part}{title}/{i}.jpg" for number, title in enumerate(titles) for part in parts[number] for i in range(2)],
    )
    count = 98 * 2 * (2 if form == "classification" else 1)
    published("cars196", train=Counts(count, 98), test=Counts(count, 98))
    assert list(quiet_load("cars196", tmp_path).class_names) == titles[:98]
    assert list(quiet_load("cars196", tmp_path, "test").class_names) == titles[98:]


@pytest.mark.parametrize(
    ("split", "min_faces", "images", "classes", "fingerprint"),
    [("test", 8, 24_453, 1176, "1f653a88f4d30bfc"), ("test", 32, 10_494, 240, "f0a304e2557d5d9b")],
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


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def test_rows_of_hugging_face_are_an_image_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "eel"]),
            "kind": datasets.Value("string"),
        }
    )
    table = {
        "image": [{"bytes": png(value), "path": None} for value in (5, 6, 7)],
        "label": [2, 0, 2],
        "kind": list("xyx"),
    }
    decoded = datasets.Dataset.from_dict(table, features=features)
    for dataset in (decoded, decoded.cast_column("image", datasets.Image(decode=False))):
        images = from_hugging_face(dataset, coarse="kind")
        assert (list(images.class_names), images.labels.tolist()) == (["cat", "eel"], [1, 0, 1])
        assert list(images.coarse_names) == ["x", "y"]
        part = images.subset([2, 1])
        assert [part.read(i).getpixel((0, 0))[0] for i in range(2)] == [7, 6]  # type: ignore[index]
        for cache in ("none", "ram", "disk"):
            with Pipeline(images, LongerSide(3), workers=2, cache=cache) as pipeline:
                assert sorted(int(i) for batch in pipeline.sequential(8) for i in batch.indices) == [0, 1, 2]
    for other in (decoded.to_iterable_dataset(), datasets.DatasetDict()):
        with pytest.raises(InputError, match="DatasetDict and not a stream"):
            from_hugging_face(other)
    with pytest.raises(InputError, match="Did you mean label"):
        from_hugging_face(decoded, label="labels")
    incomplete = datasets.Dataset.from_dict({"image": [None, None], "label": [0, None]})
    with pytest.raises(DataError, match="row 1"):
        from_hugging_face(incomplete)
