"""Initialises the last layer as a whitening of training images, and optionally trains it alone on stored features.

For instance search the whitening is learned from pairs (``inference/whitening.py``): from one class-balanced draw of
the training set, since the images used were never published, or from SfM-120k's lists. ``"all"`` uses every training image,
by the covariance within classes (``models/whitening.py``): a closed form that needs no step. Features are stored as they
are computed (``inference/store.py``), so a run that is killed meanwhile continues from there; the layer is a function
of the features and the seed, and is part of the first checkpoint.

``choose_start`` tries shrinkages and learning rates on classes held out from the training classes; test classes are not
used. ``train_head`` is a minimal training loop: the same batches, loss, optimizer and schedule as ``trainer.py``, without
files.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError
from recollect.config.automatic import FEWEST_CLASSES, FEWEST_QUERIES, Choice, few_photos, no_step_for_few, too_few
from recollect.config.schema import Config
from recollect.data import ClassBalancedSampler, ImageSet, class_disjoint_split
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.evaluate import measure_labelled
from recollect.inference.vectors import head_inputs, part_rows
from recollect.inference.whitening import WhiteningSet
from recollect.models import Embedder, whitening_from_classes
from recollect.models.pooling import unit
from recollect.models.whitening import ClassStatistics, Whitening, class_statistics
from recollect.training.batches import FeatureFeed, make_sampler
from recollect.training.build import Training, make_loss, seeded
from recollect.training.optimizer import Position, learning_rate_factor, optimizer_of

logger = logging.getLogger(__name__)
SHRINKAGES = (0.1, 0.2, 0.3, 0.5, 0.8, 0.9, 0.95, 1.0)
"""Tried for the closed form; 1 keeps directions without whitening them."""
RATES = (3e-5, 1e-4, 3e-4)
LONGEST, LARGEST = 200, 392
"""Maximum number of steps and of images per step of a trial: enough to find the order of a learning rate."""


@dataclass(frozen=True)
class HeadData:
    """Pooled features N × D of labelled images."""

    pooled: Tensor
    labels: NDArray[np.int64]

    def of(self, chosen: NDArray[np.bool_]) -> HeadData:
        """Some of the images, classes renumbered."""
        _, labels = np.unique(self.labels[chosen], return_inverse=True)
        return HeadData(self.pooled[torch.from_numpy(chosen).to(self.pooled.device)], labels.astype(np.int64))

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.labels.max(initial=-1)) + 1


def train_head(
    head: nn.Module,
    dim: int,
    data: HeadData,
    config: Config,
    lr: float,
    steps: int,
    advance: Callable[[], object] = lambda: None,
) -> None:
    """Train ``head`` (pooled features to embeddings) for ``steps``; every call gives the same result.

    Args:
        head: the part of an embedder after the pooling.
        dim: dimension of its embeddings.
        data: the training images.
        config: loss, batches, optimizer and schedule.
        lr: overrides the configuration's learning rate.
        steps: number of steps.
        advance: called after each step.
    """
    device = next(head.parameters()).device
    pooled, labels = data.pooled.to(device), torch.from_numpy(data.labels).to(device)
    loss = seeded(make_loss(config, data.classes, dim), config.run.seed).to(device)
    optimizer = config.optimizer
    groups = [
        {
            "params": list(head.parameters()),
            "lr": lr * optimizer.head_multiplier,
            "weight_decay": optimizer.weight_decay,
        }
    ]
    if own := list(loss.parameters()):
        groups.append({"params": own, "lr": lr * optimizer.loss_multiplier, "weight_decay": 0.0})
    rates = [float(group["lr"]) for group in groups]  # type: ignore[arg-type]
    stepper = optimizer_of(optimizer, groups)
    sampler = make_sampler(config, data.labels)
    head.train()
    done = epoch = 0
    while done < steps:
        sampler.set_epoch(epoch)
        batches = max(len(sampler), 1)
        for number, indices in enumerate(sampler):
            factor = learning_rate_factor(optimizer, Position(epoch + number / batches, done / steps, 1 / batches))
            for group, rate in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            chosen = torch.from_numpy(indices).to(device)
            value = loss(head(pooled[chosen]), labels[chosen])
            stepper.zero_grad(set_to_none=True)
            value.backward()
            stepper.step()
            advance()
            done += 1
            if done == steps:
                break
        epoch += 1


@dataclass(frozen=True)
class HeadResult:
    """Metrics of a start on validation classes."""

    r1: float
    map_at_r: float

    @property
    def merit(self) -> float:
        """Both metrics count: r@1 of a few classes is coarse and near 100 %; mAP@R uses every positive."""
        return self.r1 + self.map_at_r

    def __str__(self) -> str:
        return f"r@1 {100 * self.r1:.1f}, mAP@R {100 * self.map_at_r:.1f}"


def choose_start(training: Training, tell: Callable[[str], None] = lambda line: None) -> Training:
    """``training`` with the shrinkage and the learning rate that are best on classes held out from the training classes.

    Only what was left ``"auto"`` is chosen, only on features that the training needs anyway, and only where the classes
    suffice; otherwise the training comes back as it is. Behind features of a frozen network all of it is chosen; where
    more than the last layer is trained, only the shrinkage of its start. ``tell`` receives a line for each choice, which is
    logged too.
    """
    config, team, found = training.config, training.machine.team, list[Choice]()
    if not training.left_open or not (_head_only(training) or config.model.whitening == "all"):
        return training
    team.first_alone(lambda: found.extend(_chosen(training)))  # the features perhaps take hours
    choices: list[Choice] = team.from_first(found)
    batches = training.batches
    for choice in choices:
        part, name = choice.key.split(".")
        more = {"epochs": None} if choice.key == "run.steps" else {}
        config = replace(config, **{part: replace(getattr(config, part), **{name: choice.value}, **more)})
        if choice.key == "run.steps":
            batches = replace(batches, steps=choice.value)
        if choice.key == "model.dim":
            training.network.embedder.resize_head(choice.value)
    scale = float(config.optimizer.lr) / float(training.config.optimizer.lr)
    for group in training.trained.optimizer.param_groups:
        group["base_lr"] *= scale
        group["lr"] *= scale
    for choice in choices if team.rank == 0 else []:
        line = f"chosen     {choice}"
        logger.info(line)
        tell(line)
    kept = [choice for choice in training.choices if choice.key not in {new.key for new in choices}]
    return replace(training, config=config, choices=[*kept, *choices], batches=batches, left_open=frozenset())


def _head_only(training: Training) -> bool:
    """Whether nothing but the last layer is trained, on features that are at hand."""
    return training.config.model.freeze == "pooling" and isinstance(training.batches.feed, FeatureFeed)


def _trial_steps(training: Training) -> int:
    """Number of steps of a trial with one learning rate; 0 where none is chosen."""
    if "optimizer.lr" not in training.left_open or not _head_only(training):
        return 0
    # Otherwise the loss cannot be computed for fewer classes.
    plain = training.given_loss is None and training.sets.train.coarse_labels is None
    return min(training.batches.steps, LONGEST) if plain else 0


def all_trial_steps(training: Training) -> int:
    """Number of steps that choosing a learning rate takes, each on half of the training classes."""
    return 0 if too_few(training.config, training.sets.train) else len(RATES) * _trial_steps(training)


def _pooled(training: Training) -> tuple[Tensor, NDArray[np.bool_]]:
    """What the pooling makes of the training images, N × D on the embedder's device, and which of them could be read."""
    config, embedder, feed = training.config, training.network.embedder, training.batches.feed
    if _head_only(training) and isinstance(feed, FeatureFeed):
        rows, readable = feed.features, feed.readable
    else:
        policy = config.data.on_bad_image
        rows = part_rows(embedder, training.sets.train, frozen=config.model.freeze, on_bad_image=policy).rows
        readable = np.asarray(np.isfinite(rows[:, 0]))
    return torch.from_numpy(np.asarray(rows)).to(embedder.device), readable


def _chosen(training: Training) -> list[Choice]:
    """The choice for each automatic setting."""
    config, embedder, images = training.config, training.network.embedder, training.sets.train
    whitened = config.model.whitening == "all"
    choosing = training.left_open & (
        {"model.shrinkage", "optimizer.lr"} if _head_only(training) else {"model.shrinkage"}
    )
    if not choosing:
        return []
    if too_few(config, images):  # with a whitening, ``settle`` has chosen already
        return []
    names = set(class_disjoint_split(images, "random", config.run.seed)[0].names)
    fitting = np.array([name in names for name in images.names])
    pooled, readable = _pooled(training)
    data = HeadData(pooled, images.labels)
    fit, validation = data.of(fitting & readable), data.of(~fitting & readable)
    if min(fit.classes, validation.classes) < FEWEST_CLASSES or len(validation.labels) < FEWEST_QUERIES:
        few = few_photos(int(readable.sum()), fit.classes + validation.classes)
        return _for_few(training, choosing, few)
    by = f"on {validation.classes:,} held-out training classes ({len(validation.labels):,} queries)"
    chosen: list[Choice] = []
    start = embedder
    features = _measured(embedder.head.inputs(validation.pooled), validation.labels)
    if whitened:
        with torch.no_grad():
            statistics = class_statistics(embedder.head.inputs(fit.pooled), torch.from_numpy(fit.labels))
        if "model.shrinkage" in choosing:
            tried = {
                value: measured_head(started_embedder(embedder, statistics, value), validation) for value in SHRINKAGES
            }
            best = max(tried, key=lambda value: tried[value].merit)
            told = f"{tried[best]}; {features} of the features as they are"
            chosen.append(Choice("model.shrinkage", best, f"the best of {_list(SHRINKAGES)} {by}: {told}"))
        start = started_embedder(embedder, statistics, float(chosen[0].value if chosen else config.model.shrinkage))
    untrained = measured_head(start, validation)
    reached = [untrained]
    if steps := _trial_steps(training):
        small = _smaller(config, fit)
        trials = {}
        with ProgressLine("choosing the learning rate", len(RATES) * steps, "steps") as line:
            for rate in RATES:
                trial = copy.deepcopy(start)
                train_head(trial.split("pooling")[1], embedder.dim, fit, small, rate, steps, line.advance)
                trials[rate] = measured_head(trial, validation)
        rate = max(trials, key=lambda value: trials[value].merit)
        reached.append(trials[rate])
        told = f"{trials[rate]}; {untrained} before the first step"
        chosen.append(Choice("optimizer.lr", rate, f"the best of {_list(RATES)} {by}: {told}"))
        if whitened and "run.epochs" in training.left_open and untrained.merit >= trials[rate].merit:
            chosen.append(
                Choice(
                    "run.steps", 0, f"no number of steps improves on the whitening {by}; set --steps to train anyway"
                )
            )
    if (
        "model.shrinkage" in choosing
        and features.merit > max(each.merit for each in reached)
        and _may_keep_features(training)
    ):
        reason = f"the features as they are do better than any last layer {by}: {features}"
        return [
            Choice("model.whitening", "identity", reason),
            Choice("model.dim", embedder.feature_dim, "the features keep their length"),
            Choice("run.steps", 0, "nothing is trained; set --steps to train anyway"),
        ]
    return chosen


def _may_keep_features(training: Training) -> bool:
    """Whether the features as they are may be the result: nothing but ``"auto"`` asks for another length or for steps."""
    config = training.config
    length_is_open = config.model.dim in ("default", training.network.embedder.feature_dim) and not config.loss.dims
    steps_are_open = {"run.epochs", "optimizer.lr"} <= training.left_open or not training.batches.steps
    return config.model.whitening == "all" and _head_only(training) and length_is_open and steps_are_open


def _for_few(training: Training, choosing: frozenset[str], few: str) -> list[Choice]:
    """The choices of ``settle`` for few images, where the readable ones turn out to be few."""
    config = training.config
    chosen: list[Choice] = []
    if config.model.whitening != "all":
        return chosen
    if "model.shrinkage" in choosing:
        chosen.append(Choice("model.shrinkage", config.model.shrinkage, few))
    if {"optimizer.lr", "run.epochs"} <= training.left_open and _head_only(training) and training.batches.steps:
        chosen.append(Choice("run.steps", 0, no_step_for_few(few)))
    return chosen


def started_embedder(embedder: Embedder, statistics: ClassStatistics, shrinkage: float) -> Embedder:
    """A copy of ``embedder`` with the closed-form last layer."""
    started = copy.deepcopy(embedder)
    started.set_whitening(statistics.whitening(shrinkage).as_layer())
    return started


def measured_head(embedder: Embedder, data: HeadData) -> HeadResult:
    """Embeddings of images by the last layer of ``embedder``."""
    with torch.no_grad():
        return _measured(embedder.split("pooling")[1].eval()(data.pooled), data.labels)


def _measured(vectors: Tensor, labels: NDArray[np.int64]) -> HeadResult:
    found = measure_labelled(unit(vectors.detach()), labels, ks=(1,))
    return HeadResult(found["r@1"], found["map@r"])


def _smaller(config: Config, data: HeadData) -> Config:
    """The same batches with fewer classes: those that remain, and at most ``LARGEST`` images."""
    if config.batch.size == "all" or not isinstance(config.batch.size, int):
        return config
    each = config.batch.samples_per_class
    sizes = np.bincount(data.labels)
    usable = len(sizes) if config.batch.small_classes == "repeat" else int((sizes >= each).sum())
    size = max(min(config.batch.size // each, LARGEST // each, usable), 1) * each
    return replace(config, batch=replace(config.batch, size=size))


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def whitening_images(config: Config, images: ImageSet) -> WhiteningSet | None:
    """The images for the whitening, according to ``model.whitening``; None without it.

    Raises:
        ConfigError: there are fewer images than requested.
    """
    wanted = config.model.whitening
    if wanted is None and not config.run.head_steps:
        return None
    if wanted == SFM_NAME:
        return WhiteningSet.from_sfm(config.data.validation_root or config.data.root or ".")
    if not isinstance(wanted, int):
        return WhiteningSet(images)
    each = config.batch.samples_per_class
    size, usable = max(wanted // each, 1) * each, int((images.class_sizes >= each).sum()) * each
    if size > usable:
        raise ConfigError(
            f"model.whitening {wanted} learns from {size:,} images, {each} of each class, but only {usable:,} can be used "
            f"that way: set model.whitening={usable} or lower."
        )
    sampler = ClassBalancedSampler(images.labels, size, each, seed=config.run.seed, batches_per_epoch=1)
    sampler.set_epoch(0)
    return WhiteningSet(images.subset(next(iter(sampler))))


def whiten_last_layer(training: Training, chosen: WhiteningSet) -> None:
    """Set the last layer to a whitening of the ``chosen`` images, then train it alone for ``run.head_steps``.

    All processes end with the same numbers.

    Args:
        training: before its first step.
        chosen: see ``whitening_images``.

    Raises:
        InputError: too few images of one class for the number of dimensions.
    """
    embedder, team, train = training.network.embedder, training.machine.team, training.sets.train
    team.first_alone(lambda: start_last_layer(training.config, embedder, chosen, train))  # perhaps hours on a CPU
    if team.size > 1:
        for parameter in embedder.head.parameters():
            dist.broadcast(parameter.data, src=0)


def start_last_layer(config: Config, embedder: Embedder, chosen: WhiteningSet, train: ImageSet) -> None:
    """The work of ``whiten_last_layer`` on one process."""
    policy, frozen = config.data.on_bad_image, config.model.freeze
    if config.model.whitening == "all":
        features = head_inputs(embedder, train, frozen=frozen, on_bad_image=policy)
        readable = torch.isfinite(features[:, 0])
        labels = torch.from_numpy(train.labels)[readable]
        shrinkage = 0.1 if config.model.shrinkage == "auto" else config.model.shrinkage
        embedder.set_whitening(whitening_from_classes(features[readable], labels, shrinkage).as_layer())
    elif config.model.whitening == "identity":
        size = embedder.feature_dim
        if embedder.dim != size:
            raise ConfigError(f"model.whitening=identity keeps the features as they are: set model.dim={size}.")
        embedder.set_whitening(Whitening(torch.zeros(size), torch.eye(size)).as_layer())
    elif config.model.whitening is not None:
        embedder.set_whitening(chosen.learn(embedder, config.run.seed, on_bad_image=policy))
    if config.run.head_steps:
        found = part_rows(embedder, train, on_bad_image=policy)
        data = HeadData(torch.from_numpy(np.asarray(found.rows)), train.labels)
        rest = embedder.split("pooling")[1]
        lr = 1e-4 if config.optimizer.lr == "auto" else config.optimizer.lr
        train_head(rest, embedder.dim, data.of(np.isfinite(found.rows[:, 0])), config, lr, config.run.head_steps)
