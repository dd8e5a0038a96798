"""What ``"auto"`` means: settings that follow from the data and the machine, each with the reason that the plan prints.

Called once before a run is written, so ``config.yaml`` holds the settled values. To settle another field, add a
function that returns its value and a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from recollect.common.errors import ConfigError
from recollect.data import ImageSet
from recollect.training.config import Config

PAPER_BATCH = 4000  # of iNaturalist, SOP and VehicleID
CPU_BATCH = 392  # of Cars196, the smallest batch of the paper, and about what two cores can afford a step
IMAGES_SEEN = 400_000
"""Epochs follow from it: as many images as the paper's Cars196 training with a ViT sees."""
HEAD_STEPS = 150
"""Steps on cached features: seconds each at most."""
WHOLE_SET = 3e8
"""Comparisons up to which a step on cached features takes all images: each query compares each positive with everything,
N · Σ n² for classes of n images, at about 2 ns each on one core."""


@dataclass(frozen=True)
class Choice:
    """A setting that was left open, its value, and why."""

    key: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value}: {self.reason}"


def choose_device(wanted: str) -> torch.device:
    """The device meant by ``run.device``.

    Raises:
        ConfigError: it is not there.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(f"run.device {wanted!r} is no device: use auto, cpu or cuda.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"run.device is {wanted}, but torch finds no GPU: use cpu, or install a CUDA build of torch.")
    return device


def settle(config: Config, images: ImageSet, device: torch.device, pretrained: bool) -> tuple[Config, list[Choice]]:
    """``config`` without any ``"auto"`` (but ``batch.chunk``, which is measured), and what was chosen.

    Args:
        config: what recipe and user said.
        images: the training images.
        device: where it will run.
        pretrained: whether the network starts from trained weights.
    """
    choices: list[Choice] = []

    def choose(part: str, name: str, value: Any, reason: str) -> None:
        nonlocal config
        choices.append(Choice(f"{part}.{name}", value, reason))
        config = replace(config, **{part: replace(getattr(config, part), **{name: value})})

    if config.model.freeze == "auto":
        choose("model", "freeze", *_freeze(config, device, pretrained))
    frozen = config.model.freeze != "none"
    if config.data.augmentation == "auto":
        choose("data", "augmentation", *_augmentation(config, frozen))
    if config.batch.size == "auto":
        choose("batch", "size", *_batch_size(config, images, device, frozen))
    if config.optimiser.lr == "auto":
        lr = 1e-4 if pretrained and not frozen else 1e-3
        choose("optimiser", "lr", lr, "the paper's for fine-tuning" if lr == 1e-4 else "a new layer learns faster")
    if config.run.epochs == "auto" and config.run.steps is None:
        choose("run", "epochs", *_epochs(config, images, frozen))
    elif config.run.epochs == "auto":
        config = replace(config, run=replace(config.run, epochs=None))
    if config.run.evaluate_every == "auto":
        every = max(1, config.run.epochs // 20) if isinstance(config.run.epochs, int) else 1
        choose("run", "evaluate_every", every, "about twenty evaluations, an epoch apart at least")
    return config, choices


def _freeze(config: Config, device: torch.device, pretrained: bool) -> tuple[str, str]:
    if device.type != "cpu":
        return "none", "a GPU can fine-tune the whole network"
    if not pretrained:
        return "none", "the network starts from random numbers, so all of it must learn"
    if config.data.augmentation in ("crop", "glyph", "whole"):
        return "none", f"data.augmentation={config.data.augmentation} was asked for, and cached features cannot have it"
    if config.data.on_bad_image == "skip":
        return "none", "data.on_bad_image=skip was asked for, and cached features cannot have it"
    return "pooling", (
        "on a CPU only the last layer is trained, on features computed once; fine-tune the whole network with "
        "--freeze none, at seconds a step"
    )


def _augmentation(config: Config, frozen: bool) -> tuple[str, str]:
    if frozen:
        return "none", "features of the frozen part are computed once"
    if config.model.resize is None:
        return "whole", "model.resize null keeps images whole"
    if config.data.name == "glyphs":
        return "glyph", "characters are turned and shifted slightly, never mirrored or cropped"
    return "crop", "random resized crops, as in the paper"


def _batch_size(config: Config, images: ImageSet, device: torch.device, frozen: bool) -> tuple[int | str, str]:
    comparisons = len(images) * float((images.class_sizes.astype(float) ** 2).sum())
    if frozen and comparisons <= WHOLE_SET:
        return "all", f"all {len(images):,} training images at once: features are small"
    each = config.batch.samples_per_class
    usable = int((images.class_sizes >= (each if config.batch.small_classes == "drop" else 1)).sum())
    wanted = PAPER_BATCH if device.type != "cpu" or frozen else CPU_BATCH
    size = max(min(wanted // each, usable), 1) * each
    reason = f"{size // each} classes × {each} images"
    return size, reason + (", all classes that can be used" if size // each == usable else f"; {device.type} default")


def _epochs(config: Config, images: ImageSet, frozen: bool) -> tuple[int, str]:
    if config.batch.size == "all":
        return HEAD_STEPS, f"{HEAD_STEPS} steps, one an epoch"
    if frozen and isinstance(config.batch.size, int):
        epochs = max(5, HEAD_STEPS * config.batch.size // max(len(images), 1))
        return epochs, "cached features cost little"
    epochs = min(max(IMAGES_SEEN // max(len(images), 1), 10), 90)
    return epochs, f"about {epochs * len(images):,} images seen"
