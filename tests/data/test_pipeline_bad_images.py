"""Images that cannot be read: named, replaced within their class, or left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from recollect.common.errors import DataError, ImageError
from recollect.common.images import Preprocessing, set_max_pixels
from recollect.data import transforms
from recollect.data.image_set import ImageSet
from recollect.data.pipeline import Pipeline
from recollect.data.transforms import LongerSide, uniforms

SMALL = Preprocessing(16, 18)
TRAIN = transforms.train_transform(SMALL)
TEST = transforms.test_transform(SMALL)


def test_bad_images_of_a_list_are_replaced(damaged: ImageSet) -> None:
    with Pipeline(damaged, LongerSide(20, flip=True), workers=2, on_bad_image="skip") as pipeline:
        images, labels, indices = pipeline.load([3, 11, 19, 0, 8], epoch=2)
    assert labels.tolist() == [3, 3, 3, 0, 0]
    assert set(indices[:2].tolist()) == {27, 35}
    assert all(min(image.shape) > 1 for image in images)


def test_a_bad_image_stops_by_default_and_is_named(damaged: ImageSet) -> None:
    for workers in (0, 2):
        with Pipeline(damaged, TRAIN, workers=workers) as pipeline, pytest.raises(ImageError) as caught:
            pipeline.load([0, 1, 2, 3])
        assert "03.jpg" in str(caught.value)
        assert "--skip-bad" in str(caught.value)


def test_skipping_keeps_the_balance_and_reports_every_file(damaged: ImageSet) -> None:
    expected = None
    for workers in (0, 2, 4):
        with Pipeline(damaged, TRAIN, workers=workers, on_bad_image="skip") as pipeline:
            images, labels, indices = pipeline.load([3, 11, 19, 0, 8], epoch=2)
            assert labels.tolist() == [3, 3, 3, 0, 0]
            assert set(indices[:2].tolist()) == {27, 35}, "images of the class that are not in the batch"
            assert indices[2:].tolist() == [19, 0, 8]
            assert [(bad.index, bad.name) for bad in pipeline.bad_images] == [(3, "3/03.jpg"), (11, "3/11.jpg")]
            assert str(pipeline.bad_images[1]) == "3/11.jpg: an empty file."
            random = uniforms(0, 2, 0, indices[:1], np.array([0]), TRAIN.draws)[0]
            assert np.array_equal(images[0].permute(1, 2, 0).numpy(), TRAIN(damaged.read(int(indices[0])), random))
            assert expected is None or (torch.equal(images, expected[0]) and indices.tolist() == expected[1])
            expected = images, indices.tolist()


def test_a_replacement_is_not_yet_in_the_batch_and_changes_with_the_epoch(damaged: ImageSet) -> None:
    with Pipeline(damaged, TRAIN, workers=0, on_bad_image="skip") as pipeline:
        chosen = [int(pipeline.load([3, 19], epoch).indices[0]) for epoch in range(12)]
    assert set(chosen) == {27, 35}


def test_when_the_class_has_no_other_image_a_copy_is_drawn_anew(damaged: ImageSet) -> None:
    with Pipeline(damaged, TRAIN, workers=2, on_bad_image="skip") as pipeline:
        images, labels, indices = pipeline.load([3, 11, 19, 27, 35])
    assert labels.tolist() == [3] * 5
    assert set(indices.tolist()) == {19, 27, 35}
    rows = {images[row].numpy().tobytes() for row in range(5)}
    assert len(rows) == 5, "no two rows have the same pixels"


def test_a_class_without_a_readable_image_is_an_error(damaged: ImageSet) -> None:
    only = damaged.subset([3, 11, 0, 8])
    with Pipeline(only, TRAIN, on_bad_image="skip") as pipeline, pytest.raises(DataError, match="class 'd'"):
        pipeline.load([0, 1])


def test_sequential_leaves_bad_images_out(damaged: ImageSet) -> None:
    for transform in (TEST, LongerSide(20)):
        with Pipeline(damaged, transform, workers=2, on_bad_image="skip") as pipeline:
            found = list(pipeline.sequential(4))
            shown = np.concatenate([batch.indices for batch in found])
            assert sorted(shown.tolist()) == sorted(set(range(40)) - {3, 11})
            assert all(len(batch.images) == len(batch.labels) == len(batch.indices) > 0 for batch in found)
            for batch in found:
                assert batch.labels.tolist() == damaged.labels[batch.indices].tolist()
            assert [bad.index for bad in pipeline.bad_images] == [3, 11]


def test_bombs_are_refused_by_every_worker(photos: ImageSet, tiny_limit: None) -> None:
    for transform in (TRAIN, LongerSide(20)):
        with Pipeline(photos, transform, workers=2) as pipeline, pytest.raises(ImageError, match="limit of 100"):
            pipeline.load([0])


@pytest.fixture
def tiny_limit() -> Iterator[None]:
    set_max_pixels(100)
    yield
    set_max_pixels(None)
