"""Builds everything a training needs from a configuration: images, network, loss, batches, optimizer.

``build`` loads the images, chooses the automatic settings from them, and makes everything else from the resolved
configuration. It is the only file of this package that calls the constructors of models, losses and data. Everything is
seeded here, so two processes, or one process twice, build the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError
from recollect.common.images import BadImage, set_max_pixels
from recollect.config.automatic import Choice, choose_device, is_pretrained, settle, too_few
from recollect.config.schema import Config, DataConfig
from recollect.data import ImageSet, RevisitedBenchmark, class_disjoint_split, load, load_revisited
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.models import make_embedder
from recollect.losses.matryoshka import prefix_lengths
from recollect.losses.registry import create, describe
from recollect.losses.trying_out import try_given, try_loss
from recollect.models import Embedder
from recollect.models.zoo import find
from recollect.step import team as teams
from recollect.step.chunking import step_threads
from recollect.step.large_batch import check_trainable_in_chunks, find_chunk
from recollect.step.team import Team
from recollect.training.batches import Feed, Sampler, make_feed, make_sampler
from recollect.training.checkpoint import Trained
from recollect.training.given import Given
from recollect.training.optimizer import make_optimizer
from recollect.training.validation import Watched

NOTHING = Given()
_PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Machine:
    """The device, precision and processes of a training."""

    device: torch.device
    dtype: torch.dtype | None = None
    """Type of autocast; None for float32."""
    team: Team = field(default_factory=Team)
    """The processes that share each batch."""


@dataclass(frozen=True)
class Sets:
    """The images of a training. Test images are loaded only if they are watched.

    ``benchmark`` is set if queries with ground truth are used for validation; ``validation`` is then its database.
    """

    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    benchmark: RevisitedBenchmark | None = None
    held_out: ImageSet | None = None
    """Images of the classes that the verdict is given on: those of the test part that are not trained on."""
    shared_classes: tuple[str, ...] = ()
    """Classes that the test part has in common with the training part."""

    def fingerprints(self) -> dict[str, str]:
        """The fingerprint of each set."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: images.fingerprint for name, images in named.items() if images is not None}


@dataclass(frozen=True)
class Network:
    """The network and its trained part.

    Args:
        embedder: the whole network, which is saved.
        trained: the module that the loop calls: the embedder, or the part after its frozen part.
        frozen: the frozen part, if any.
    """

    embedder: Embedder
    trained: nn.Module
    frozen: nn.Module | None = None


@dataclass(frozen=True)
class Batches:
    """The batches of a training.

    Args:
        sampler: chooses the images.
        feed: reads them.
        size: images per step, over all processes.
        chunk: images in the network at once, on this process. A resumed run keeps its original chunk size.
        steps: number of steps. Exact for the paper's policy, whose epochs have equal length; approximate otherwise.
        threads: number of torch's threads for a step.
    """

    sampler: Sampler
    feed: Feed
    size: int
    chunk: int
    steps: int
    threads: int


@dataclass(frozen=True)
class Training:
    """Everything a training needs, ready for its first step. ``trainer.py`` changes only the content of ``trained``."""

    config: Config
    """Resolved: nothing is ``"auto"`` except ``batch.chunk``, which is in ``batches``."""
    choices: Sequence[Choice]
    machine: Machine
    sets: Sets
    network: Network
    batches: Batches
    watched: Sequence[Watched]
    trained: Trained
    given_loss: nn.Module | None = None
    """The loss, if it was passed in Python."""
    left_open: frozenset[str] = frozenset()
    """Settings that were ``"auto"`` and that can be chosen better from features (``last_layer.py``)."""

    @property
    def feeds(self) -> list[Feed]:
        """All objects that read images."""
        return [self.batches.feed, *(watched.feed for watched in self.watched)]

    @property
    def skipped(self) -> dict[str, BadImage]:
        """Images that could not be read so far, on this process, by name."""
        return {bad.name: bad for feed in self.feeds for bad in feed.bad_images}

    def prepare(self) -> None:
        """Compute features of a frozen part, after the plan is printed and before the run begins."""
        for feed in self.feeds:
            feed.prepare()

    def close(self) -> None:
        """Stop the threads."""
        for feed in self.feeds:
            feed.close()


@contextmanager
def built(config: Config | None, given: Given = NOTHING) -> Iterator[Training]:
    """``build`` on the device of ``config`` and the processes of ``torchrun``; closed at the end."""
    if config is None:
        raise ConfigError("no configuration was given: give a recipe or settings.")
    if config.run.epochs == 0:
        raise ConfigError(
            f"{config.name} trains nothing (run.epochs 0): evaluate it with recollect eval --recipe {config.name}, or "
            "set run.epochs. --steps 0 keeps the last layer as it starts."
        )
    # Misspelt names are reported before images are read, which may take a while.
    if given.loss is None:
        describe(config.loss.name)
    if given.model is None:
        find(config.model.init)
    device = choose_device(config.run.device)
    team = teams.start(device.type)
    if device.type == "cuda" and team.size > 1:
        device = torch.device("cuda", torch.cuda.current_device())
    try:
        training = build(config, device, team, given)
        try:
            yield training
        finally:
            training.close()
    finally:
        teams.stop()


def build(config: Config, device: torch.device, team: Team, given: Given = NOTHING) -> Training:
    """Build everything; after this call all settings are fixed.

    Args:
        config: the settings. device, team: where to run.
        given: objects passed in Python.

    Raises:
        ConfigError: settings that are impossible on this machine or with these images.
    """
    sets = load_sets(config, given)
    left_open = frozenset(
        key
        for key, value in (
            ("model.shrinkage", config.model.shrinkage),
            ("optimizer.lr", config.optimizer.lr),
            ("run.epochs", config.run.epochs if config.run.steps is None else None),
        )
        if value == "auto"
    )
    pretrained = is_pretrained(config.model) if given.model is None else given.pretrained
    config, choices = settle(config, sets.train, device, pretrained)
    if config.model.whitening == "all" and too_few(config, sets.train):
        left_open = frozenset()
    machine = Machine(device, _prepare_torch(config, device), team)
    network = make_network(config, device, given.model)
    check_trainable_in_chunks(network.trained)
    network.trained.train()
    classes, dim = len(sets.train.class_names), network.embedder.dim
    made = given.loss
    if made is None:
        made = make_loss(config, classes, dim, sets.train.coarse_of_classes)
    else:
        each = config.batch.samples_per_class
        try_given(made, type(made).__name__, dim, classes, samples_per_class=each, device=device)
    loss = seeded(made, config.run.seed).to(device)
    batches = _batches(config, sets.train, network, machine)
    watched = [
        watch(config, network, team, name, images, benchmark)
        for name, images, benchmark in (("val", sets.validation, sets.benchmark), ("test", sets.test, None))
        if images is not None
    ]
    trained = Trained(
        model=network.embedder,
        loss=loss,
        optimizer=make_optimizer(config.optimizer, network.embedder, loss),
        scaler=torch.amp.GradScaler(device.type, enabled=machine.dtype == torch.float16),
        device=device,
        team=team,
    )
    # All processes have built the same network; from here on they draw different random numbers (dropout).
    torch.manual_seed(config.run.seed + 7919 * (team.rank + 1))
    return Training(config, choices, machine, sets, network, batches, watched, trained, given.loss, left_open)


def load_sets(config: Config, given: Given = NOTHING) -> Sets:
    """The image sets of ``config``; validation classes, if any, are removed from the training classes."""
    data = config.data
    set_max_pixels(data.max_pixels)
    train = given.train_set or load_split(data, data.train_split)
    validation, benchmark = given.validation_set, None
    if validation is not None:
        pass
    elif data.validation == SFM_NAME:
        benchmark = load_revisited(SFM_NAME, data.validation_root or data.root or ".")
        validation = benchmark.database
    elif data.validation != "none":
        train, validation = class_disjoint_split(train, data.validation, config.run.seed)
    test = given.test_set or (load_split(data, data.test_split) if config.run.watch_test else None)
    sets = Sets(train, validation, test, benchmark)
    return _with_held_out(sets, _judged_on(config, given, test)) if config.run.verdict else sets


def _with_held_out(sets: Sets, judged_on: ImageSet | None) -> Sets:
    if judged_on is None:
        return sets
    parts = [part for part in (sets.train, sets.validation) if part is not None and part.name == judged_on.name]
    known = {name for part in parts for name in part.class_names}
    new = [number for number, name in enumerate(judged_on.class_names) if name not in known]
    shared = tuple(name for name in judged_on.class_names if name in known)
    held_out = judged_on if not shared else judged_on.of_classes(new) if new else None
    return replace(sets, held_out=held_out, shared_classes=shared)


def _judged_on(config: Config, given: Given, test: ImageSet | None) -> ImageSet | None:
    """Images for the verdict; none if the starting network is not known, or if there are no test images."""
    if test is not None or given.model is not None or given.train_set is not None:
        return None if given.model is not None else test
    with contextlib.suppress(DataError):  # a folder without a test split can be trained on too
        return load_split(replace(config.data, on_bad_image="skip"), config.data.test_split)
    return None


def load_split(data: DataConfig, split: str) -> ImageSet:
    """A split of the images that settings name; missing ones are left out if ``on_bad_image`` is ``"skip"``."""
    return load(data.name, data.root, split, on_bad_image=data.on_bad_image, **data.options)


def _prepare_torch(config: Config, device: torch.device) -> torch.dtype | None:
    if config.run.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if config.run.precision == "fp16" and device.type == "cpu":
        raise ConfigError("run.precision fp16 is for GPUs, but this runs on the CPU: use bf16 or fp32.")
    return _PRECISIONS[config.run.precision]


def make_network(config: Config, device: torch.device, model: nn.Module | None = None) -> Network:
    """The embedder on its device, split at ``model.freeze``; ``model``: the embedder, or its backbone."""
    made = model if isinstance(model, Embedder) else make_embedder(config.model, config.run.seed, model)
    embedder = made.to(device)
    upto = config.model.freeze
    if upto == "none":
        return Network(embedder, embedder)
    embedder.freeze(upto)
    frozen, rest = embedder.split(upto)
    return Network(embedder, rest, frozen)


def make_loss(config: Config, num_classes: int, dim: int, coarse: Sequence[int] | None = None) -> nn.Module:
    """The loss with seeded parameters; the number of classes, the embedding's dimension and the coarser classes are passed
    if it has such arguments. A loss from outside is tried first (``losses/trying_out.py``).

    With ``loss.dims`` there is one loss per length, so that parameters and memories are not shared.
    """
    with plugins.recording() as outside:
        loss = _one_loss(config, num_classes, dim, coarse)
    if outside:
        each, device = config.batch.samples_per_class, choose_device(config.run.device)
        try_loss(loss, config.loss.name, dim, num_classes, samples_per_class=each, device=device)
        loss = _one_loss(config, num_classes, dim, coarse)  # the call may have changed the first
    dims = config.loss.dims
    if not dims:
        return loss
    from recollect.losses import Matryoshka

    lengths = prefix_lengths(dims, dim, "loss.dims")
    return Matryoshka([_one_loss(config, num_classes, length, coarse) for length in lengths], dims)


def _one_loss(config: Config, num_classes: int, dim: int, coarse: Sequence[int] | None) -> nn.Module:
    options: dict[str, Any] = dict(config.loss.options)
    asked = {option.name for option in describe(config.loss.name).options}
    known = {"num_classes": num_classes, "dim": dim, "coarse": coarse}
    for name in known.keys() & asked - options.keys():
        if known[name] is None:
            raise ConfigError(
                f"loss.name {config.loss.name} needs two levels of labels, but these images have one: use images with "
                "coarser classes (sop, inaturalist), or set loss.options.coarse to a number for each class."
            )
        options[name] = known[name]
    torch.manual_seed(config.run.seed + 1)
    return create(config.loss.name, **options)


def seeded(loss: nn.Module, seed: int) -> nn.Module:
    """Give the loss its own generators: SiMix draws the same on every process, independent of the network."""
    for part in loss.modules():
        if hasattr(part, "generator"):
            part.generator = torch.Generator().manual_seed(seed)  # type: ignore[assignment]
    return loss


def _batches(config: Config, images: ImageSet, network: Network, machine: Machine) -> Batches:
    sampler = make_sampler(config, images.labels)
    feed = make_feed(config, network.embedder, images, frozen=network.frozen, training=True)
    size = config.batch.size if isinstance(config.batch.size, int) else len(images)
    mine = -(-size // machine.team.size)
    chunk, (example, _) = config.batch.chunk, feed.example()
    # From the settings only: a resumed run keeps its number of threads, even if another chunk fits now.
    threads = step_threads(network.trained, example, mine, mine if chunk == "auto" else chunk)
    if chunk == "auto":
        # One image repeated M times needs as much memory as M images at most, and needs no reading.
        chunk = find_chunk(network.trained, example.expand(mine, *example.shape[1:]), machine.dtype)
    sampler.set_epoch(0)
    steps = len(sampler) * config.run.epochs if isinstance(config.run.epochs, int) else config.run.steps or 0
    return Batches(sampler, feed, size, min(chunk, mine), steps, threads)


def watch(
    config: Config, network: Network, team: Team, name: str, images: ImageSet, benchmark: RevisitedBenchmark | None
) -> Watched:
    """A set to evaluate during training, with this process's part of it."""
    start, stop = (len(images) * rank // team.size for rank in (team.rank, team.rank + 1))
    mine = images if team.size == 1 else images.subset(np.arange(start, stop))
    if benchmark is not None:  # leaving out an image would shift the ground truth
        config = replace(config, data=replace(config.data, on_bad_image="error"))
    feed = make_feed(config, network.embedder, mine, frozen=network.frozen, training=False)
    return Watched(name, images, feed, start, network.embedder.images_at_once, benchmark)
