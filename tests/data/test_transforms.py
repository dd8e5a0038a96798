"""Random numbers, and every transform: those of torchvision bit for bit, whole images, and augmentations from outside."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from PIL import Image

from recollect.common.errors import ConfigError, ImageError
from recollect.common.images import Preprocessing
from recollect.common.machine import fix_torchvision
from recollect.data import transforms
from recollect.data.image_set import ImageSet
from recollect.data.transforms import LongerSide, RandomResizedCrop, occurrences, uniforms

fix_torchvision()
from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import functional  # noqa: E402


def test_values_never_change() -> None:
    """Pinned: other values would change the augmentation of every saved run."""
    found = uniforms(3, 2, 1, np.array([10, 11]), np.array([0, 1]), 2)
    golden = [[0.5868287652147531, 0.6811320455498124], [0.9244230240536899, 0.2463895937856564]]
    np.testing.assert_array_equal(found, golden)


@given(st.lists(st.integers(0, 5), max_size=20))
def test_occurrences_count_earlier_equals(values: list[int]) -> None:
    expected = [values[:position].count(value) for position, value in enumerate(values)]
    assert occurrences(np.array(values, dtype=np.int64)).tolist() == expected


def picture(width: int = 90, height: int = 70, seed: int = 0) -> Image.Image:
    """Smooth ground with noise: neither trivial for a resize nor worse than a photograph."""
    random = np.random.default_rng(seed)
    ground = Image.fromarray(random.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize((width, height), 3)
    noise = random.normal(0, 15, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(ground) + noise, 0, 255).astype(np.uint8))


def draws(transform: transforms.Transform, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(transform.draws)


def as_tensor(pixels: np.ndarray) -> torch.Tensor:
    assert pixels.dtype == np.uint8
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)


def torchvision_box(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], random: np.ndarray, **kwargs) -> tuple:
    """torchvision's own code for the box, fed with our numbers instead of torch's."""
    numbers = iter(random[:20])

    class Fake:
        log, tensor, exp = torch.log, torch.tensor, torch.exp

        @staticmethod
        def empty(count: int) -> SimpleNamespace:
            u = float(next(numbers))
            return SimpleNamespace(
                uniform_=lambda low, high: torch.tensor(float(low) + (float(high) - float(low)) * u, dtype=torch.double)
            )

        @staticmethod
        def randint(low: int, high: int, size: tuple) -> torch.Tensor:
            position = 20 if Fake.randint.__dict__.setdefault("calls", []) == [] else 21
            Fake.randint.__dict__["calls"].append(1)
            return torch.tensor(int(random[position] * high))

    from torchvision.transforms.v2 import _geometry

    reference = v2.RandomResizedCrop(32, **kwargs)
    reference._log_ratio = torch.log(torch.tensor(reference.ratio, dtype=torch.double))
    with monkeypatch.context() as patch:
        patch.setattr(_geometry, "torch", Fake)
        found = reference.make_params([Image.new("RGB", size)])
    return found["left"], found["top"], found["left"] + found["width"], found["top"] + found["height"]


@pytest.mark.parametrize("size", [(90, 70), (70, 90), (500, 20), (20, 500), (3, 2), (1, 1)])
def test_box_is_drawn_as_torchvision_draws_it(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    """Extreme shapes reach the fallback to a central crop, too."""
    for seed in range(40):
        transform = RandomResizedCrop(32)
        random = draws(transform, seed)
        assert transform.box(*size, random) == torchvision_box(monkeypatch, size, random)
        narrow = RandomResizedCrop(32, scale=(0.5, 0.9), ratio=(1.0, 2.0))
        expected = torchvision_box(monkeypatch, size, random, scale=(0.5, 0.9), ratio=(1.0, 2.0))
        assert narrow.box(*size, random) == expected


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_pil_kernel_equals_torchvision_on_pil_images(interpolation: str) -> None:
    image = picture()
    transform = RandomResizedCrop(48, interpolation=interpolation, kernel="pil")
    flips = 0
    for seed in range(12):
        random = draws(transform, seed)
        left, top, right, bottom = transform.box(*image.size, random)
        mode = v2.InterpolationMode(interpolation)
        expected = functional.resized_crop(image, top, left, bottom - top, right - left, [48, 48], mode)
        if random[-1] < 0.5:
            expected, flips = functional.horizontal_flip(expected), flips + 1
        assert torch.equal(as_tensor(transform(image, random)), functional.pil_to_tensor(expected))
        assert np.array_equal(transform(np.asarray(image), random), transform(image, random))
    assert 0 < flips < 12


@pytest.mark.parametrize(("interpolation", "close"), [("bilinear", 1), ("bicubic", 8)])
def test_torch_kernel_equals_torchvision_on_tensors(interpolation: str, close: int) -> None:
    """Exactly v2's result for uint8 tensors, and at most a level from nearly all of its result for PIL images."""
    image = picture()
    tensor = functional.pil_to_tensor(image)
    transform = RandomResizedCrop(48, interpolation=interpolation)
    by_pil = RandomResizedCrop(48, interpolation=interpolation, kernel="pil")
    for seed in range(12):
        random = draws(transform, seed)
        left, top, right, bottom = transform.box(*image.size, random)
        mode = v2.InterpolationMode(interpolation)
        expected = functional.resized_crop(tensor, top, left, bottom - top, right - left, [48, 48], mode)
        if random[-1] < 0.5:
            expected = functional.horizontal_flip(expected)
        found = transform(image, random)
        assert torch.equal(as_tensor(found), expected)
        assert np.array_equal(transform(np.asarray(image), random), found)
        difference = np.abs(found.astype(int) - by_pil(image, random).astype(int))
        assert difference.max() <= close
        assert (difference > 1).mean() < 0.002
        assert difference.mean() < 0.4


def test_test_transform_of_a_model_for_instance_search_keeps_sizes() -> None:
    assert transforms.test_transform(Preprocessing(resize=None)) == LongerSide(None)
    bounded = Preprocessing(resize=None, max_side=64)
    assert transforms.test_transform(bounded) == LongerSide(64)
    assert transforms.whole_transform(bounded, flip=True) == LongerSide(64, flip=True)
    with pytest.raises(ConfigError, match=r"model\.resize=null"):
        transforms.whole_transform(Preprocessing(32, 36))


def glyph(side: int = 48) -> Image.Image:
    """An even ground with a shape that is not its own mirror image."""
    pixels = np.full((side, side, 3), 240, np.uint8)
    pixels[side // 4 : -side // 4, side // 3 : side // 3 + 5] = 10
    pixels[side // 4 : side // 4 + 5, side // 3 : -side // 4] = 10
    return Image.fromarray(pixels)


def test_glyph_transform_equals_torchvisions_affine() -> None:
    transform = transforms.glyph_transform(Preprocessing(32, 32))
    image = glyph()
    for seed in range(12):
        random = draws(transform, seed)
        angle, right, down, scale, shear = transform.parameters(48, 48, random)
        moved = functional.affine(
            image, angle, [right, down], scale, [shear, 0.0], v2.InterpolationMode.BILINEAR, fill=[240, 240, 240]
        )
        expected = functional.pil_to_tensor(functional.resize(moved, [32, 32]))
        assert torch.equal(as_tensor(transform(image, random)), expected)
        assert np.array_equal(transform(np.asarray(image), random), transform(image, random))


def test_a_torchvision_transform_of_ones_own_is_seeded_by_the_image() -> None:
    own = v2.Compose([v2.RandomCrop(16), v2.ColorJitter(0.5), v2.PILToTensor()])
    transform = transforms.FromTorchvision(own, 16)
    image = picture()
    first = transform(image, np.array([0.3]))
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    assert np.array_equal(first, transform(np.asarray(image), np.array([0.3])))
    assert not np.array_equal(first, transform(image, np.array([0.4])))
    assert torch.equal(state, torch.random.get_rng_state()), "the caller's random state is left alone"


def test_a_transform_that_normalizes_is_refused() -> None:
    own = v2.Compose([v2.CenterCrop(16), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
    with pytest.raises(ConfigError, match=r"\(3, 16, 16\), not torch.float32"):
        transforms.FromTorchvision(own, 16, random=False)(picture(), np.empty(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomResizedCrop(32, kernel="cv2"), "torch, pil"),
        (lambda: RandomResizedCrop(32, interpolation="lanczos"), "set kernel to 'pil'"),
        (lambda: RandomResizedCrop(32, scale=(0.5, 0.1)), "the smaller first"),
    ],
)
def test_impossible_settings_are_refused(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


NOTHING = np.empty(0)


def one(image: Image.Image, folder: Path, box: list[float] | None = None, **save: object) -> ImageSet:
    image.save(folder / "a.png", **save)
    boxes = None if box is None else np.array([box], dtype=np.float64)
    return ImageSet("one", ["a.png"], [0], ["x"], root=folder, boxes=boxes)


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 200))
def test_whole_image_shrinks_as_a_thumbnail(width: int, height: int, imsize: int) -> None:
    """PIL's thumbnail, which the benchmark's own code uses, is the oracle for sizes and pixels."""
    image = noise(width, height)
    images = ImageSet("one", ["a"], [0], ["x"], arrays=np.asarray(image)[None])
    expected = image.copy()
    expected.thumbnail((imsize, imsize), Image.Resampling.LANCZOS, reducing_gap=None)
    transform = LongerSide(imsize)
    found = transform(transform.read(images, 0), NOTHING)
    assert np.array_equal(found, np.asarray(expected))
    assert transform.output_size(images, 0) == found.shape[:2]


@pytest.mark.parametrize("box", [[10.4, 20.6, 110.0, 60.0], [50, 5, 70, 95], [150, 50, 210, 90]])
@pytest.mark.parametrize("imsize", [40, 1024])
def test_query_is_bounded_by_its_share_of_the_picture(tmp_path: Path, box: list[float], imsize: int) -> None:
    image = noise(200, 100)
    images = one(image, tmp_path, box)
    expected = image.crop(box)
    bound = imsize * max(expected.size) / 200
    expected.thumbnail((bound, bound), Image.Resampling.LANCZOS, reducing_gap=None)
    transform = LongerSide(imsize)
    found = transform(transform.read(images, 0), NOTHING)
    assert np.array_equal(found, np.asarray(expected))
    assert transform.output_size(images, 0) == found.shape[:2]
    assert max(found.shape[:2]) <= max(bound, 1)


def test_an_empty_box_names_the_image(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"a\.png: its box"):
        LongerSide().read(one(noise(30, 20), tmp_path, [5, 5, 5, 9]), 0)
