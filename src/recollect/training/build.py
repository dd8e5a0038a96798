"""A configuration made into everything that trains: images, network, loss, batches, optimizer.

``build`` goes down once: images are loaded, open settings follow from them, and everything else is made from the settled
configuration. The one file of this room that knows the constructors of models, losses and data. Everything is seeded
here, so two processes, or one process twice, build the same.
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

from recollect.common import doors, processor
from recollect.common.bad_images import BadImage
from recollect.common.decode import set_max_pixels
from recollect.common.errors import ConfigError, DataError
from recollect.common.unit_prefix import prefix_lengths
from recollect.config.automatic import Choice, choose_device, is_pretrained, settle
from recollect.config.schema import Config, DataConfig
from recollect.data import ImageSet, RevisitedBenchmark, class_disjoint_split, load, load_revisited
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.features import images_at_once
from recollect.inference.opening import make_embedder
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
    """Where a training runs."""

    device: torch.device
    dtype: torch.dtype | None = None
    """Of autocast; None for float32."""
    team: Team = field(default_factory=Team)
    """The processes that share each batch."""


@dataclass(frozen=True)
class Sets:
    """The images of a training. Test images are loaded only to be watched.

    ``benchmark`` is there when queries with ground truth validate; ``validation`` is then its database.
    """

    train: ImageSet
    validation: ImageSet | None = None
    test: ImageSet | None = None
    benchmark: RevisitedBenchmark | None = None
    held_out: ImageSet | None = None
    """Images of the classes that the verdict is given on."""

    def fingerprints(self) -> dict[str, str]:
        """What identifies each set that is there."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: images.fingerprint for name, images in named.items() if images is not None}


@dataclass(frozen=True)
class Network:
    """What is trained, and what it is fed.

    Args:
        embedder: the whole network, which is saved.
        trained: what the loop calls: the embedder, or what lies behind its frozen part.
        frozen: the frozen part, if any.
    """

    embedder: Embedder
    trained: nn.Module
    frozen: nn.Module | None = None


@dataclass(frozen=True)
class Batches:
    """What each step sees.

    Args:
        sampler: which images.
        feed: reads them.
        size: images per step, over all processes.
        chunk: images in the network at once, on this process. A resumed run keeps the one it began with.
        steps: how many there are. Exact for the paper's policy, whose epochs are equally long; nearly so otherwise.
        threads: of torch, for a step.
    """

    sampler: Sampler
    feed: Feed
    size: int
    chunk: int
    steps: int
    threads: int


@dataclass(frozen=True)
class Training:
    """Everything a training needs, ready for its first step. ``trainer.py`` changes only what ``trained`` holds."""

    config: Config
    """Settled: nothing is ``"auto"`` but ``batch.chunk``, which ``batches`` knows."""
    choices: Sequence[Choice]
    machine: Machine
    sets: Sets
    network: Network
    batches: Batches
    watched: Sequence[Watched]
    trained: Trained
    given_loss: nn.Module | None = None
    """The loss, if it was handed over and not made."""
    left_open: frozenset[str] = frozenset()
    """Settings that were ``"auto"`` and that features may settle better (``last_layer.py``)."""

    @property
    def feeds(self) -> list[Feed]:
        """Whatever reads images."""
        return [self.batches.feed, *(watched.feed for watched in self.watched)]

    @property
    def skipped(self) -> dict[str, BadImage]:
        """Images that could not be read so far, on this process, by name."""
        return {bad.name: bad for feed in self.feeds for bad in feed.bad_images}

    def prepare(self) -> None:
        """Compute what is computed once (features of a frozen part), after the plan is told and before a run begins."""
        for feed in self.feeds:
            feed.prepare()

    def close(self) -> None:
        """Let go of threads."""
        for feed in self.feeds:
            feed.close()


@contextmanager
def built(config: Config | None, given: Given = NOTHING) -> Iterator[Training]:
    """``build`` on the device and among the processes that ``config`` and ``torchrun`` ask for; closed at the end."""
    if config is None:
        raise ConfigError("there is no configuration.")
    if config.run.epochs == 0:
        raise ConfigError(
            f"{config.name} trains nothing (run.epochs 0): measure it with recollect eval --recipe {config.name}, or "
            "set run.epochs."
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
    """Build everything; after this call nothing about the training is open.

    Args:
        config: what to make. device, team: where.
        given: what need not be made.

    Raises:
        ConfigError: settings that cannot be on this machine or with these images.
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
    # From here on processes draw different numbers (dropout), having built the same network.
    torch.manual_seed(config.run.seed + 7919 * (team.rank + 1))
    return Training(config, choices, machine, sets, network, batches, watched, trained, given.loss, left_open)


def load_sets(config: Config, given: Given = NOTHING) -> Sets:
    """The image sets that ``config`` names; validation classes, if any, are taken out of the training classes."""
    data = config.data
    set_max_pixels(data.max_pixels)
    train = given.train_set or _load(data, data.train_split)
    validation, benchmark = given.validation_set, None
    if validation is not None:
        pass
    elif data.validation == SFM_NAME:
        benchmark = load_revisited(SFM_NAME, data.validation_root or data.root or ".")
        validation = benchmark.database
    elif data.validation != "none":
        train, validation = class_disjoint_split(train, data.validation, config.run.seed)
    test = given.test_set or (_load(data, data.test_split) if config.run.watch_test else None)
    return Sets(train, validation, test, benchmark, _held_out(config, given, test) if config.run.verdict else None)


def _held_out(config: Config, given: Given, test: ImageSet | None) -> ImageSet | None:
    """Images to judge the training on; none where it is not known what it started from, or where there are none."""
    if test is not None or given.model is not None or given.train_set is not None:
        return None if given.model is not None else test
    with contextlib.suppress(DataError):  # a folder without a test part is trained on all the same
        return _load(config.data, config.data.test_split)
    return None


def _load(data: DataConfig, split: str) -> ImageSet:
    return load(data.name, data.root, split, **data.options)


def _prepare_torch(config: Config, device: torch.device) -> torch.dtype | None:
    if config.run.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if config.run.precision == "fp16" and device.type == "cpu":
        raise ConfigError("run.precision fp16 is for GPUs, and this runs on the CPU: use bf16 or fp32.")
    if config.run.precision != "fp32" and device.type == "cpu":
        processor.prepare_half_precision()  # before the network's first product, while oneDNN can still be limited
    return _PRECISIONS[config.run.precision]


def make_network(config: Config, device: torch.device, model: nn.Module | None = None) -> Network:
    """The embedder on its device, cut where ``model.freeze`` says; ``model``: the embedder, or its backbone."""
    made = model if isinstance(model, Embedder) else make_embedder(config.model, config.run.seed, model)
    embedder = made.to(device)
    upto = config.model.freeze
    if upto == "none":
        return Network(embedder, embedder)
    embedder.freeze(upto)
    frozen, rest = embedder.split(upto)
    return Network(embedder, rest, frozen)


def make_loss(config: Config, num_classes: int, dim: int, coarse: Sequence[int] | None = None) -> nn.Module:
    """The loss, told the number of classes, the embedding's length and the classes' coarser ones if it asks; its
    parameters seeded. One from outside is tried first (``losses/trying_out.py``).

    With ``loss.dims`` there is one for each length, so that none shares another's parameters or memory.
    """
    with doors.recording() as outside:
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
                f"loss.name {config.loss.name} compares two levels of labels, and these images have one: use images with "
                "coarser classes (sop, inaturalist), or set loss.options.coarse to a number for each class."
            )
        options[name] = known[name]
    torch.manual_seed(config.run.seed + 1)
    return create(config.loss.name, **options)


def seeded(loss: nn.Module, seed: int) -> nn.Module:
    """The loss with generators of its own: SiMix draws the same on every process, whatever the network draws."""
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
    # By the settings alone: a resumed run has the threads that it began with, even where another chunk fits now.
    threads = step_threads(network.trained, example, mine, mine if chunk == "auto" else chunk)
    if chunk == "auto":
        # One image seen M times weighs what M images weigh at most, and needs no reading.
        chunk = find_chunk(network.trained, example.expand(mine, *example.shape[1:]), machine.dtype)
    sampler.set_epoch(0)
    steps = len(sampler) * config.run.epochs if isinstance(config.run.epochs, int) else config.run.steps or 0
    return Batches(sampler, feed, size, min(chunk, mine), steps, threads)


def watch(
    config: Config, network: Network, team: Team, name: str, images: ImageSet, benchmark: RevisitedBenchmark | None
) -> Watched:
    """A set to measure on the way, with this process's part of it."""
    start, stop = (len(images) * rank // team.size for rank in (team.rank, team.rank + 1))
    mine = images if team.size == 1 else images.subset(np.arange(start, stop))
    if benchmark is not None:  # an image left out would shift the ground truth
        config = replace(config, data=replace(config.data, on_bad_image="error"))
    feed = make_feed(config, network.embedder, mine, frozen=network.frozen, training=False)
    return Watched(name, images, feed, start, images_at_once(network.embedder.preprocessing), benchmark)
