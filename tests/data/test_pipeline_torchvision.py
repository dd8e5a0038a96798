"""A user's torchvision transform in the pipeline."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.common.errors import ImageError
from recollect.common.machine import fix_torchvision
from recollect.data import transforms
from recollect.data.image_set import ImageSet
from recollect.data.pipeline import Pipeline


def test_a_torchvision_transform_leaves_the_models_random_numbers_alone(
    photos: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It draws from torch's global generator, as dropout does: so never while the model may be drawing."""
    fix_torchvision()
    from torchvision.transforms import v2

    threads: dict[str, set[str]] = {"read": set(), "transform": set()}
    augment = v2.Compose([v2.RandomResizedCrop(16), v2.PILToTensor()])

    def watched(image: Image.Image) -> torch.Tensor:
        threads["transform"].add(threading.current_thread().name)
        return augment(image)

    read = ImageSet.read

    def watched_read(self: ImageSet, *rest: int, **options: int | None) -> Image.Image:
        threads["read"].add(threading.current_thread().name)
        return read(self, *rest, **options)

    monkeypatch.setattr(ImageSet, "read", watched_read)

    def run(workers: int, **options) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        images, drawn = [], []
        with Pipeline(photos, transforms.FromTorchvision(watched, 16), workers=workers, **options) as pipeline:
            for batch in pipeline.stream([np.arange(20), np.arange(40), np.arange(30, 35)], epoch=1):
                images.append(batch.images)
                for _ in range(20):
                    state = torch.random.get_rng_state()
                    time.sleep(0.001)
                    assert torch.equal(state, torch.random.get_rng_state())
                    drawn.append(torch.rand(50))
        return images, torch.cat(drawn)

    images, drawn = run(2)
    assert threads["transform"] == {threading.current_thread().name}
    assert all(name.startswith("recollect-loader") for name in threads["read"]), "workers decode"
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.cat([torch.rand(50) for _ in range(60)])), "as if nothing had been loaded"
    for workers, options in ((2, {}), (0, {}), (3, {"cache": "ram"})):
        again, _ = run(workers, **options)
        assert len(images) == len(again)
        assert all(map(torch.equal, images, again))


def test_a_torchvision_transform_with_bad_images(damaged: ImageSet) -> None:
    fix_torchvision()
    from torchvision.transforms import v2

    transform = transforms.FromTorchvision(v2.Compose([v2.RandomResizedCrop(16), v2.PILToTensor()]), 16)
    found = []
    for workers in (0, 2):
        with Pipeline(damaged, transform, workers=workers, on_bad_image="skip") as pipeline:
            found.append(pipeline.load([3, 11, 19, 0, 8], epoch=2))
            assert [bad.index for bad in pipeline.bad_images] == [3, 11]
        with Pipeline(damaged, transform, workers=workers) as pipeline, pytest.raises(ImageError, match=r"03\.jpg"):
            pipeline.load([0, 1, 2, 3])
    assert found[0].indices.tolist() == found[1].indices.tolist()
    assert torch.equal(found[0].images, found[1].images)
