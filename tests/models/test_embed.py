"""``Embedder.embed``: every kind of image, any sizes and scales, bounded memory, bad files by name."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from PIL import Image

from recollect.common.errors import ConfigError, ImageError, InputError
from recollect.data.image_set import ImageSet
from recollect.data.transforms import LongerSide
from recollect.models import INSTANCE_SEARCH_SCALES, Embedder
from recollect.models.embedder import by_shape, fit
from recollect.models.weights import weights_digest


@pytest.fixture(scope="module")
def tiny() -> Embedder:
    torch.manual_seed(0)
    return Embedder.create("tiny", size=32)


@pytest.fixture(scope="module")
def whole() -> Embedder:
    torch.manual_seed(0)
    return Embedder.create("tiny", resize=None)


def picture(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def expected(embedder: Embedder, images: list[Image.Image]) -> torch.Tensor:
    """One image at a time, straight through forward."""
    with torch.no_grad():
        embedder.eval()
        return torch.cat([embedder(embedder.preprocessing(image)[None]) for image in images])


SIDES = st.sampled_from([8, 12, 17])
CLOSE = {"atol": 1e-6, "rtol": 1e-5}


def test_every_kind_of_image_gives_the_same_vector(tiny: Embedder, tmp_path: Path) -> None:
    image = picture(0)
    image.save(tmp_path / "a.png")
    kinds = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        (tmp_path / "a.png").read_bytes(),
        image,
        np.asarray(image),
        tiny.preprocessing(image),
        tiny.normalize(tiny.preprocessing(image)[None])[0],
    ]
    vectors = tiny.embed(kinds, progress=False)
    assert vectors.shape == (7, 128)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, expected(tiny, [image]).expand(7, -1), **CLOSE)


@settings(max_examples=8)
@given(count=st.integers(0, 23), batch_size=st.integers(1, 9), workers=st.integers(0, 3), sized=st.booleans())
def test_order_and_number_whatever_the_batches(
    tiny: Embedder, count: int, batch_size: int, workers: int, sized: bool
) -> None:
    images = [picture(seed) for seed in range(count)]
    given_images = images if sized else iter(images)
    vectors = tiny.embed(given_images, batch_size=batch_size, workers=workers, progress=False)
    assert vectors.shape == (count, 128)
    if count:
        torch.testing.assert_close(vectors, expected(tiny, images), **CLOSE)


@settings(max_examples=8)
@given(
    sizes=st.lists(st.tuples(st.integers(8, 60), st.integers(8, 60)), min_size=1, max_size=15),
    repeats=st.integers(1, 3),
    batch_size=st.integers(1, 6),
)
def test_images_of_any_size_and_shape(
    whole: Embedder, sizes: list[tuple[int, int]], repeats: int, batch_size: int
) -> None:
    images = [picture(seed, *size) for seed, size in enumerate(sizes * repeats)]
    vectors = whole.embed(images, batch_size=batch_size, progress=False)
    torch.testing.assert_close(vectors, expected(whole, images), **CLOSE)


def test_batches_of_large_images_are_smaller(whole: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    original = Embedder._vectors

    def spy(self: Embedder, batch: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append((len(batch), batch.shape[-1]))
        return original(self, batch, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Embedder, "_vectors", spy)
    whole.embed([picture(i, 48, 48) for i in range(8)], batch_size=8, progress=False)
    whole.embed([picture(i, 96, 96) for i in range(8)], batch_size=8, progress=False)
    whole.embed(torch.zeros(8, 3, 96, 96, dtype=torch.uint8), batch_size=8, progress=False)
    whole.embed([picture(i, 48, 48) for i in range(8)], batch_size=8, scales=(1.0, 2.0), progress=False)
    assert seen == [(8, 48)] + [(2, 96)] * 4 + [(2, 96)] * 4 + [(8, 48)]


def test_memory_stays_bounded_on_a_long_stream_of_many_sizes(whole: Embedder) -> None:
    """However many images an iterator yields, only some of them are in memory at a time."""
    alive: set[int] = set()
    peak = 0

    def stream() -> Iterator[Image.Image]:
        nonlocal peak
        for number in range(110):
            image = picture(number, 20 + number % 15, 24)
            alive.add(number)
            weakref.finalize(image, alive.discard, number)
            peak = max(peak, len(alive))
            yield image

    vectors = whole.embed(stream(), batch_size=8, progress=False)
    assert vectors.shape == (110, 128)
    assert torch.isfinite(vectors).all()
    assert peak <= 80


def test_an_image_set_is_embedded_as_it_is(tiny: Embedder, tmp_path: Path) -> None:
    """Files, crops of files and arrays."""
    shown = [picture(0), picture(1)]
    for number, image in enumerate(shown):
        image.save(tmp_path / f"{number}.png")
    files = ImageSet("two", ["0.png", "1.png"], [0, 1], ["x", "y"], root=tmp_path)
    arrays = ImageSet("two", ["0", "1"], [0, 1], ["x", "y"], arrays=np.stack([np.asarray(i) for i in shown]))
    boxes = np.array([[5, 5, 25, 25], [np.nan] * 4])
    crops = ImageSet("two", ["0.png", "1.png"], [0, 1], ["x", "y"], root=tmp_path, boxes=boxes)
    for images, seen in ((files, shown), (arrays, shown), (crops, [shown[0].crop((5, 5, 25, 25)), shown[1]])):
        torch.testing.assert_close(tiny.embed(images, progress=False), expected(tiny, seen), **CLOSE)


def test_unreadable_images_are_named_and_skipped_ones_have_rows_of_nan(tiny: Embedder, tmp_path: Path) -> None:
    image = picture(0)
    image.save(tmp_path / "good.png")
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    files = [tmp_path / "bad.jpg", tmp_path / "good.png", tmp_path / "absent.png"]
    with pytest.warns(UserWarning, match=r"(?s)2 images .*image 0: .*bad\.jpg.*image 2: .*absent"):
        vectors = tiny.embed(files, on_bad_image="skip", progress=False)
    assert vectors.isnan().all(dim=1).tolist() == [True, False, True]
    torch.testing.assert_close(vectors[1:2], expected(tiny, [image]), **CLOSE)
    numbers: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.embed(files, on_bad_image=lambda bad: numbers.append(bad.index), progress=False)
    assert numbers == [0, 2]
    with pytest.raises(ImageError, match=r"bad\.jpg"):
        tiny.embed(files, progress=False)
    with pytest.raises(ConfigError, match="on_bad_image"):
        tiny.embed(files, on_bad_image="ignore", progress=False)


@pytest.mark.parametrize(
    "wrong",
    [[torch.zeros(1, 8, 8)], [np.zeros((8, 8), np.float32)], [np.zeros(8, np.uint8)], [5], torch.zeros(3, 8, 8)],
)
def test_things_that_are_not_images(tiny: Embedder, wrong: list[object]) -> None:
    with pytest.raises(InputError):
        tiny.embed(wrong, progress=False)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="batch_size"):
        tiny.embed([], batch_size=0)


def test_the_mode_is_restored_and_the_result_is_an_ordinary_tensor(tiny: Embedder) -> None:
    tiny.train()
    vectors = tiny.embed(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), progress=False)
    assert tiny.training
    assert not vectors.requires_grad
    assert not vectors.is_inference()
    tiny.eval()
    with pytest.raises(ImageError):
        tiny.embed([b"x"], progress=False)
    assert not tiny.training


def test_networks_of_one_size_say_so() -> None:
    embedder = Embedder.create("timm:swin_tiny_patch4_window7_224.ms_in1k", weights="none", dim=8)
    with pytest.raises(InputError, match=r"224×224 .*96×64"):
        embedder.embed(torch.zeros(1, 3, 64, 96, dtype=torch.uint8), progress=False)


def test_an_embedder_over_scales() -> None:
    embedder = Embedder.create("tiny").eval()
    pixels = torch.randint(0, 256, (3, 3, 48, 40), dtype=torch.uint8)
    assert list(INSTANCE_SEARCH_SCALES) == [1.0, math.sqrt(2), 1 / math.sqrt(2)]
    ours = embedder.embed(pixels, scales=INSTANCE_SEARCH_SCALES, progress=False)
    with torch.no_grad():
        normalized = embedder.normalize(pixels)
        each = [
            embedder(F.interpolate(normalized, scale_factor=s, mode="bilinear", align_corners=False))
            for s in INSTANCE_SEARCH_SCALES
        ]
    torch.testing.assert_close(ours, F.normalize(torch.stack(each).mean(0)), atol=1e-6, rtol=1e-5)
    single = embedder.embed(pixels, scales=(1.0,), progress=False)
    torch.testing.assert_close(single, embedder.embed(pixels, progress=False), atol=1e-6, rtol=1e-5)
    assert (ours - single).abs().max() > 1e-4


def test_scales_that_fit_patches_and_scales_that_cannot_be() -> None:
    images = torch.randn(1, 3, 64, 48)
    assert fit(images, 1.0, 16) is images
    assert fit(images, 1.0, 1) is images
    assert fit(images, math.sqrt(2), 16).shape[-2:] == (96, 64)
    assert fit(images, 0.1, 16).shape[-2:] == (16, 16)
    assert fit(torch.randn(1, 3, 50, 70), 1.0, 16).shape[-2:] == (48, 64)
    for scales in ((), (0.0,), (-1.0, 1.0), (math.inf,)):
        with pytest.raises(InputError, match="positive"):
            Embedder.create("tiny").embed([], scales=scales)
    with pytest.raises(ImageError, match="8×8 pixels are too narrow"):
        Embedder.create("tiny", resize=None).embed(torch.zeros(1, 3, 8, 8), scales=(0.1,), progress=False)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=9), st.integers(0, 99))
def test_a_list_equals_one_at_a_time(sizes: list[tuple[int, int]], seed: int) -> None:
    tiny = Embedder.create("tiny", size=32, resize=None, dim=8).double()
    generator = torch.Generator().manual_seed(seed)
    images = [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
    together = tiny(images)
    one_by_one = torch.cat([tiny(image[None]) for image in images])
    assert together.shape == (len(images), 8)
    assert torch.allclose(together, one_by_one, rtol=0, atol=1e-9)
    direction = torch.randn(together.shape, generator=generator, dtype=torch.float64)
    parameters = list(tiny.parameters())
    one = torch.autograd.grad((together * direction).sum(), parameters)
    other = torch.autograd.grad((one_by_one * direction).sum(), parameters)
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(one, other, strict=True))


def test_lists_that_hold_no_images_are_refused() -> None:
    for wrong in ([], [torch.zeros(1, 3, 4, 4)], [torch.zeros(4, 4)]):
        with pytest.raises(InputError, match="list"):
            by_shape(torch.flatten, wrong)


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
        pixels_of_one = preprocessing(images.read(index))
        assert pixels_of_one.shape == (3, 30, 40)
        shrunk = np.asarray(LongerSide(preprocessing.max_side).read(images, index))
        assert np.array_equal(pixels_of_one.permute(1, 2, 0).numpy(), shrunk)


def test_the_digest_changes_with_any_weight() -> None:
    tiny = Embedder.create("tiny").double()
    before = weights_digest(tiny)
    assert before == weights_digest(tiny)
    with torch.no_grad():
        tiny.head.linear.bias[3] += 1e-12  # type: ignore[union-attr, index]
    assert before != weights_digest(tiny)
