"""Images of different sizes in one call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from recollect.common.errors import InputError
from recollect.data.image_set import ImageSet
from recollect.data.transforms import LongerSide
from recollect.models import Embedder
from recollect.models.embedder import by_shape
from recollect.models.weights import weights_digest

SIDES = st.sampled_from([8, 12, 17])


@pytest.fixture(scope="module")
def tiny() -> Embedder:
    torch.manual_seed(0)
    return Embedder.create("tiny", size=32, resize=None, dim=8).double()


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=9), st.integers(0, 99))
def test_a_list_equals_one_at_a_time(tiny: Embedder, sizes: list[tuple[int, int]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
    together = tiny(images)
    alone = torch.cat([tiny(image[None]) for image in images])
    assert together.shape == (len(images), 8)
    assert torch.allclose(together, alone, rtol=0, atol=1e-9)
    direction = torch.randn(together.shape, generator=generator, dtype=torch.float64)
    parameters = list(tiny.parameters())
    one = torch.autograd.grad((together * direction).sum(), parameters)
    other = torch.autograd.grad((alone * direction).sum(), parameters)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(one, other, strict=True))


def test_equal_shapes_go_together() -> None:
    seen: list[int] = []

    def run(batch: Tensor) -> Tensor:
        seen.append(len(batch))
        return batch.flatten(1)[:, :1]

    images = [torch.full((3, *size), float(value)) for value, size in enumerate([(2, 3), (3, 2), (2, 3), (2, 3)])]
    assert by_shape(run, images).flatten().tolist() == [0, 1, 2, 3]
    assert seen == [3, 1]
    for wrong in ([], [torch.zeros(1, 3, 4, 4)], [torch.zeros(4, 4)]):
        with pytest.raises(InputError, match="list"):
            by_shape(run, wrong)


def test_a_transformer_takes_a_list_as_embed_does() -> None:
    embedder = Embedder.create("timm:vit_tiny_patch16_224.augreg_in21k", weights="none", size=64, resize=None, dim=8)
    embedder.eval()
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in ((48, 70), (33, 64))]
    with torch.no_grad():
        assert torch.allclose(embedder(images), embedder.embed(images, progress=False), atol=1e-5)


def test_the_size_of_whole_images_is_their_longer_side(tmp_path: Path) -> None:
    """Through ``embed`` and through the pipeline, to the pixel; saved with the embedder."""
    embedder = Embedder.create("tiny", size=40, resize=None, dim=8)
    embedder.save(tmp_path / "model")
    preprocessing = Embedder.load(tmp_path / "model").preprocessing
    pixels = np.random.default_rng(0).integers(0, 256, (2, 130, 171, 3), dtype=np.uint8)
    images = ImageSet("two", ["a", "b"], [0, 0], ["x"], arrays=pixels)
    for index in range(2):
        found = preprocessing(images.read(index))
        assert found.shape == (3, 30, 40)
        shrunk = np.asarray(LongerSide(preprocessing.max_side).read(images, index))
        assert np.array_equal(found.permute(1, 2, 0).numpy(), shrunk)


# Vectors in a file ---------------------------------------------------------------------------------------------------


def test_the_digest_changes_with_any_weight(tiny: Embedder) -> None:
    before = weights_digest(tiny)
    assert before == weights_digest(tiny)
    with torch.no_grad():
        tiny.head.linear.bias[3] += 1e-12  # type: ignore[union-attr, index]
    assert before != weights_digest(tiny)
