"""Builds everything a training needs from a configuration and the objects passed in Python.

``prepare`` loads the images, resolves ``"auto"`` from them and makes the network; ``plan.py`` and ``head.py`` work on its
``Setup``. ``build`` then makes loss, batches and optimizer from the final settings, once (``batches.py``, ``optimizer.py``).
Everything is seeded here, so two processes, or one process twice, build the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError, DataWarning, InputError, WeightsError
from recollect.common.images import BadImage, set_max_pixels
from recollect.common.machine import autocast_dtype, usable_precision
from recollect.common.reading import sha256
from recollect.config.automatic import AutoSetting, choose_device, is_pretrained, resolve_auto, too_few
from recollect.config.resolve import default_recipe, parse_settings, resolve, with_changes, with_settings
from recollect.config.schema import Config, DataConfig, ModelConfig
from recollect.data import ImageSet, RevisitedBenchmark, class_disjoint_split, load, load_revisited
from recollect.data.registry import check_ambiguous_name, find_source, is_source
from recollect.data.sources.folder import listed_once
from recollect.data.sources.revisited import SFM_NAME
from recollect.inference.models import make_embedder, refuse_moved
from recollect.inference.training_record import read_trained_on, refuse_foreign_images
from recollect.losses.matryoshka import Matryoshka, prefix_lengths
from recollect.losses.registry import create, describe, try_copy, try_loss
from recollect.models import Embedder
from recollect.models.backbones import add_lora, backbone_layers, timm_network
from recollect.models.pooling import STAGES
from recollect.models.weight_files import obtain_weights
from recollect.models.zoo import find
from recollect.step import distributed
from recollect.step.distributed import Processes, shard
from recollect.step.large_batch import check_trainable_in_chunks, find_chunk, step_threads
from recollect.training.batches import (
    BatchSource,
    Sampler,
    Watched,
    largest_input,
    make_sampler,
    make_source,
    number_of_steps,
)
from recollect.training.optimizer import find_optimizer, make_optimizer
from recollect.training.run import RunFolder, Trained, WeightAverage, refuse_other_weights, resumed_config


@dataclass(frozen=True)
class PassedObjects:
    """Objects passed to ``recollect.train`` in Python; None means it is made from the configuration.

    The configuration names each as ``given:…``, and the manifest records its class and code. Such a run is resumed in
    Python, with the objects passed again.

    Args:
        loss: called as ``loss(embeddings, labels)``. Trained in place if it has parameters.
        train_set, validation_set, test_set: images.
        model: an embedder, or a backbone for an embedder. Trained in place.
    """

    loss: nn.Module | None = None
    train_set: ImageSet | None = None
    validation_set: ImageSet | None = None
    test_set: ImageSet | None = None
    model: nn.Module | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            kind, noun = (nn.Module, "nn.Module") if name in ("loss", "model") else (ImageSet, "ImageSet")
            if value is not None and not isinstance(value, kind):
                names = " or a name" if name in ("loss", "model", "train_set") else ""
                raise InputError(f"{name} is a {type(value).__name__}: it must be an {noun}{names}.")

    @property
    def pretrained(self) -> bool:
        """Whether the passed model starts from trained weights."""
        if isinstance(self.model, Embedder):
            return self.model.config.provenance.file is not None
        return bool(getattr(self.model, "pretrained", False))

    def named(self, config: Config) -> Config:
        """``config`` with a name for every passed object."""
        if self.loss is not None and config.loss.dims:
            raise ConfigError(
                "loss.dims works with a loss by name only: use recollect.losses.Matryoshka(loss, dims), and remove it."
            )
        if self.loss is not None:
            name = plugins.describe(self.loss, "loss").reference
            config = replace(config, loss=replace(config.loss, name=name, options={}))
        if self.train_set is not None:
            name = plugins.describe(self.train_set, "data set", _word(self.train_set.name)).reference
            config = replace(config, data=replace(config.data, name=name, root=None, options={}))
        if isinstance(self.model, Embedder):
            config = replace(config, model=_settings_of(self.model, config.model))
        elif self.model is not None:
            name = plugins.describe(self.model, "backbone").reference
            size = config.model.image_size or 224
            config = replace(config, model=replace(config.model, init=name, options={}, image_size=size))
        if self.test_set is not None:
            config = replace(config, run=replace(config.run, watch_test=True))
        return config


def _settings_of(embedder: Embedder, model: ModelConfig) -> ModelConfig:
    """The settings that describe a passed embedder."""
    config = embedder.config
    taken = ("dim", "pooling", "p", "learn_p", "layer_norm", "l2_before_head", "batch_norm", "stages")
    settings: dict[str, Any] = {name: getattr(config, name) for name in taken}
    name = plugins.describe(embedder, "backbone", _word(config.init)).reference
    size, resize = config.preprocessing.size, config.preprocessing.resize
    return replace(model, init=name, options={}, weights=None, image_size=size, resize=resize, **settings)


def _word(name: str) -> str:
    return re.sub(r"\W", "_", name) or "images"


# The configuration of a training ------------------------------------------------------------------------------------


def objects_and_names(
    loss: nn.Module | str | None,
    train_set: ImageSet | str | Path | None,
    validation_set: ImageSet | None,
    test_set: ImageSet | None,
    model: nn.Module | str | None,
) -> tuple[PassedObjects, dict[str, str]]:
    """The objects passed to ``train``, and the settings for those given by name."""
    named = {key: name for key, name in (("loss.name", loss), ("model.init", model)) if isinstance(name, str)}
    if isinstance(train_set, str | Path):
        place, train_set = str(train_set), None
        check_ambiguous_name(place)
        named |= {"data.name": place} if is_source(place) else {"data.name": "folder", "data.root": place}
    loss, model = (None if isinstance(each, str) else each for each in (loss, model))
    return PassedObjects(loss, train_set, validation_set, test_set, model), named


def training_config(
    config: Config | str | Path | None,
    settings: Mapping[str, Any] | Iterable[str],
    named: Mapping[str, str],
    run: RunFolder | None,
    has_images: bool,
) -> Config:
    """The configuration for ``train``."""
    if run is not None:
        if config is not None:
            raise ConfigError("a resumed run keeps its own settings: give either a configuration or a run to resume.")
        resumed = resumed_config(run, settings)
        return with_settings(resumed, named) if named else resumed
    if config is None and not has_images and not settings and not named:
        raise ConfigError("give either a configuration or a run to resume.")
    pairs = {**parse_settings(settings), **named}
    if isinstance(config, Config):
        return with_settings(config, pairs) if pairs else config
    return resolve(config if config is not None else default_recipe(has_images or None), pairs)


def final_config(path: Path | str, settings: Mapping[str, Any] | Iterable[str] = ()) -> Config:
    """The configuration of a training on all classes, with the settings of the run in ``path`` and its chosen step.

    Args:
        path: a finished run.
        settings: changes to those that do not change what is trained: ``{"data.on_bad_image": "skip"}``.

    Raises:
        ConfigError: a run that is not finished, or of a data set that has no split with all classes; other settings; none
            of the run's training images are there.
        DataError: its images moved.

    Example:
        >>> config = final_config("run")
        >>> config.data.train_split, config.run.steps
        ('all', 1)
    """
    run = RunFolder.open(path)
    config, outcome = run.read_config(), run.read_manifest().get("outcome")
    if not isinstance(outcome, dict):
        raise ConfigError(f"{path} is not finished, so its length is not known: recollect train --resume {path} first.")
    if "all" not in find_source(config.data.name).splits:
        raise ConfigError(f"{config.data.name} has no split with all classes, which --final needs.")
    config = with_changes(config, settings, "--final takes its settings from the run")
    refuse_moved(config.data)
    data, model = replace(config.data, train_split="all", validation="none", validation_root=None), config.model
    with contextlib.suppress(WeightsError):  # training says so, unless it downloads them or gets a model in Python
        if (run.read_manifest().get("weights") or {}).get("sha256"):
            file = obtain_weights(find(model.init), model.weights, download=False) if is_pretrained(model) else None
            refuse_other_weights(run, None if file is None else sha256(file))
    if (record := read_trained_on(run.path)) is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # training loads them again and says it
            images = load_split(data, "all")
        if (missing := refuse_foreign_images(run.path, record, images)) is not None:
            warnings.warn(missing, DataWarning, stacklevel=2)
    return replace(
        config,
        data=data,
        run=replace(config.run, steps=int(outcome.get("chosen_step", 0)), epochs=None, watch_test=False, verdict=False),
    )


# Images -------------------------------------------------------------------------------------------------------------


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


def load_sets(config: Config, passed: PassedObjects | None = None) -> Sets:
    """The image sets of ``config``; validation classes, if any, are removed from the training classes."""
    data, passed = config.data, passed or PassedObjects()
    set_max_pixels(data.max_pixels)
    train = passed.train_set or load_split(data, data.train_split)
    validation, benchmark = passed.validation_set, None
    if validation is None and data.validation == SFM_NAME:
        benchmark = load_revisited(SFM_NAME, data.validation_root or data.root or ".")
        validation = benchmark.database
    elif validation is None and data.validation != "none":
        train, validation = class_disjoint_split(train, data.validation, config.run.seed)
    test = passed.test_set or (load_split(data, data.test_split) if config.run.watch_test else None)
    sets = Sets(train, validation, test, benchmark)
    if not config.run.verdict or passed.model is not None:  # nothing to compare with
        return sets
    judged_on = test
    if test is None and passed.train_set is None:
        with contextlib.suppress(DataError):  # no test split is fine: there is then no verdict
            judged_on = load_split(replace(data, on_bad_image="skip"), data.test_split)
    if judged_on is None:
        return sets
    parts = [part for part in (train, validation) if part is not None and part.name == judged_on.name]
    trained_names = {name for part in parts for name in part.class_names}
    new = [number for number, name in enumerate(judged_on.class_names) if name not in trained_names]
    shared = tuple(name for name in judged_on.class_names if name in trained_names)
    held_out = judged_on if not shared else judged_on.of_classes(new) if new else None
    return replace(sets, held_out=held_out, shared_classes=shared)


def load_split(data: DataConfig, split: str) -> ImageSet:
    """A split of the images that settings name; missing ones are left out if ``on_bad_image`` is ``"skip"``."""
    return load(data.name, data.root, split, on_bad_image=data.on_bad_image, **data.options)


# Network, loss, batches, optimizer ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What a training is built from, before anything long is computed."""

    config: Config
    """Resolved: nothing is ``"auto"`` except ``batch.chunk``, which is ``chunk``."""
    auto_settings: Sequence[AutoSetting]
    undecided: frozenset[str]
    """Settings that were ``"auto"`` and that can be chosen better from features (``head.py``); none for few images."""
    passed: PassedObjects
    device: torch.device
    dtype: torch.dtype | None
    """Type of autocast; None for float32."""
    processes: Processes
    """The processes that share each batch."""
    sets: Sets
    embedder: Embedder
    """The whole network, which is saved."""
    frozen: nn.Module | None
    """The frozen part, if any."""
    network: nn.Module
    """The module that the loop calls: the embedder, or the part after its frozen part."""
    example: Tensor
    """One input of the largest size, with a first dimension of 1."""
    share: float
    """Average size of an input relative to ``example``."""
    chunk: int
    """Images in the network at once, on this process. A resumed run keeps its original chunk size."""
    threads: int
    """Number of torch's threads for a step."""

    @property
    def batch_size(self) -> int:
        """Images per step, over all processes."""
        size = self.config.batch.size
        return size if isinstance(size, int) else len(self.sets.train)


@dataclass(frozen=True)
class Training(Setup):
    """Everything a training needs, ready for its first step. ``trainer.py`` changes only the content of ``trained``."""

    source: BatchSource
    sampler: Sampler
    steps: int
    watched: Sequence[Watched]
    trained: Trained

    @property
    def skipped(self) -> dict[str, BadImage]:
        """Images that could not be read so far, on this process, by name."""
        sources = [self.source, *(watched.source for watched in self.watched)]
        return {bad.name: bad for source in sources for bad in source.bad_images}

    def close(self) -> None:
        """Stop the threads."""
        for source in (self.source, *(watched.source for watched in self.watched)):
            source.close()


@contextlib.contextmanager
def prepared(config: Config, passed: PassedObjects | None = None) -> Iterator[Setup]:
    """``prepare`` on the device of ``config`` and the processes of ``torchrun``, which end with the block."""
    if config.run.epochs == 0:
        raise ConfigError(
            f"{config.name} trains nothing (run.epochs 0): evaluate it with recollect eval --recipe {config.name}, or "
            "set run.epochs. --steps 0 keeps the last layer as it starts."
        )
    passed = passed or PassedObjects()
    # Misspelt names are reported before images are read, which may take a while.
    if passed.loss is None:
        describe(config.loss.name)
    if passed.model is None:
        find(config.model.init)
    find_optimizer(config.optimizer.name)
    device = choose_device(config.run.device)
    processes = distributed.start(device.type)
    if device.type == "cuda" and processes.size > 1:
        device = torch.device("cuda", torch.cuda.current_device())
    try:
        yield prepare(config, device, processes, passed)
    finally:
        if isinstance(passed.model, Embedder):  # the caller's
            passed.model.precision = "fp32"
        distributed.stop()


def prepare(config: Config, device: torch.device, processes: Processes, passed: PassedObjects | None = None) -> Setup:
    """Load the images, resolve ``"auto"`` and make the network.

    Args:
        config: the settings. device, processes: where to run.
        passed: objects passed in Python.

    Raises:
        ConfigError: settings that are impossible on this machine or with these images.
    """
    passed = passed or PassedObjects()
    with listed_once():
        sets = load_sets(config, passed)
    length = config.run.epochs if config.run.steps is None else None
    settings = {
        "model.stages": config.model.stages,
        "model.shrinkage": config.model.shrinkage,
        "optimizer.lr": config.optimizer.lr,
        "run.epochs": length,
    }
    undecided = frozenset(key for key, value in settings.items() if value == "auto")
    pretrained = is_pretrained(config.model) if passed.model is None else passed.pretrained
    config, auto_settings = resolve_auto(config, sets.train, device, pretrained)
    if undecided and too_few(config, sets.train):
        undecided = frozenset()
    if config.model.whitening != "all" or config.model.freeze not in ("none", "pooling"):
        undecided -= {"model.stages"}
    if config.run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it below torch 2.13
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    dtype, model = autocast_dtype(usable_precision(config.run.precision, device, "run.precision")), passed.model
    embedder = model if isinstance(model, Embedder) else make_embedder(config.model, config.run.seed, model)
    embedder = embedder.to(device)
    embedder.precision = config.run.precision
    if "model.stages" in undecided and hasattr(embedder.backbone, "forward_intermediates"):
        embedder.set_stages(STAGES)  # features of all that may be chosen, in one pass
    if config.model.lora is not None:
        torch.manual_seed(config.run.seed)
        add_lora(embedder.backbone, config.model.lora)
    if config.run.activation_checkpointing:
        if not hasattr(network := timm_network(embedder.backbone), "set_grad_checkpointing"):
            raise ConfigError(f"run.activation_checkpointing: {config.model.init} has no checkpoints; remove it.")
        network.set_grad_checkpointing()
    frozen, network = divided(embedder, config)
    check_trainable_in_chunks(network)
    network.train()
    if config.run.compile:
        network.compile()
    example, share = largest_input(config, embedder, sets.train, frozen)
    size = config.batch.size if isinstance(config.batch.size, int) else len(sets.train)
    mine, chunk = -(-size // processes.size), config.batch.chunk
    # From the settings only: a resumed run keeps its number of threads, even if another chunk fits now.
    threads = step_threads(network, example, mine, mine if chunk == "auto" else chunk)
    if chunk == "auto":
        # One image repeated M times needs as much memory as M images at most, and needs no reading.
        chunk = find_chunk(network, example.expand(mine, *example.shape[1:]), dtype)
    if config.run.shard and processes.size > 1:
        if passed.model is not None:
            raise ConfigError("run.shard is for models that recollect makes: give the model by name or reference.")
        modules = dict(embedder.backbone.named_modules())
        shard(embedder, [modules[name] for name in backbone_layers(embedder.backbone) if name in modules], processes)
    return Setup(
        config=config,
        auto_settings=auto_settings,
        undecided=undecided,
        passed=passed,
        device=device,
        dtype=dtype,
        processes=processes,
        sets=sets,
        embedder=embedder,
        frozen=frozen,
        network=network,
        example=example,
        share=share,
        chunk=min(chunk, mine),
        threads=threads,
    )


def divided(embedder: Embedder, config: Config) -> tuple[nn.Module | None, nn.Module]:
    """The frozen part whose features are stored, if any, and the network of the training loop."""
    if config.model.freeze == "none":
        return None, embedder
    embedder.freeze(config.model.freeze)
    # Otherwise the frozen part is computed in every step, without gradient.
    stored = config.trains_on_features and embedder.can_split(config.model.freeze)
    return embedder.split(config.model.freeze) if stored else (None, embedder)


def open_source(setup: Setup) -> BatchSource:
    """The training images as batches. Features of a frozen part are computed here, unless they are stored."""
    return make_source(setup.config, setup.embedder, setup.sets.train, frozen=setup.frozen, training=True)


def build(setup: Setup, source: BatchSource | None = None) -> Training:
    """Loss, batches and optimizer, from the final settings.

    Args:
        setup: see ``prepare``; ``head.choose_start`` has made its choices.
        source: the training images, if ``open_source`` was called already.
    """
    config, sets = setup.config, setup.sets
    source = source or open_source(setup)
    watched = [
        watch(setup, name, images, benchmark)
        for name, images, benchmark in (("val", sets.validation, sets.benchmark), ("test", sets.test, None))
        if images is not None
    ]
    sampler = make_sampler(config, sets.train.labels)
    trained = make_trained(setup, setup.passed.loss)
    # All processes have built the same network; from here on they draw different random numbers (dropout).
    torch.manual_seed(config.run.seed + 7919 * (setup.processes.rank + 1))
    return Training(
        **vars(setup),
        source=source,
        sampler=sampler,
        steps=number_of_steps(config, sampler),
        watched=watched,
        trained=trained,
    )


def make_trained(setup: Setup, loss: nn.Module | None = None) -> Trained:
    """The loss and the optimizer beside the network; ``loss``: one passed in Python."""
    config, device, train, embedder = setup.config, setup.device, setup.sets.train, setup.embedder
    classes = len(train.class_names)
    if loss is None:
        loss = make_loss(config, classes, embedder.dim, train.coarse_of_classes)
    else:
        each = config.batch.samples_per_class
        try_copy(loss, type(loss).__name__, embedder.dim, classes, samples_per_class=each, device=device)
    loss = seeded(loss, config.run.seed).to(device)
    return Trained(
        model=embedder,
        loss=loss,
        optimizer=make_optimizer(config.optimizer, embedder, loss),
        scaler=torch.amp.GradScaler(device.type, enabled=setup.dtype == torch.float16),
        device=device,
        processes=setup.processes,
        average=WeightAverage(embedder, config.optimizer.ema) if config.optimizer.ema else None,
    )


def make_loss(config: Config, num_classes: int, dim: int, coarse: Sequence[int] | None = None) -> nn.Module:
    """The loss with seeded parameters; the number of classes, the embedding's dimension and the coarser classes are passed
    if it has such arguments. A loss from outside is tried first (``losses/registry.py``).

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
    lengths = prefix_lengths(dims, dim, "loss.dims")
    return Matryoshka([_one_loss(config, num_classes, length, coarse) for length in lengths], dims)


def _one_loss(config: Config, num_classes: int, dim: int, coarse: Sequence[int] | None) -> nn.Module:
    options: dict[str, Any] = dict(config.loss.options)
    asked = {option.name for option in describe(config.loss.name).options}
    values = {"num_classes": num_classes, "dim": dim, "coarse": coarse}
    for name in values.keys() & asked - options.keys():
        if values[name] is None:
            raise ConfigError(
                f"loss.name {config.loss.name} needs two levels of labels, but these images have one: use images with "
                "coarser classes (sop, inaturalist), or set loss.options.coarse to a number for each class."
            )
        options[name] = values[name]
    torch.manual_seed(config.run.seed + 1)
    return create(config.loss.name, **options)


def seeded(loss: nn.Module, seed: int) -> nn.Module:
    """Give the loss its own generators: SiMix draws the same on every process, independent of the network."""
    for part in loss.modules():
        if hasattr(part, "generator"):
            part.generator = torch.Generator().manual_seed(seed)  # type: ignore[assignment]
    return loss


def watch(setup: Setup, name: str, images: ImageSet, benchmark: RevisitedBenchmark | None) -> Watched:
    """A set to evaluate during training, with this process's part of it."""
    config, processes, embedder = setup.config, setup.processes, setup.embedder
    start, stop = (len(images) * rank // processes.size for rank in (processes.rank, processes.rank + 1))
    mine = images if processes.size == 1 else images.subset(np.arange(start, stop))
    if benchmark is not None:  # leaving out an image would shift the ground truth
        config = replace(config, data=replace(config.data, on_bad_image="error"))
    source = make_source(config, embedder, mine, frozen=setup.frozen, training=False)
    return Watched(name, images, source, start, embedder.images_at_once, benchmark)
