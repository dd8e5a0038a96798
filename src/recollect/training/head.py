"""Initialises the last layer as a whitening of training images, and optionally trains it alone on stored features.

For instance search the whitening is learned from pairs (``inference/whitening.py``): from one class-balanced draw of
the training set, since the images used were never published, or from SfM-120k's lists. ``"all"`` uses every training image,
by the covariance within classes (``models/whitening.py``): a closed form that needs no step. Features are stored as they
are computed (``inference/store.py``), so a run that is killed meanwhile continues from there; the layer is a function
of the features and the seed, and is part of the first checkpoint.

``choose_start`` tries shrinkages and learning rates on classes held out from the training classes; test classes are not
used. ``train_head`` takes the trainer's steps (``optimizer.take_step``), without files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError
from recollect.config.automatic import FEWEST_CLASSES, FEWEST_QUERIES, AutoSetting, few_photos, no_step_for_few
from recollect.config.schema import Config
from recollect.data import ClassBalancedSampler, ImageSet, class_disjoint_split
from recollect.data.pipeline import Batch
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.evaluate import measure_labelled
from recollect.inference.vectors import head_inputs, part_rows
from recollect.inference.whitening import WhiteningSet
from recollect.models import Embedder, whitening_from_classes
from recollect.models.pooling import unit
from recollect.models.whitening import ClassStatistics, Whitening, class_statistics
from recollect.step.distributed import Processes
from recollect.training.batches import BatchSource, FeatureBatches, make_sampler, number_of_steps
from recollect.training.build import Setup, Training, divided, make_loss, seeded
from recollect.training.optimizer import Position, make_optimizer, take_step
from recollect.training.run import Trained

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

    def of(self, rows: NDArray[np.bool_]) -> HeadData:
        """Some of the images, classes renumbered."""
        _, labels = np.unique(self.labels[rows], return_inverse=True)
        return HeadData(self.pooled[torch.from_numpy(rows).to(self.pooled.device)], labels.astype(np.int64))

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.labels.max(initial=-1)) + 1


def train_head(
    embedder: Embedder,
    data: HeadData,
    config: Config,
    lr: float,
    steps: int,
    advance: Callable[[], object] = lambda: None,
) -> None:
    """Train the last layer of ``embedder`` alone for ``steps``; every call gives the same result.

    Args:
        embedder: the network, on its device. Only what follows the pooling gets a gradient.
        data: pooled features of the training images.
        config: loss, batches, optimizer and schedule.
        lr: overrides the configuration's learning rate.
        steps: number of steps.
        advance: called after each step.
    """
    config, device = replace(config, optimizer=replace(config.optimizer, lr=lr)), embedder.device
    head = embedder.split("pooling")[1].train()
    pooled, labels = data.pooled.to(device), torch.from_numpy(data.labels).to(device)
    loss = seeded(make_loss(config, data.classes, embedder.dim), config.run.seed).to(device)
    optimizer = make_optimizer(config.optimizer, embedder, loss)
    # On this process alone, in float32.
    trained = Trained(embedder, loss, optimizer, torch.amp.GradScaler(device.type, enabled=False), device, Processes())
    sampler, done, epoch = make_sampler(config, data.labels), 0, 0
    while done < steps:
        sampler.set_epoch(epoch)
        batches = max(len(sampler), 1)
        for number, indices in enumerate(islice(sampler, steps - done)):
            rows = torch.from_numpy(indices).to(device)
            position = Position(epoch + number / batches, done / steps, 1 / batches)
            take_step(head, trained, config, Batch(pooled[rows], labels[rows], indices), position, len(indices))
            advance()
            done += 1
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


def choose_start(setup: Setup, source: BatchSource) -> Setup:
    """``setup`` with the shrinkage and the learning rate that are best on classes held out from the training classes.

    Only what was left ``"auto"`` is chosen, only on features that the training needs anyway, and only where the classes
    suffice; otherwise ``setup`` comes back as it is. Behind features of a frozen network all of it is chosen; where more
    than the last layer is trained, only the shrinkage of its start.

    Args:
        setup: before loss and optimizer are made.
        source: the training images.
    """
    config, processes, choices = setup.config, setup.processes, list[AutoSetting]()
    if not setup.undecided or not (_head_only(setup) or config.model.whitening == "all"):
        return setup
    processes.run_on_rank_zero(lambda: choices.extend(_best_settings(setup, source)))  # features perhaps take hours
    choices = processes.broadcast(choices)
    for choice in choices:
        part, name = choice.name.split(".")
        more = {"epochs": None} if choice.name == "run.steps" else {}
        config = replace(config, **{part: replace(getattr(config, part), **{name: choice.value}, **more)})
        if choice.name == "model.dim":
            setup.embedder.resize_head(choice.value)
        elif choice.name == "model.stages" and choice.value != setup.embedder.config.stages:
            setup.embedder.set_stages(choice.value)
            frozen, network = divided(setup.embedder, config)
            setup = replace(setup, frozen=frozen, network=network)
    new = {choice.name for choice in choices}
    earlier = [choice for choice in setup.auto_settings if choice.name not in new]
    return replace(setup, config=config, auto_settings=[*earlier, *choices], undecided=frozenset())


def _head_only(setup: Setup) -> bool:
    """Whether nothing but the last layer is trained, on features that are at hand."""
    return setup.frozen is not None and setup.config.model.freeze == "pooling"


def trial_steps(setup: Setup) -> int:
    """Number of steps of a trial with one learning rate; 0 where none is chosen."""
    config, train = setup.config, setup.sets.train
    if "optimizer.lr" not in setup.undecided or not _head_only(setup):
        return 0
    # Otherwise the loss cannot be computed for fewer classes.
    plain = setup.passed.loss is None and train.coarse_labels is None
    return min(number_of_steps(config, make_sampler(config, train.labels)), LONGEST) if plain else 0


def _best_settings(setup: Setup, source: BatchSource) -> list[AutoSetting]:
    """The choice for each automatic setting."""
    config, embedder, images = setup.config, setup.embedder, setup.sets.train
    whitened = config.model.whitening == "all"
    closed_form = {"model.shrinkage", "model.stages"}
    choosing = setup.undecided & (closed_form | {"optimizer.lr"} if _head_only(setup) else closed_form)
    if not choosing:
        return []
    names = set(class_disjoint_split(images, "random", config.run.seed)[0].names)
    fitting = np.array([name in names for name in images.names])
    if isinstance(source, FeatureBatches) and _head_only(setup):
        rows, readable = source.rows, source.readable
    else:
        policy = config.data.on_bad_image
        rows = part_rows(embedder, images, frozen=config.model.freeze, on_bad_image=policy).rows
        readable = np.asarray(np.isfinite(rows[:, 0]))
    data = HeadData(torch.from_numpy(np.asarray(rows)).to(embedder.device), images.labels)
    fit, validation = data.of(fitting & readable), data.of(~fitting & readable)
    if min(fit.classes, validation.classes) < FEWEST_CLASSES or len(validation.labels) < FEWEST_QUERIES:
        few = few_photos(int(readable.sum()), fit.classes + validation.classes)
        return _for_few(setup, choosing, few)
    by = f"on {validation.classes:,} held-out training classes ({len(validation.labels):,} queries)"
    choices: list[AutoSetting] = []
    stages = "model.stages" in choosing
    start = embedder.with_own_head(0) if stages else embedder
    feature_dim = start.feature_dim
    features = _measured(start.head.inputs(validation.pooled), validation.labels)
    if whitened:
        counts = range(embedder.config.stages + 1) if stages else [embedder.config.stages]
        forms = closed_forms(embedder, fit, counts)
        results = _tried(
            forms, SHRINKAGES if "model.shrinkage" in choosing else [float(config.model.shrinkage)], validation
        )
        count, value = max(results, key=lambda pair: results[pair].merit)
        if stages:
            ranked = sorted(results, key=lambda pair: results[pair].merit)
            best = {pair[0]: str(results[pair]) for pair in ranked}  # the last of each number
            listing = "; ".join(f"{each}: {best[each]}" for each in counts)
            choices.append(AutoSetting("model.stages", count, f"the best {by}: {listing}"))
        if "model.shrinkage" in choosing:
            reason = f"the best {by}: {results[count, value]}; {features} of the features as they are"
            choices.append(AutoSetting("model.shrinkage", value, reason))
        start = with_whitening(*forms[count], value)
    untrained = measured_head(start, validation)
    reached = [untrained]
    if steps := trial_steps(setup):
        small = _smaller_batches(config, fit.labels)
        rates = {}
        with ProgressLine("choosing the learning rate", len(RATES) * steps, "steps") as line:
            for rate in RATES:
                trial = start.with_own_head()
                train_head(trial, fit, small, rate, steps, line.advance)
                rates[rate] = measured_head(trial, validation)
        rate = max(rates, key=lambda value: rates[value].merit)
        reached.append(rates[rate])
        listing = ", ".join(f"{value:g}" for value in RATES)
        reason = f"the best of {listing} {by}: {rates[rate]}; {untrained} before the first step"
        choices.append(AutoSetting("optimizer.lr", rate, reason))
        if whitened and "run.epochs" in setup.undecided and untrained.merit >= rates[rate].merit:
            reason = f"no number of steps improves on the whitening {by}; set --steps to train anyway"
            choices.append(AutoSetting("run.steps", 0, reason))
    # The features as they are may be the result if nothing but "auto" asks for another length or for steps.
    length_is_open = config.model.dim in ("default", feature_dim) and not config.loss.dims
    steps_are_open = {"run.epochs", "optimizer.lr"} <= setup.undecided or config.run.steps == 0
    if (
        "model.shrinkage" in choosing
        and features.merit > max(each.merit for each in reached)
        and (whitened and _head_only(setup) and length_is_open and steps_are_open)
    ):
        reason = f"the features as they are do better than any last layer {by}: {features}"
        without = [AutoSetting("model.stages", 0, "without a last layer they are no better")] if stages else []
        return [
            AutoSetting("model.whitening", "identity", reason),
            *without,
            AutoSetting("model.dim", feature_dim, "the features keep their length"),
            AutoSetting("run.steps", 0, "nothing is trained; set --steps to train anyway"),
        ]
    return choices


def _for_few(setup: Setup, choosing: frozenset[str], few: str) -> list[AutoSetting]:
    """The choices of ``resolve_auto`` for few images, where the readable ones turn out to be few."""
    config = setup.config
    choices: list[AutoSetting] = [AutoSetting("model.stages", 0, few)] if "model.stages" in choosing else []
    if config.model.whitening != "all":
        return choices
    if "model.shrinkage" in choosing:
        choices.append(AutoSetting("model.shrinkage", config.model.shrinkage, few))
    if {"optimizer.lr", "run.epochs"} <= setup.undecided and _head_only(setup) and config.run.steps != 0:
        choices.append(AutoSetting("run.steps", 0, no_step_for_few(few)))
    return choices


ClosedForm = tuple[Embedder, ClassStatistics]
"""An embedder for features of a number of stages, and what its whitening with any shrinkage is made from."""


def with_whitening(embedder: Embedder, statistics: ClassStatistics, shrinkage: float) -> Embedder:
    """``embedder`` with this last layer."""
    embedder.set_whitening(statistics.whitening(shrinkage).as_layer())
    return embedder


def closed_forms(embedder: Embedder, fit: HeadData, counts: Sequence[int]) -> dict[int, ClosedForm]:
    """The closed form with each number of stages, largest first, in copies that share the backbone of ``embedder``."""
    forms: dict[int, ClosedForm] = {}
    for count in sorted(counts, reverse=True):
        start = embedder.with_own_head(count)
        if count and forms:  # these groups come first in those of more stages
            statistics = forms[count + 1][1].leading(start.feature_dim)
        else:
            with torch.no_grad():
                statistics = class_statistics(start.head.inputs(fit.pooled), torch.from_numpy(fit.labels))
        forms[count] = start, statistics
    return forms


def _tried(
    forms: Mapping[int, ClosedForm], values: Sequence[float], validation: HeadData
) -> dict[tuple[int, float], HeadResult]:
    """Results on validation classes, by number of stages and shrinkage.

    All shrinkages with the fewest stages, the best of them with more, then its neighbours with the best number: each takes
    an eigenvalue decomposition, which takes ten times as long for 2,528 features as for 1,280.
    """
    results: dict[tuple[int, float], HeadResult] = {}
    fewest, *more = sorted(forms)
    with ProgressLine("choosing the closed form", len(values) + len(more) + 2 * bool(more), "trials") as line:

        def measure(count: int, value: float) -> None:
            if (count, value) not in results:
                results[count, value] = measured_head(with_whitening(*forms[count], value), validation)
                line.advance()

        for value in values:
            measure(fewest, value)
        for count in more:
            measure(count, max(results, key=lambda pair: results[pair].merit)[1])
        count, value = max(results, key=lambda pair: results[pair].merit)
        place = values.index(value)
        for value in values[max(place - 1, 0) : place + 2]:
            measure(count, value)
    return results


def measured_head(embedder: Embedder, data: HeadData) -> HeadResult:
    """Embeddings of images by the last layer of ``embedder``."""
    with torch.no_grad():
        return _measured(embedder.split("pooling")[1].eval()(data.pooled), data.labels)


def _measured(vectors: Tensor, labels: NDArray[np.int64]) -> HeadResult:
    metrics = measure_labelled(unit(vectors.detach()), labels, ks=(1,))
    return HeadResult(metrics["r@1"], metrics["map@r"])


def _smaller_batches(config: Config, labels: NDArray[np.int64]) -> Config:
    """The same batches with fewer classes: those that remain, and at most ``LARGEST`` images."""
    if config.batch.size == "all" or not isinstance(config.batch.size, int):
        return config
    each = config.batch.samples_per_class
    sizes = np.bincount(labels)
    usable = len(sizes) if config.batch.small_classes == "repeat" else int((sizes >= each).sum())
    size = max(min(config.batch.size // each, LARGEST // each, usable), 1) * each
    return replace(config, batch=replace(config.batch, size=size))


def whitening_images(config: Config, images: ImageSet) -> WhiteningSet | None:
    """The images for the whitening, according to ``model.whitening``; None without it.

    Raises:
        ConfigError: there are fewer images than requested.
    """
    whitening = config.model.whitening
    if whitening is None and not config.run.head_steps:
        return None
    if whitening == SFM_NAME:
        return WhiteningSet.from_sfm(config.data.validation_root or config.data.root or ".")
    if not isinstance(whitening, int):
        return WhiteningSet(images)
    each = config.batch.samples_per_class
    size, usable = max(whitening // each, 1) * each, int((images.class_sizes >= each).sum()) * each
    if size > usable:
        raise ConfigError(
            f"model.whitening {whitening} learns from {size:,} images, {each} of each class, but only {usable:,} can be used "
            f"that way: set model.whitening={usable} or lower."
        )
    sampler = ClassBalancedSampler(images.labels, size, each, seed=config.run.seed, batches_per_epoch=1)
    sampler.set_epoch(0)
    return WhiteningSet(images.subset(next(iter(sampler))))


def whiten_last_layer(training: Training, whitening_set: WhiteningSet) -> None:
    """Set the last layer to a whitening of images, then train it alone for ``run.head_steps``.

    All processes end with the same numbers.

    Args:
        training: before its first step.
        whitening_set: see ``whitening_images``.

    Raises:
        InputError: too few images of one class for the number of dimensions.
    """
    embedder, processes, train = training.embedder, training.processes, training.sets.train
    # Perhaps hours on a CPU.
    processes.run_on_rank_zero(lambda: start_last_layer(training.config, embedder, whitening_set, train))
    if processes.size > 1:
        for parameter in embedder.head.parameters():
            dist.broadcast(parameter.data, src=0)


def start_last_layer(config: Config, embedder: Embedder, whitening_set: WhiteningSet, train: ImageSet) -> None:
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
        embedder.set_whitening(whitening_set.learn(embedder, config.run.seed, on_bad_image=policy))
    if config.run.head_steps:
        pooled = part_rows(embedder, train, on_bad_image=policy)
        data = HeadData(torch.from_numpy(np.asarray(pooled.rows)), train.labels)
        lr = 1e-4 if config.optimizer.lr == "auto" else config.optimizer.lr
        train_head(embedder, data.of(np.isfinite(pooled.rows[:, 0])), config, lr, config.run.head_steps)
