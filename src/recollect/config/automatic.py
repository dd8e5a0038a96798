"""What ``"auto"`` means: settings that follow from the data and the machine, each with the reason that the plan prints.

Called once before a run is written, so ``config.yaml`` holds the settled values. To settle another field, add a
function that returns its value and a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from recollect.common.devices import usable_device
from recollect.common.errors import DataError
from recollect.common.memory import total_memory
from recollect.config.schema import Config, ModelConfig
from recollect.data import ImageSet
from recollect.models.zoo import find

PAPER_BATCH = 4000  # of iNaturalist, SOP and VehicleID
CPU_BATCH = 392  # the paper's for Cars196, and about what two cores can afford per step
HOST_SHARE = 0.25
"""Share of the machine's or the container's memory that the images of a batch may take, with those being read for the next."""
STEPS = {"cuda": 500, "cpu": 250}
"""Steps that fine-tuning aims at. The paper's trainings have 500 (GLDv1) and more; of small sets an image would be seen
hundreds of times, so epochs have a ceiling, and of large ones hardly once, so they have a floor."""
FEWEST_EPOCHS, MOST_EPOCHS = 10, 100
HEAD_STEPS = 150
"""Steps on cached features: seconds each at most."""
SHRINKAGE = 0.2
"""Of a whitening, where validation classes are too few to choose it."""
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
    return usable_device(wanted, "run.device", training=True)


def is_pretrained(model: ModelConfig) -> bool:
    """Whether the network starts from trained weights."""
    return bool(find(model.init).pretrained) and model.weights != "none"


def settle(config: Config, images: ImageSet, device: torch.device, pretrained: bool) -> tuple[Config, list[Choice]]:
    """``config`` without any ``"auto"`` (but ``batch.chunk``, which is measured), and what was chosen.

    Args:
        config: what recipe and user said.
        images: the training images.
        device: where it will run.
        pretrained: whether the network starts from trained weights.

    Raises:
        DataError: images of which nothing can be learned: one class, or no class with two images.
    """
    _refuse_hopeless(images)
    choices: list[Choice] = []

    def choose(part: str, name: str, value: Any, reason: str) -> None:
        nonlocal config
        choices.append(Choice(f"{part}.{name}", value, reason))
        config = _with(config, part, name, value)

    if config.model.freeze == "auto":
        choose("model", "freeze", *_freeze(config, device, pretrained))
    frozen = config.model.freeze != "none"
    if config.model.whitening == "auto":
        choose("model", "whitening", *_whitening(config, frozen, pretrained))
    if config.model.shrinkage == "auto":
        config = _with(config, "model", "shrinkage", SHRINKAGE if config.model.whitening == "all" else 0.0)
    if config.data.augmentation == "auto":
        choose("data", "augmentation", *_augmentation(config, frozen))
    if config.batch.size == "auto":
        choose("batch", "size", *_batch_size(config, images, device, frozen))
    if config.optimizer.lr == "auto":
        choose("optimizer", "lr", *_learning_rate(frozen, pretrained))
    if config.run.epochs == "auto" and config.run.steps is None:
        choose("run", "epochs", *_epochs(config, images, device, frozen))
    elif config.run.epochs == "auto":
        config = _with(config, "run", "epochs", None)
    if config.run.evaluate_every == "auto":
        every = max(1, config.run.epochs // 20) if isinstance(config.run.epochs, int) else 1
        if config.run.watch_test or config.data.validation != "none":
            choose("run", "evaluate_every", every, "about twenty evaluations, an epoch apart at least")
        else:
            config = _with(config, "run", "evaluate_every", every)  # nothing is evaluated: nothing to explain
    return config, choices


def _with(config: Config, part: str, name: str, value: Any) -> Config:
    return replace(config, **{part: replace(getattr(config, part), **{name: value})})


def _refuse_hopeless(images: ImageSet) -> None:
    """Nothing can be ranked without an image to find and one not to find."""
    sizes = images.class_sizes[images.class_sizes > 0]
    if len(sizes) < 2:
        raise DataError(
            f"{images.name}: {len(images):,} training images of {len(sizes)} class leave nothing to tell apart: give "
            "images of at least two classes for training, a folder each."
        )
    if sizes.max() < 2:
        raise DataError(
            f"{images.name}: each of the {len(sizes):,} training classes has a single image, so there is nothing to find "
            "again: give classes of two images and more (four is what the paper uses)."
        )


def _freeze(config: Config, device: torch.device, pretrained: bool) -> tuple[str, str]:
    if device.type != "cpu":
        return "none", "a GPU can fine-tune the whole network"
    if not pretrained:
        return "none", "the network starts from random numbers, so all of it must learn"
    if config.data.augmentation not in ("auto", "none"):
        return "none", f"data.augmentation={config.data.augmentation} was asked for, and cached features cannot have it"
    return "pooling", (
        "on a CPU only the last layer is trained, on features computed once; fine-tune the whole network with "
        "--freeze none, at seconds a step"
    )


def _whitening(config: Config, frozen: bool, pretrained: bool) -> tuple[str | None, str]:
    if config.model.dim is None:
        return None, "there is no last layer"
    if not pretrained:
        return None, "features of a network with random weights say nothing about classes"
    if frozen or config.run.steps == 0:
        return "all", "the last layer starts as a whitening of the training classes, not as random numbers"
    return None, "the whole network is trained"


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
    each, sizes = config.batch.samples_per_class, images.class_sizes[images.class_sizes > 0]
    enough = int((sizes >= each).sum())
    usable = enough if config.batch.small_classes == "drop" else len(sizes)
    limits = [
        (usable, "all classes that can be used"),
        (PAPER_BATCH // each, "the paper's batch for large sets")
        if device.type != "cpu" or frozen
        else (CPU_BATCH // each, "about what a CPU can afford per step"),
    ]
    if not frozen and (held := _images_in_memory(config)) is not None:
        limits.append((held // each, f"as many as {HOST_SHARE:.0%} of this machine's memory hold"))
    classes, reason = min(limits, key=lambda limit: limit[0])
    classes = max(classes, 1)
    if config.batch.small_classes == "repeat" and enough < len(sizes):
        reason += f"; classes of fewer than {each} images ({len(sizes) - enough:,}) repeat theirs"
    return classes * each, f"{classes:,} classes × {each} images, {reason}"


def _images_in_memory(config: Config) -> int | None:
    """How many training images fit beside as many that are being read; None where that is not known."""
    # All of it, not what is free now: every process must choose the same, and so must the next run.
    memory = total_memory()
    if memory is None:
        return None
    side = config.model.image_size or find(config.model.init).size
    return int(memory * HOST_SHARE / (2 * 3 * side * side))


def _learning_rate(frozen: bool, pretrained: bool) -> tuple[float, str]:
    if frozen:
        # Measured on grocery photos (docs/training.md): 1e-3 unlearns in 50 steps what pre-trained features knew.
        return 1e-4, "features that are good already are to be changed with care; validation classes may choose another"
    if not pretrained:
        return 1e-3, "the network starts from random numbers"
    return 1e-4, "the released setting for fine-tuning a ResNet"


def _epochs(config: Config, images: ImageSet, device: torch.device, frozen: bool) -> tuple[int, str]:
    if config.batch.size == "all":
        return HEAD_STEPS, f"{HEAD_STEPS} steps, one an epoch"
    size = config.batch.size if isinstance(config.batch.size, int) else PAPER_BATCH
    batches = config.batch.batches_per_epoch or max(len(images) // size, 1)
    if frozen:
        wanted, fewest, most = HEAD_STEPS, 5, HEAD_STEPS
    else:
        wanted, fewest, most = STEPS.get(device.type, STEPS["cuda"]), FEWEST_EPOCHS, MOST_EPOCHS
    epochs = min(max(-(-wanted // batches), fewest), most)
    return epochs, f"about {epochs * batches:,} steps, {epochs * batches * size:,} images seen"
