"""Rows of a Hugging Face data set: by a stand-in, and by the package where it is installed."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from recollect.common.errors import DataError, ImageError, InputError
from recollect.common.images import Preprocessing
from recollect.data import ImageSet, Pipeline, from_hugging_face, transforms
from recollect.data.transforms import LongerSide


def png(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


class Rows(list[dict[str, Any]]):
    """As much of ``datasets.Dataset`` as is used."""

    column_names = ("image", "label", "kind")
    features: dict[str, Any] = {"label": SimpleNamespace(names=["cat", "dog", "eel"])}  # noqa: RUF012
    _fingerprint = "f00d"
    split = "train"

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def rows(tmp_path: Path) -> Rows:
    (tmp_path / "b.png").write_bytes(png(2))
    images = [Image.new("RGB", (6, 4), (0, 0, 0)), {"bytes": png(1)}, {"bytes": None, "path": str(tmp_path / "b.png")}]
    return Rows({"image": image, "label": (2, 0, 2)[i], "kind": "xyx"[i]} for i, image in enumerate(images))


def test_rows_as_an_image_set(tmp_path: Path) -> None:
    images = from_hugging_face(rows(tmp_path), coarse="kind")
    assert (list(images.class_names), images.labels.tolist()) == (["cat", "eel"], [1, 0, 1])
    assert (list(images.coarse_names), images.split) == (["x", "y"], "train")
    assert [images.read(i).getpixel((0, 0))[0] for i in range(3)] == [0, 1, 2]  # type: ignore[index]
    part = images.subset([2, 1])
    assert [part.read(i).getpixel((0, 0))[0] for i in range(2)] == [2, 1]  # type: ignore[index]
    assert list(part.names) == ["f00d/00000002", "f00d/00000001"]
    assert len(images) == 3
    with pytest.raises(InputError, match="no files"):
        images.path(0)
    with pytest.raises(InputError, match="joined"):
        images.joined(images)


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
def test_the_pipeline_reads_them(tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    images = from_hugging_face(rows(tmp_path))
    for transform in (transforms.test_transform(Preprocessing(4, 4)), LongerSide(3)):
        with Pipeline(images, transform, workers=2, cache=cache) as pipeline:
            for _ in range(2):
                batches = list(pipeline.sequential(8))
                assert sorted(int(i) for batch in batches for i in batch.indices) == [0, 1, 2]


def test_what_cannot_be_taken(tmp_path: Path) -> None:
    made = rows(tmp_path)
    with pytest.raises(InputError, match="Did you mean label"):
        from_hugging_face(made, label="labels")
    with pytest.raises(InputError, match="stream"):
        from_hugging_face(iter(made))
    with pytest.raises(InputError, match="DatasetDict"):
        from_hugging_face({"train": made})
    made[1]["label"] = None
    with pytest.raises(DataError, match="row 1"):
        from_hugging_face(made)
    made[1] |= {"label": 0, "image": None}
    with pytest.raises(ImageError, match="row 1"):
        from_hugging_face(made).read(1)


def test_an_image_set_has_one_kind_of_image(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exactly one"):
        ImageSet("x", ["a"], np.array([0]), ["c"], root=tmp_path, items=[b""])


def test_the_real_package(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    made = datasets.Dataset.from_dict(
        {"image": [{"bytes": png(value), "path": None} for value in (5, 6, 7)], "label": [1, 0, 1]}, features=features
    )
    for dataset in (made, made.cast_column("image", datasets.Image(decode=False))):
        images = from_hugging_face(dataset)
        assert (list(images.class_names), images.labels.tolist()) == (["cat", "dog"], [1, 0, 1])
        assert [images.read(i).getpixel((0, 0))[0] for i in range(3)] == [5, 6, 7]  # type: ignore[index]
    streamed = made.to_iterable_dataset()
    with pytest.raises(InputError, match="stream"):
        from_hugging_face(streamed)
    with pytest.raises(InputError, match="DatasetDict"):
        from_hugging_face(datasets.DatasetDict({"train": made}))
