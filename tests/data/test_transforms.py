from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from PIL import Image

from recollect.common.errors import ConfigError
from recollect.common.images import Preprocessing
from recollect.common.machine import fix_torchvision
from recollect.data import transforms
from recollect.data.transforms import GlyphAffine, LongerSide, RandomResizedCrop, mirrored

fix_torchvision()
from torchvision.transforms import v2  # noqa: E402
from torchvision.transforms.v2 import functional  # noqa: E402


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


def test_flip_can_be_turned_off() -> None:
    image = picture()
    transform = RandomResizedCrop(32, flip=False)
    random = draws(transform, 0)
    random[-1] = 0.0
    flipped = RandomResizedCrop(32)(image, random)
    assert np.array_equal(mirrored(flipped), transform(image, random))
    assert not np.array_equal(flipped, transform(image, random))


@given(st.integers(1, 120), st.integers(1, 120), st.sampled_from(["bilinear", "bicubic", "lanczos"]))
def test_test_transform_equals_preprocessing(width: int, height: int, interpolation: str) -> None:
    preprocessing = Preprocessing(24, 29, interpolation)
    transform = transforms.test_transform(preprocessing)
    image = picture(width, height)
    assert transform.draws == 0
    assert torch.equal(as_tensor(transform(image, np.empty(0))), preprocessing(image))


def test_train_transform_takes_the_models_size() -> None:
    transform = transforms.train_transform(Preprocessing(32, 36, "bicubic"), scale=(0.5, 1), flip=False)
    assert (transform.size, transform.interpolation, transform.scale) == ((32, 32), "bicubic", (0.5, 1))
    assert transforms.train_transform(Preprocessing(32, 36, "lanczos")).kernel == "pil"


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


def test_glyph_transform_keeps_the_shape_and_its_hand() -> None:
    transform = GlyphAffine(48)
    shown = np.asarray(glyph()).mean(2) < 128
    mirror = shown[:, ::-1]
    for seed in range(30):
        found = transform(glyph(), draws(transform, seed)).mean(2)
        assert found[0, 0] == 240, "what moves in has the colour of the ground"
        dark = found < 128
        assert 0.5 < dark.sum() / shown.sum() < 1.6, "nothing of it is cut off"
        # Centred by its own middle, the shape overlaps itself more than its mirror image.
        assert overlap(dark, shown) > overlap(dark, mirror)


def overlap(first: np.ndarray, second: np.ndarray) -> int:
    def centred(shape: np.ndarray) -> np.ndarray:
        rows, columns = np.nonzero(shape)
        return np.roll(shape, (24 - round(rows.mean()), 24 - round(columns.mean())), (0, 1))

    return int((centred(first) & centred(second)).sum())


def test_glyph_parameters_stay_in_their_ranges() -> None:
    transform = GlyphAffine(32)
    extremes = [transform.parameters(48, 48, np.full(5, value)) for value in (0.0, 1.0)]
    assert extremes[0] == pytest.approx((-10, -4.8, -4.8, 0.8, -8))
    assert extremes[1] == pytest.approx((10, 4.8, 4.8, 1.2, 8))


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
        (lambda: RandomResizedCrop(32, interpolation="nearest"), "bilinear, bicubic, lanczos"),
        (lambda: RandomResizedCrop(32, kernel="cv2"), "torch, pil"),
        (lambda: RandomResizedCrop(32, interpolation="lanczos"), "set kernel to 'pil'"),
        (lambda: RandomResizedCrop(32, scale=(0.5, 0.1)), "the smaller first"),
        (lambda: GlyphAffine(32, scale=(0.0, 1.0)), "the smaller first"),
    ],
)
def test_impossible_settings_are_refused(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_scale_is_drawn_evenly_in_logarithm() -> None:
    transform = GlyphAffine(32)
    assert transform.parameters(48, 48, np.full(5, 0.5))[3] == pytest.approx(math.sqrt(0.8 * 1.2))
