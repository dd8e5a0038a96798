"""``Embedder.embed``: every kind of image, any sizes, bounded memory, bad files by name."""

from __future__ import annotations

import io
import tarfile
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image

from recollect.common.errors import ConfigError, ImageError, InputError
from recollect.data.image_set import ImageSet
from recollect.models import Embedder


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


def test_grey_and_alpha_images(tiny: Embedder) -> None:
    grey = picture(1).convert("L")
    alpha = picture(2).convert("RGBA")
    alpha.putalpha(128)
    vectors = tiny.embed([grey, np.asarray(grey), alpha], progress=False)
    white = Image.alpha_composite(Image.new("RGBA", alpha.size, "white"), alpha).convert("RGB")
    torch.testing.assert_close(vectors, expected(tiny, [grey.convert("RGB"), grey.convert("RGB"), white]), **CLOSE)


@settings(max_examples=15)
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


@settings(max_examples=15)
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
        for number in range(150):
            image = picture(number, 20 + number % 50, 24)
            alive.add(number)
            weakref.finalize(image, alive.discard, number)
            peak = max(peak, len(alive))
            yield image

    vectors = whole.embed(stream(), batch_size=8, progress=False)
    assert vectors.shape == (150, 128)
    assert torch.isfinite(vectors).all()
    assert peak <= 80


def test_an_image_that_is_huge_once_resized_costs_one_row(tiny: Embedder, tmp_path: Path) -> None:
    Image.new("RGB", (60_000, 1)).save(tmp_path / "strip.png")
    picture(0).save(tmp_path / "good.png")
    embedder = Embedder.create("tiny", size=224)
    with pytest.raises(ImageError, match=r"strip\.png: .*would become"):
        embedder.embed([tmp_path / "strip.png"], progress=False)
    with pytest.warns(UserWarning, match=r"1 image .*read"):
        rows = embedder.embed([tmp_path / "strip.png", tmp_path / "good.png"], on_bad_image="skip", progress=False)
    assert rows.isnan().all(dim=1).tolist() == [True, False]


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


def test_an_unreadable_file_is_named(tiny: Embedder, tmp_path: Path) -> None:
    picture(0).save(tmp_path / "good.png")
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    with pytest.raises(ImageError, match=r"bad\.jpg"):
        tiny.embed([tmp_path / "good.png", tmp_path / "bad.jpg"], progress=False)
    with pytest.raises(ImageError, match=r"absent\.png: no such file"):
        tiny.embed([tmp_path / "absent.png"], progress=False)


def test_skipped_images_have_rows_of_nan_and_are_named(tiny: Embedder, tmp_path: Path) -> None:
    image = picture(0)
    image.save(tmp_path / "good.png")
    (tmp_path / "bad.jpg").write_bytes(b"not an image")
    files = [tmp_path / "bad.jpg", tmp_path / "good.png", tmp_path / "absent.png"]
    with pytest.warns(UserWarning, match=r"(?s)2 images .*image 0: .*bad\.jpg.*image 2: .*absent"):
        vectors = tiny.embed(files, on_bad_image="skip", progress=False)
    assert vectors.isnan().all(dim=1).tolist() == [True, False, True]
    torch.testing.assert_close(vectors[1:2], expected(tiny, [image]), **CLOSE)
    noted: list[tuple[int, str]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.embed(files, on_bad_image=lambda bad: noted.append((bad.index, str(bad))), progress=False)
    assert [index for index, _ in noted] == [0, 2]
    with pytest.raises(ConfigError, match="on_bad_image"):
        tiny.embed(files, on_bad_image="ignore", progress=False)


@pytest.mark.parametrize(
    "wrong",
    [
        [torch.zeros(1, 8, 8)],
        [np.zeros((8, 8), np.float32)],
        [np.zeros(8, np.uint8)],
        [5],
        torch.zeros(3, 8, 8),
    ],
)
def test_things_that_are_not_images(tiny: Embedder, wrong: list[object]) -> None:
    with pytest.raises(InputError):
        tiny.embed(wrong, progress=False)  # type: ignore[arg-type]


def test_batch_size_must_be_positive(tiny: Embedder) -> None:
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


def test_exif_orientation_is_respected(tiny: Embedder) -> None:
    image = picture(5, 40, 40)
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned a quarter to the right
    image.transpose(Image.Transpose.ROTATE_90).save(turned, "PNG", exif=exif)
    upright = io.BytesIO()
    image.save(upright, "PNG")
    vectors = tiny.embed([turned.getvalue(), upright.getvalue()], progress=False)
    torch.testing.assert_close(vectors[0], vectors[1], **CLOSE)


def test_transformers_take_images_of_other_sizes() -> None:
    embedder = Embedder.create("timm:vit_tiny_patch16_224.augreg_in21k", weights="none", size=64, resize=None, dim=8)
    images = [picture(0, 64, 64), picture(1, 90, 45), picture(2, 7, 200)]
    vectors = embedder.embed(images, progress=False, scales=(1.0, 0.7))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))


def test_networks_of_one_size_say_so() -> None:
    embedder = Embedder.create("timm:swin_tiny_patch4_window7_224.ms_in1k", weights="none", dim=8)
    with pytest.raises(InputError, match=r"224×224 .*96×64"):
        embedder.embed(torch.zeros(1, 3, 64, 96, dtype=torch.uint8), progress=False)


@pytest.mark.shared_data
@pytest.mark.slow
@pytest.mark.release
def test_the_bundled_weights_find_real_groceries(shared_data: Path) -> None:
    """Real photographs through real weights: the nearest neighbour is mostly of the same class, chance is 3 %."""
    files, labels = [], []
    with tarfile.open(shared_data / "grocery_96px.tar") as archive:
        for member in archive.getmembers():
            if member.isfile() and "/test/" in member.name and len(files) < 500:
                files.append(archive.extractfile(member).read())  # type: ignore[union-attr]
                labels.append(member.name.split("/")[2])
    embedder = Embedder.create("lite0-in1k", dim=None, pooling="gem", size=96, resize=96)
    vectors = embedder.embed(files, progress=False)
    similarity = (vectors @ vectors.T).fill_diagonal_(-2)
    hits = [labels[best] == label for best, label in zip(similarity.argmax(1).tolist(), labels, strict=True)]
    assert sum(hits) / len(hits) > 0.75
