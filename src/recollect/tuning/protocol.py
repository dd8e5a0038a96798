"""The paper's protocol as configurations: the classes that a trial trains and validates on, and the final training.

All configurations of a search are made here, from the training split only: ``read_protocol`` runs where ``only_splits``
refuses everything else, and ``trial_config`` never sets a test set to watch. Only ``final.py`` uses the test set,
after the choice is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from recollect.common.errors import ConfigError, InputError
from recollect.common.files import sha256
from recollect.config.automatic import choose_device, is_pretrained, settle
from recollect.config.resolve import CHANGEABLE, as_mapping, with_settings
from recollect.config.schema import Config
from recollect.data import ImageSet, class_disjoint_split, only_splits
from recollect.data.registry import find_source
from recollect.data.sources.revisited import SFM_NAME
from recollect.evaluation.metrics import TRACKED_KS
from recollect.models.weight_files import obtain_weights
from recollect.models.zoo import find
from recollect.training.batches import make_sampler
from recollect.training.build import load_split, make_loss
from recollect.tuning.space import Parameter, Space, as_settings, corners, default_space, read_space

LOCAL = (
    "model.weights", "run.tensorboard", "run.loggers", "run.logger_options", "run.checkpoint_minutes",
    "run.checkpoint_steps",
)  # fmt: skip
"""Settings that may differ between machines that share a study, besides those of ``CHANGEABLE``: they affect where and how fast
a trial runs, not its result. The starting weights of the network are part of a study's identity by their content."""

MEASURED = (*(f"r@{k}" for k in TRACKED_KS), "map@r")
"""Possible values of ``run.select`` when validating on held-out classes."""


@dataclass(frozen=True)
class Protocol:
    """A search with all settings resolved.

    Attributes:
        base: the settings that ``recollect train`` would use with the recipe, without any ``"auto"``.
        epochs: its number of epochs.
        space: the search space.
        batch: images per batch of a trial; half of the classes may be too few for the recipe's batch.
        train, validation: classes and images of the two halves.
        fingerprints: of the two halves.
        weights: SHA-256 of the file of the starting weights, ``"none"`` for random weights.
        remarks: changes that the protocol makes to the recipe, one sentence each.
    """

    base: Config
    epochs: int
    space: Space
    batch: int | str
    train: tuple[int, int]
    validation: tuple[int, int]
    fingerprints: Mapping[str, str]
    weights: str = "none"
    remarks: tuple[str, ...] = field(default=())

    def identity(self) -> dict[str, Any]:
        """The values that must be equal for two processes to work on one study."""
        base = as_mapping(self.base)
        for key in (*CHANGEABLE, *LOCAL):
            *groups, name = key.split(".")
            reduce(dict.__getitem__, groups, base).pop(name, None)
        base.pop("published")
        plain: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "recipe": self.base.name,
                    "space": {name: str(parameter) for name, parameter in self.space.items()},
                    "settings": base,
                    "images": dict(self.fingerprints),
                    "weights": self.weights,
                }
            )
        )
        return plain


def read_protocol(config: Config, space: list[str] | None = None) -> Protocol:
    """Resolve a recipe for a search. Reads only the list of the training split.

    Args:
        config: recipe and user's settings.
        space: the search space, see ``read_space``; the default is around the recipe.

    Raises:
        ConfigError: settings that would let the search see test images, or that contradict each other.
        InputError: too few classes.
        WeightsError: the starting weights are missing.
    """
    _refuse(config)
    config, remarks = _validated_by_classes(config)
    with only_splits(config.data.train_split):
        images = load_split(config.data, config.data.train_split)
    if images.num_classes < 4:
        raise InputError(
            f"{images.name}: {images.num_classes} training classes are too few to tune with; at least four are needed, two "
            "for training and two for validation."
        )
    train, validation = class_disjoint_split(images, "paper")
    base, few = _settled(config, images)
    remarks += few
    epochs = _epochs(base, images)
    chosen = read_space(space or (), default_space(base, epochs))
    longest = _longest(chosen["epochs"])
    every = config.run.evaluate_every if isinstance(config.run.evaluate_every, int) else max(1, longest // 20)
    base = replace(base, run=replace(base.run, evaluate_every=every))
    batch, smaller = _search_batch(base, train)
    remarks += smaller
    if base.optimizer.schedule != "milestones":
        remarks.append(
            f"The recipe's {base.optimizer.schedule} schedule is replaced by milestones: decay steps and size are searched."
        )
    protocol = Protocol(
        base,
        epochs,
        chosen,
        batch,
        (train.num_classes, len(train)),
        (validation.num_classes, len(validation)),
        {"train": train.fingerprint, "validation": validation.fingerprint},
        _weights(config),
        tuple(remarks),
    )
    for values in corners(chosen):
        _try_out(trial_config(protocol, as_settings(values)), train)
    return protocol


def trial_config(protocol: Protocol, settings: Mapping[str, Any]) -> Config:
    """A trial: trains on the first half of the training classes, validates on the second; the test set is not used."""
    fixed = {"data.validation": "paper", "run.watch_test": False, "run.verdict": False, "batch.size": protocol.batch}
    return with_settings(protocol.base, {**fixed, **settings})


def final_config(protocol: Protocol, settings: Mapping[str, Any], epochs: int) -> Config:
    """The training on all training classes with the chosen settings, for the number of epochs found best.

    Later milestones are left out; the batch size is the recipe's.
    """
    epochs = max(1, epochs)
    kept = [milestone for milestone in settings["optimizer.milestones"] if milestone < epochs]
    fixed = {
        "data.validation": "none",
        "run.watch_test": False,
        "run.verdict": False,
        "run.epochs": epochs,
        "optimizer.milestones": kept,
    }
    return with_settings(protocol.base, {**settings, **fixed})


def _refuse(config: Config) -> None:
    data = config.data
    if config.run.epochs == 0:
        raise ConfigError(f"{config.name} trains nothing (run.epochs 0), so there is nothing to tune.")
    if config.run.steps == 0:
        raise ConfigError("run.steps 0 trains nothing, so there is nothing to tune: remove this setting.")
    if config.run.watch_test:
        raise ConfigError("run.watch_test: a search does not use the test set. Remove this setting.")
    if data.validation == "random":
        raise ConfigError(
            "data.validation=random: the search validates on the second half of the classes. Remove this setting."
        )
    tests = {data.test_split, "all", *find_source(data.name).test_splits}
    if data.train_split in tests:
        raise ConfigError(
            f"data.train_split {data.train_split!r} contains test classes, which a search must not see: use 'train'."
        )


def _validated_by_classes(config: Config) -> tuple[Config, list[str]]:
    """The recipe with validation on held-out classes and a metric that can be computed on them; and remarks."""
    select, remarks = config.run.select, []
    if config.data.validation == SFM_NAME:
        remarks.append(
            "The search validates on the second half of the training classes instead of the queries of sfm120k."
        )
    if select == "map" or select.startswith("mp@"):
        remarks.append(f"The recipe's {select} needs queries with ground truth: the search selects by r@1.")
        select = "r@1"
    elif select not in MEASURED:
        raise ConfigError(
            f"run.select {select!r} is not computed on held-out classes: choose one of {', '.join(MEASURED)}."
        )
    data = replace(config.data, validation="none", validation_root=None)
    return replace(config, data=data, run=replace(config.run, select=select)), remarks


def _settled(config: Config, images: ImageSet) -> tuple[Config, list[str]]:
    """The recipe without any ``"auto"``, and a remark if ``recollect train`` would take no step with so few images."""
    device, pretrained = choose_device(config.run.device), is_pretrained(config.model)
    base, choices = settle(config, images, device, pretrained)
    if base.run.steps != 0:
        return base, []
    # With a learning rate that is set, the length is that of a training.
    lasting = replace(config, optimizer=replace(config.optimizer, lr=base.optimizer.lr))
    reason = next(choice.reason for choice in choices if choice.key == "run.steps")
    return settle(lasting, images, device, pretrained)[0], [
        f"recollect train would take no step here ({reason.partition(';')[0]}): compare the test with that of recollect "
        "train."
    ]


def _weights(config: Config) -> str:
    """Hash of the starting weights, independent of their place on this machine."""
    model, row = config.model, find(config.model.init)
    if row.outside is not None:
        return f"{row.name} {row.outside.sha256}"
    return sha256(obtain_weights(row, model.weights, download=model.download)) if is_pretrained(model) else "none"


def _longest(epochs: Parameter) -> int:
    """The largest number of epochs that can be drawn."""
    values = epochs.choices or epochs.ends
    whole = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 1]
    if len(whole) < len(values):
        raise ConfigError(f"--space epochs={epochs}: epochs must be whole numbers, 1 or more.")
    return max(whole)


def _try_out(config: Config, train: ImageSet) -> None:
    """Build the cheap parts of a trial, so that impossible settings are refused before a study begins."""
    find(config.model.init)
    make_sampler(config, train.labels)
    dim = config.model.dim if isinstance(config.model.dim, int) else 128
    make_loss(config, train.num_classes, dim, train.coarse_of_classes)


def _epochs(base: Config, images: ImageSet) -> int:
    """The recipe's length in epochs of all training classes."""
    if isinstance(base.run.epochs, int):
        return base.run.epochs
    sampler = make_sampler(base, images.labels)
    sampler.set_epoch(0)
    return max(1, round((base.run.steps or 1) / len(sampler)))


def _search_batch(base: Config, train: ImageSet) -> tuple[int | str, list[str]]:
    """The batch of a trial, and a remark if it is not the recipe's."""
    size, each = base.batch.size, base.batch.samples_per_class
    if not isinstance(size, int):
        return size, []
    least = each if base.batch.small_classes == "drop" else 1
    usable = int((train.class_sizes >= least).sum())
    if usable < 2:
        raise InputError(
            f"{train.name}: {usable} of the {train.num_classes} training classes of the search have {least} images or "
            "more; at least two are needed. Set batch.small_classes=repeat or a smaller batch.samples_per_class."
        )
    if size <= usable * each:
        return size, []
    return usable * each, [
        f"Batches of {size:,} images need {size // each:,} classes, but the search trains on {usable:,}: its batches "
        f"have {usable * each:,} images; the final training uses {size:,}."
    ]
