"""Values for ``"auto"``: settings chosen from the data and the machine, each with the reason that the plan prints.

Called once before a run is written, so ``config.yaml`` holds the chosen values. To make another field automatic, add a
function that returns its value and the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from recollect.common.errors import DataError
from recollect.common.machine import total_memory, usable_device, usable_precision
from recollect.common.text import number_of
from recollect.config.schema import Config, ModelConfig
from recollect.data import ImageSet, class_disjoint_split
from recollect.models.zoo import find

PAPER_BATCH = 4000  # the paper's for iNaturalist, SOP and VehicleID
CPU_BATCH = 392  # the paper's for Cars196, and about what two cores can compute in an acceptable time per step
HOST_SHARE = 0.25
"""Share of the machine's or container's memory for the images of a batch and those being read for the next one."""
STEPS = {"cuda": 500, "cpu": 250}
"""Target number of steps for fine-tuning. The paper trains 500 batches on GLDv1, its released settings train more elsewhere.
The number of epochs has an upper limit, because images of a small set would be seen hundreds of times, and a lower limit
for large sets."""
FEWEST_EPOCHS, MOST_EPOCHS = 10, 100
HEAD_STEPS = 150
"""Steps on cached features, which take seconds at most."""
SHRINKAGE = 0.2
"""Shrinkage of a whitening if there are too few validation classes to choose it."""
FEWEST_CLASSES, FEWEST_QUERIES = 6, 40
"""Validation classes and images below which shrinkage, learning rate and length of a last layer are not chosen on them."""
WHOLE_SET = 3e8
"""Largest number of comparisons for which a step on cached features uses all images. Each positive of each query is compared
with every image, N · Σ n² comparisons for classes of n images, at about 2 ns each on one core."""


@dataclass(frozen=True)
class AutoSetting:
    """An automatic setting, its value, and the reason."""

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.reason}"


def choose_device(name: str) -> torch.device:
    """The device for ``run.device``.

    Raises:
        ConfigError: the device does not exist.
    """
    return usable_device(name, "run.device", training=True)


def is_pretrained(model: ModelConfig) -> bool:
    """Whether the network starts from trained weights."""
    return bool(find(model.init).pretrained) and model.weights != "none"


def resolve_auto(
    config: Config, images: ImageSet, device: torch.device, pretrained: bool
) -> tuple[Config, list[AutoSetting]]:
    """``config`` with every ``"auto"`` replaced (except ``batch.chunk``, which is measured), and the choices made.

    Args:
        config: the settings from the recipe and the user.
        images: the training images.
        device: where it will run.
        pretrained: whether the network starts from trained weights.

    Raises:
        DataError: nothing can be learned from the images: one class, or no class with two images.
    """
    _refuse_hopeless(images, validated=config.data.validation in ("paper", "random"))
    choices: list[AutoSetting] = []

    def choose(part: str, name: str, value: Any, reason: str = "") -> None:
        """Set it; a choice without a reason needs no explanation, since the value is not used or is the only one."""
        nonlocal config
        choices.extend([AutoSetting(f"{part}.{name}", value, reason)] if reason else [])
        config = replace(config, **{part: replace(getattr(config, part), **{name: value})})

    if config.model.freeze == "auto":
        choose("model", "freeze", *_freeze(config, device, pretrained))
    frozen = config.trains_on_features
    if config.model.whitening == "auto":
        choose("model", "whitening", *_whitening(config, frozen, pretrained))
    if (dim := _whole_dim(config, images)) is not None:
        choose("model", "dim", *dim)
    few = too_few(config, images) if config.model.whitening == "all" else ""
    if config.model.shrinkage == "auto":
        choose("model", "shrinkage", SHRINKAGE if config.model.whitening == "all" else 0.0, few)
    if config.model.stages == "auto":  # perhaps more, chosen from features (training/head.py)
        choose("model", "stages", 0)
    if config.data.augmentation == "auto":
        choose("data", "augmentation", *_augmentation(config, frozen))
    if config.batch.size == "auto":
        choose("batch", "size", *_batch_size(config, images, device, frozen))
    # A user who set the learning rate or the length wants training.
    is_open = config.optimizer.lr == "auto" and config.run.epochs == "auto" and config.run.steps is None
    if few and config.model.freeze == "pooling" and is_open:
        choose("run", "steps", 0, no_step_for_few(few))
    if config.optimizer.lr == "auto":
        rate, reason = _learning_rate(frozen, pretrained)
        choose("optimizer", "lr", rate, "" if config.run.steps == 0 else reason)
    if config.run.epochs == "auto":
        choose("run", "epochs", *(_epochs(config, images, device, frozen) if config.run.steps is None else [None]))
    if config.run.precision == "auto":
        precision = usable_precision("auto", device)
        fast = "this GPU computes with bf16 several times as fast as with fp32; the loss stays in fp32"
        why = fast if precision == "bf16" else "this device does not compute with bf16"
        choose("run", "precision", precision, "" if device.type == "cpu" else why)
    if config.run.evaluate_every == "auto":
        every = max(1, config.run.epochs // 20) if isinstance(config.run.epochs, int) else 1
        evaluated = config.run.watch_test or config.data.validation != "none"
        choose(
            "run", "evaluate_every", every, "about twenty evaluations, at least one epoch apart" if evaluated else ""
        )
    return config, choices


def _refuse_hopeless(images: ImageSet, validated: bool) -> None:
    """Ranking needs at least one positive and one negative. ``validated``: half of the classes are held out for validation."""
    sizes = images.class_sizes[images.class_sizes > 0]
    if len(sizes) < 2:
        held_out = images.facts.get("split", {}).get("held_out_classes", 0)
        others = ["half of the training classes are held out for validation"] * validated
        others += [f"{number_of(held_out, 'other class is/other classes are')} held out for testing"] * bool(held_out)
        why = f" ({', and '.join(others)})" if others else ""
        # Every verb that trains has --set.
        remedies = {0: "", 1: "" if validated else ", or hold none out with --set data.train_split=all"}
        fewer = remedies.get(held_out, ", or hold out fewer for testing with --set data.options.test_share=0.25")
        raise DataError(
            f"{images.name}: the training images belong to one class{why}, so there is nothing to distinguish: give images "
            f"of at least {'four' if validated else 'two'} classes for training, one folder per class{fewer}."
        )
    if sizes.max() < 2:
        raise DataError(
            f"{images.name}: each of the {len(sizes):,} training classes has a single image, so there is nothing to "
            "retrieve: give at least two images per class (the paper uses four)."
        )


def _freeze(config: Config, device: torch.device, pretrained: bool) -> tuple[str, str]:
    if config.model.lora is not None:
        return "none", "LoRA trains updates of the attention"
    if config.run.shard or config.run.activation_checkpointing:
        return "none", "the settings that save memory are for the whole network"
    if device.type != "cpu":
        return "none", "a GPU can fine-tune the whole network"
    if not pretrained:
        return "none", "the network starts from random weights, so all of it must be trained"
    if config.data.augmentation not in ("auto", "none"):
        return "none", f"data.augmentation={config.data.augmentation} is set, which cached features do not allow"
    return "pooling", (
        "on a CPU only the last layer is trained, on features computed once; fine-tune the whole network with "
        "--freeze none, which takes seconds per step"
    )


def _whitening(config: Config, frozen: bool, pretrained: bool) -> tuple[str | None, str]:
    if config.model.dim is None:
        return None, "there is no last layer"
    if not pretrained:
        return None, "features of a network with random weights do not distinguish classes"
    if frozen or config.run.steps == 0:
        return "all", "the last layer starts as a whitening of the training classes, not at random"
    return None, "the whole network is trained" if config.model.freeze == "none" else "the upper layers are trained too"


def _whole_dim(config: Config, images: ImageSet) -> tuple[int, str] | None:
    """The dimension of the features, if they or the images are fewer than the directions to choose; None otherwise.

    Measured on groceries with 2 to 12 classes of 10 photos: a whitening that keeps 512 of 1,280 directions loses 1 to
    2.5 points of r@1 on unseen classes; one that keeps all loses 0 to 1.2 and gains 2.5 to 4.5 points of mAP@R.
    """
    if config.model.whitening != "all" or config.model.dim != "default":
        return None
    row = find(config.model.init)
    if row.feature_dim < row.dim:
        return row.feature_dim, f"a whitening of {row.feature_dim} features has no more directions"
    if not len(images) < row.dim < row.feature_dim:
        return None
    reason = (
        f"{len(images):,} training images are too few to choose {row.dim} directions: the features keep their length"
    )
    return row.feature_dim, reason


def too_few(config: Config, images: ImageSet) -> str:
    """Why nothing about a last layer can be chosen on classes held out from the training ``images``; empty if it can."""
    if images.num_classes >= 2 * FEWEST_CLASSES:
        smallest = np.sort(images.class_sizes)[: images.num_classes // 2].sum()  # splitting a large set takes a second
        if smallest >= FEWEST_QUERIES:
            return ""
        if len(class_disjoint_split(images, "random", config.run.seed)[1]) >= FEWEST_QUERIES:
            return ""
    return few_photos(len(images), images.num_classes)


def few_photos(images: int, classes: int) -> str:
    """A reason for choosing nothing."""
    return f"{images:,} photos of {number_of(classes, 'training class')} are too few to choose it on"


def no_step_for_few(few: str) -> str:
    """The reason for taking no step where ``few`` says that nothing can be chosen.

    With 7 training classes of groceries, closed form and 150 steps ended 6.8 points of r@1 below the features; with 8,
    the steps lost 1 point of mAP@R after the closed form. Only unseen classes could have told.
    """
    return f"{few}, and steps on so few classes rather lose than gain on unseen ones; set --steps to train anyway"


def _augmentation(config: Config, frozen: bool) -> tuple[str, str]:
    if frozen:
        return "none", "features of the frozen part are computed once"
    if config.model.resize is None:
        return "whole", "model.resize null keeps images whole"
    if config.data.name == "glyphs":
        return "glyph", "characters are rotated and shifted slightly, never mirrored or cropped"
    return "crop", "random resized crops, as in the paper's released code"


def _batch_size(config: Config, images: ImageSet, device: torch.device, frozen: bool) -> tuple[int | str, str]:
    comparisons = len(images) * float((images.class_sizes.astype(float) ** 2).sum())
    if frozen and comparisons <= WHOLE_SET:
        return "all", f"all {len(images):,} training images at once: features are small"
    each, sizes = config.batch.samples_per_class, images.class_sizes[images.class_sizes > 0]
    enough = int((sizes >= each).sum())
    usable = enough if config.batch.small_classes == "drop" else len(sizes)
    limits = [
        (usable, "all usable classes"),
        (PAPER_BATCH // each, "the paper's batch for large sets")
        if device.type != "cpu" or frozen
        else (CPU_BATCH // each, "about what a CPU can compute per step"),
    ]
    # Twice, in use and being read for the next batch. The total memory, not what is free now: every process, and the next
    # run, must choose the same value.
    if not frozen and (memory := total_memory()) is not None:
        side = config.model.image_size or find(config.model.init).size
        fitting = int(memory * HOST_SHARE / (2 * 3 * side * side))
        limits.append((fitting // each, f"as many as fit in {HOST_SHARE:.0%} of this machine's memory"))
    classes, reason = min(limits, key=lambda limit: limit[0])
    classes = max(classes, 1)
    if config.batch.small_classes == "repeat" and enough < len(sizes):
        reason += f"; images of the {len(sizes) - enough:,} classes with fewer than {each} are repeated"
    return classes * each, f"{classes:,} classes × {each} images, {reason}"


def _learning_rate(frozen: bool, pretrained: bool) -> tuple[float, str]:
    if frozen:
        # Measured on grocery photos (docs/training.md): at 1e-3, 50 steps make pre-trained features worse.
        return 1e-4, "a small rate for features that are already good; validation classes may choose another"
    if not pretrained:
        return 1e-3, "the network starts from random weights"
    return 1e-4, "the released setting for fine-tuning a ResNet"


def _epochs(config: Config, images: ImageSet, device: torch.device, frozen: bool) -> tuple[int, str]:
    if config.batch.size == "all":
        return HEAD_STEPS, f"{HEAD_STEPS} steps, one per epoch"
    size = config.batch.size if isinstance(config.batch.size, int) else PAPER_BATCH
    batches = config.batch.batches_per_epoch or max(len(images) // size, 1)
    if frozen:
        target, fewest, most = HEAD_STEPS, 5, HEAD_STEPS
    else:
        target, fewest, most = STEPS.get(device.type, STEPS["cuda"]), FEWEST_EPOCHS, MOST_EPOCHS
    epochs = min(max(-(-target // batches), fewest), most)
    return epochs, f"about {epochs * batches:,} steps, {epochs * batches * size:,} images seen"
