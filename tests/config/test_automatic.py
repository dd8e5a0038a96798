"""What ``recollect train --data FOLDER`` chooses for sets from a dozen photos to half a million, and why it says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.common.errors import DataError
from recollect.config import automatic as choices
from recollect.config.automatic import AutoSetting, resolve_auto
from recollect.config.resolve import resolve
from recollect.config.schema import Config
from recollect.data import ClassBalancedSampler, ImageSet


def built(sizes: list[int]) -> ImageSet:
    """A set of classes of these sizes; no file of it is ever read."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    names = [f"{number}.jpg" for number in range(len(labels))]
    return ImageSet("made", names, labels, [str(label) for label in range(len(sizes))], root=Path("/nowhere"))


def selection(
    sizes: list[int], device: str, pretrained: bool = True, **settings: Any
) -> tuple[Config, list[AutoSetting]]:
    config = resolve("folder", {"data.root": "photos", **settings})
    return resolve_auto(config, built(sizes), torch.device(device), pretrained)


def steps(config: Config, sizes: list[int]) -> int:
    """How many steps the sampler itself makes of it."""
    if config.run.steps is not None:
        return config.run.steps
    assert isinstance(config.run.epochs, int)
    if config.batch.size == "all":
        return config.run.epochs
    assert isinstance(config.batch.size, int)
    batch = config.batch
    sampler = ClassBalancedSampler(
        built(sizes).labels, config.batch.size, batch.samples_per_class, batch.policy, batch.small_classes
    )
    return config.run.epochs * len(sampler)


@pytest.fixture(autouse=True)
def _much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory(monkeypatch, 64 << 30)


def memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(choices, "total_memory", lambda: size)


UNEQUAL = [1] * 50 + [2] * 30 + [5] * 20 + [3000] * 3
# sizes → batch and steps on a CPU (frozen), batch and steps on a GPU (fine-tuned)
TABLE: dict[str, tuple[list[int], int | str, int, int, int]] = {
    "3 × 4": ([4] * 3, "all", 0, 12, 100),
    "20 × 5": ([5] * 20, "all", 150, 80, 100),
    "100 × 30": ([30] * 100, "all", 150, 400, 504),
    "1,000 × 3": ([3] * 1000, "all", 150, 4000, 100),
    "11,318 × 5": ([5] * 11_318, 4000, 154, 4000, 504),
    "10,000 × 50": ([50] * 10_000, 4000, 625, 4000, 1250),
    "unequal": (UNEQUAL, 412, 154, 412, 506),
}


@pytest.mark.parametrize("name", TABLE)
def test_batch_and_length_by_the_size_of_the_set(name: str) -> None:
    sizes, cpu_batch, cpu_steps, gpu_batch, gpu_steps = TABLE[name]
    cpu, _ = selection(sizes, "cpu")
    assert (cpu.model.freeze, cpu.batch.size, steps(cpu, sizes)) == ("pooling", cpu_batch, cpu_steps)
    assert (cpu.data.augmentation, cpu.optimizer.lr) == ("none", 1e-4)
    gpu, _ = selection(sizes, "cuda")
    assert (gpu.model.freeze, gpu.batch.size, steps(gpu, sizes)) == ("none", gpu_batch, gpu_steps)
    assert (gpu.data.augmentation, gpu.optimizer.lr) == ("crop", 1e-4)


def reason(made_choices: list[AutoSetting], key: str) -> str:
    return next(choice.reason for choice in made_choices if choice.name == key)


def test_reasons_name_the_limit_that_was_met(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "all usable classes" in reason(selection([5] * 20, "cuda")[1], "batch.size")
    assert "the paper's batch for large sets" in reason(selection([5] * 9000, "cuda")[1], "batch.size")
    config, why = selection([50] * 1000, "cpu", **{"model.freeze": "none"})
    assert config.batch.size == 392
    assert "a CPU can compute" in reason(why, "batch.size")
    assert steps(config, [50] * 1000) == 10 * (50_000 // 392)
    memory(monkeypatch, 2 << 30)
    config, why = selection([50] * 1000, "cuda")
    assert config.batch.size == 1780  # 512 MiB for 2 × 1780 images of 224 × 224 × 3 bytes
    assert "25% of this machine's memory" in reason(why, "batch.size")


def test_what_the_user_said_is_left_alone() -> None:
    message = {
        "batch.size": 40,
        "optimizer.lr": 0.02,
        "run.epochs": 3,
        "model.freeze": "none",
        "model.whitening": None,
        "data.augmentation": "none",
        "run.precision": "fp32",
    }
    config, made_choices = selection([30] * 100, "cuda", **message)
    assert made_choices == []
    assert (config.batch.size, config.optimizer.lr, config.run.epochs) == (40, 0.02, 3)
    assert selection([30] * 100, "cuda", **{"run.steps": 9})[0].run.epochs is None


@pytest.mark.parametrize(
    ("sizes", "says"), [([5000], "to one class"), ([1] * 10, "a single image"), ([0, 7, 0], "to one class")]
)
def test_images_that_nothing_can_be_learned_from_are_refused(sizes: list[int], says: str) -> None:
    for device in ("cpu", "cuda"):
        with pytest.raises(DataError, match=says):
            selection(sizes, device)


@pytest.mark.parametrize(
    ("held_out", "remedy"), [(0, "per class."), (1, "data.train_split=all."), (6, "data.options.test_share=0.25.")]
)
def test_one_training_class_is_refused_with_a_remedy_that_exists(held_out: int, remedy: str) -> None:
    images = replace(built([5]), facts={"split": {"held_out_classes": held_out}})
    with pytest.raises(DataError) as caught:
        resolve_auto(resolve("folder", {"data.root": "photos"}), images, torch.device("cpu"), pretrained=True)
    assert str(caught.value).endswith(remedy)


def test_no_step_is_planned_where_nothing_can_be_chosen() -> None:
    """Fewer than 12 classes, or than 40 images in half of them; a user who asks for steps or sets a rate gets them."""
    for sizes in ([30] * 11, [3] * 14):
        config, choices_made = selection(sizes, "cpu")
        assert (config.run.steps, config.run.epochs, config.model.shrinkage) == (0, None, choices.SHRINKAGE)
        assert f"{sum(sizes)} photos of {len(sizes)} training classes are too few" in reason(choices_made, "run.steps")
    assert selection([30] * 12, "cpu")[0].run.epochs == choices.HEAD_STEPS
    assert selection([30] * 7, "cpu", **{"run.steps": 20})[0].run.steps == 20
    assert selection([30] * 7, "cpu", **{"optimizer.lr": 1e-3})[0].run.epochs == choices.HEAD_STEPS
    assert selection([30] * 7, "cpu", **{"model.freeze": "none"})[0].run.steps is None
