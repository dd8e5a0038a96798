"""The plan of a training, printed before it starts: sizes, memory, time, and all automatic settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from shlex import quote
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.machine import limited_threads, resident_bytes
from recollect.common.text import in_digits, in_words, number_of, some_names
from recollect.config.automatic import Choice
from recollect.config.schema import Config
from recollect.data.folders import summary
from recollect.evaluation.verdict import FEW_QUERIES
from recollect.losses.engine.simix import MAX_PAIRS
from recollect.step.randomness import random_state, set_random_state
from recollect.training.batches import PixelFeed, make_feed
from recollect.training.build import Training
from recollect.training.last_layer import LARGEST, all_trial_steps, whitening_images
from recollect.training.memory_limit import refuse_chunk, refuse_estimate
from recollect.training.probes import (
    NetworkProbe,
    both_at_once,
    passing_bytes,
    probe_loss,
    probe_network,
    probe_optimizer,
    probe_ranking,
    probe_reading,
)
from recollect.training.validation import Watched

_LOSS_MEMORY = 512 << 20  # memory of the rank losses in addition to embeddings
_LOSS_MATRICES = 6  # of a small batch: similarities, soft ranks and their gradients
_FEATURES_AT_ONCE = 64  # images in ``frozen_features``
_BYTES_PER_SECOND = 200e6  # to a disk
_BESIDE = 1.4  # factor for gradients, copies of activations and memory that is freed but kept; measured with Lite0


def few_queries(queries: int) -> list[str]:
    """A remark if so few queries decide little; none if there are enough, or none at all."""
    if not 0 < queries < FEW_QUERIES:
        return []
    points = 50 / math.sqrt(queries)
    return [f"{queries:,} validation queries are few: chance alone changes r@1 by about {points:.0f} points"]


@dataclass(frozen=True)
class DataFigures:
    """The training images."""

    data: str
    images: int
    classes: int
    classes_used: int
    validation_classes: int
    validation_queries: int
    """Number of queries of sfm120k."""
    validation_images: int
    left_out: dict[str, int]
    """Skipped files, by reason."""
    held_out_classes: int
    held_out_images: int
    all_classes: bool
    """Whether nothing is held out, on purpose."""
    shared_classes: tuple[str, ...] = ()
    """Classes of the test part that are trained on as well."""
    given_split: bool = False
    """The data say which classes are for testing."""
    root: str | None = None
    """The folder or list, if the images are one's own."""

    def lines(self) -> list[str]:
        """As text."""
        unused = self.classes - self.classes_used
        parts = [
            f"{number_of(self.images, 'image')}, {number_of(self.classes_used, 'class')}"
            f"{f' ({unused:,} too small to use)' if unused else ''}"
        ]
        if self.validation_classes:
            parts.append(f"{number_of(self.validation_classes, 'class')} for validation")
        if self.validation_queries:
            parts.append(f"{self.validation_queries:,} queries of sfm120k for validation")
        text = [f"data       {self.data}: {'; '.join(parts)}"]
        if self.left_out or self.held_out_classes:
            text.append(f"files      {summary(self.images, self.left_out, self.held_out_classes)}")
        if self.held_out_classes:
            text.append(
                f"held out   {number_of(self.held_out_classes, 'class')} ({number_of(self.held_out_images, 'image')}), "
                "so that the result can be measured on unseen classes"
                f"{'' if self.given_split else '; --test-share changes how many'}. When you are satisfied with the settings, "
                "recollect train --final RUN trains on all classes"
            )
        if self.shared_classes and not self.all_classes:
            count = number_of(len(self.shared_classes), "class of the test part is/classes of the test part are")
            some = some_names(self.shared_classes)
            text.append(
                f"note       {count} trained on as well ({some}); the result is not measured there"
                + ("" if self.held_out_classes else ", and there are no others: hold out whole classes, not images")
            )
            if self.root and not self.held_out_classes:
                command = f"recollect train --data {quote(self.root)} --test-share 0.5"
                text.append(f"instead    pool both parts and hold out half of the classes: {command}")
        if self.all_classes:
            text.append("note       all classes are used for training: none are left for testing")
        queries = self.validation_queries or self.validation_images
        text += [f"note       {remark}" for remark in few_queries(queries)]
        return text


@dataclass(frozen=True)
class NetworkFigures:
    """The network."""

    init: str
    image_size: int | None
    parameters: int
    trained_parameters: int
    frozen: str
    own_size: bool
    """Whether this is the resolution of its pre-training."""

    def lines(self) -> list[str]:
        """As text."""
        size = f" at {self.image_size} px" if self.image_size else ""
        frozen = f", frozen up to {self.frozen}: features are computed once" if self.frozen != "none" else ""
        text = [
            f"model      {self.init}{size}: {self.parameters / 1e6:.1f} M parameters, "
            f"{self.trained_parameters / 1e6:.2f} M trained{frozen}"
        ]
        if self.frozen != "none" and self.own_size:
            text.append(
                f"size       features are computed at the resolution the network was pre-trained at, {self.image_size} px; "
                "smaller photos are enlarged, because features are worse at other sizes (--image-size changes it)"
            )
        return text


@dataclass(frozen=True)
class BatchFigures:
    """The batch of one step."""

    batch: int
    classes_per_batch: int
    virtual_batch: int
    """Images and virtual images of the loss; SiMix adds one for each pair of a class, up to ``max_pairs``."""
    chunk: int
    processes: int
    longer_side: int
    """Maximum longer side of whole images; 0 if all have one size."""

    def lines(self) -> list[str]:
        """As text."""
        virtual = f", with SiMix {self.virtual_batch:,}" if self.virtual_batch > self.batch else ""
        each = f", {self.batch // self.processes:,} on each of {self.processes} processes" if self.processes > 1 else ""
        whole = f", each of at most {self.longer_side} × {self.longer_side} pixels" if self.longer_side else ""
        return [
            f"batch      {number_of(self.batch, 'image')} of {number_of(self.classes_per_batch, 'class')}{virtual}{each}",
            f"chunk      {number_of(self.chunk, 'image')} in the network at once{whole}",
        ]


@dataclass(frozen=True)
class LengthFigures:
    """The length of the training."""

    steps: int
    epochs: float
    batches_per_epoch: int

    def lines(self) -> list[str]:
        """As text."""
        steps = number_of(self.steps, "step")
        if not self.steps:
            return [f"length     {steps}: the last layer stays as it starts"]
        epochs = "1 epoch" if self.epochs == 1 else f"{in_digits(self.epochs)} epochs"
        return [f"length     {steps}: {epochs} of {number_of(self.batches_per_epoch, 'batch')}"]


@dataclass(frozen=True)
class MachineFigures:
    """Device, precision and memory."""

    device: str
    precision: str
    memory_mb: int
    """Peak memory of the whole process; on a GPU, of the GPU."""

    def lines(self) -> list[str]:
        """As text."""
        return [f"machine    {self.device}, {self.precision}; about {self.memory_mb:,} MB"]


@dataclass(frozen=True)
class TimeFigures:
    """Estimated times, measured on a few images."""

    seconds: float
    """Total."""
    seconds_features: float
    """Features of a frozen part, once."""
    seconds_whitening: float
    seconds_per_step: float
    """Reading, network, loss, optimizer."""
    evaluations: int
    seconds_per_evaluation: float
    seconds_saving: float
    seconds_verdict: float
    seconds_choosing: float = 0.0
    """Trials with several learning rates."""

    def lines(self, steps: int) -> list[str]:
        """As text: the total, then every part of at least a twentieth of it."""
        parts = {
            "features": self.seconds_features,
            "whitening": self.seconds_whitening,
            "choosing the learning rate": self.seconds_choosing,
            f"steps ({self.seconds_per_step:.2g} s each)": self.seconds_per_step * steps,
            "evaluations": self.evaluations * self.seconds_per_evaluation,
            "saving": self.seconds_saving,
            "verdict": self.seconds_verdict,
        }
        if self.seconds < 1:
            return [f"time       about {in_words(self.seconds)}"]
        told = [f"{name} {in_words(value)}" for name, value in parts.items() if value >= max(0.05 * self.seconds, 1e-9)]
        return [f"time       about {in_words(self.seconds)}: {', '.join(told)}"]


@dataclass(frozen=True)
class Plan:
    """The figures of a training before it starts."""

    data: DataFigures
    network: NetworkFigures
    batch: BatchFigures
    length: LengthFigures
    machine: MachineFigures
    time: TimeFigures

    def as_dict(self) -> dict[str, Any]:
        """All figures in one mapping of plain values, for the manifest: their names are unique."""
        return {name: value for group in asdict(self).values() for name, value in group.items()}

    def with_length(self, training: Training) -> Plan:
        """The plan with the length of ``training``, which may have been chosen after the plan was printed."""
        return replace(self, length=_length(training))

    def lines(self, choices: Sequence[Choice] = ()) -> list[str]:
        """The plan as text."""
        groups = (self.data, self.network, self.batch, self.length, self.machine)
        text = [line for group in groups for line in group.lines()] + self.time.lines(self.length.steps)
        return text + [f"chosen     {choice}" for choice in choices]


def estimate(training: Training) -> Plan:
    """Measure a few images and compute the figures. Does not change ``training``."""
    device = training.machine.device
    state = random_state(device)
    try:
        return _estimate(training)
    finally:
        set_random_state(device, state)


def _estimate(training: Training) -> Plan:
    config, sets, batches = training.config, training.sets, training.batches
    images, batch = sets.train, config.batch
    whole = batch.size == "all"
    sizes = images.class_sizes[images.class_sizes > 0]
    used = sizes if whole or batch.small_classes == "repeat" else sizes[sizes >= batch.samples_per_class]
    inputs, share = batches.feed.example()
    held_before = resident_bytes()
    refuse_chunk(training.network.trained, inputs, batches.chunk, training.machine.device)
    with limited_threads(batches.threads):
        probe = probe_network(training.network.trained, inputs, batches.chunk, training.machine)
    network, virtual = _network(training), _virtual(config, batches.size, used)
    memory = _memory(training, network, probe, inputs, share, virtual, held_before)
    refuse_estimate(memory, training.machine.device)
    return Plan(
        DataFigures(
            data=config.data.name,
            images=len(images),
            classes=len(sizes),
            classes_used=len(used),
            validation_classes=0 if sets.validation is None or sets.benchmark else sets.validation.num_classes,
            validation_queries=0 if sets.benchmark is None else len(sets.benchmark.queries),
            validation_images=0 if sets.validation is None else len(sets.validation),
            left_out={str(reason): int(count) for reason, count in images.facts.get("left_out", {}).items()},
            held_out_classes=0 if sets.held_out is None else sets.held_out.num_classes,
            held_out_images=0 if sets.held_out is None else len(sets.held_out),
            all_classes=config.data.train_split == "all",
            shared_classes=sets.shared_classes,
            root=config.data.root if config.data.name == "folder" else None,
            given_split=sets.held_out is not None
            and sets.held_out.facts.get("split", {}).get("class_split", "given") == "given",
        ),
        network,
        BatchFigures(
            batch=batches.size,
            classes_per_batch=len(used) if whole else batches.size // batch.samples_per_class,
            virtual_batch=virtual,
            chunk=batches.chunk,
            processes=training.machine.team.size,
            longer_side=inputs.shape[-1] if batches.feed.whole_images else 0,
        ),
        _length(training),
        MachineFigures(
            device=str(training.machine.device),
            precision=config.run.precision,
            memory_mb=int(memory / 2**20),
        ),
        _time(training, network, probe, share),
    )


def _length(training: Training) -> LengthFigures:
    steps, per_epoch, epochs = training.batches.steps, len(training.batches.sampler), training.config.run.epochs
    return LengthFigures(steps, epochs if isinstance(epochs, int) else steps / per_epoch, per_epoch)


def _network(training: Training) -> NetworkFigures:
    config, parameters = training.config.model, list(training.network.embedder.parameters())
    expected = training.network.embedder.preprocessing
    return NetworkFigures(
        init=config.init,
        image_size=config.image_size or (expected.size if expected.resize is not None else None),
        parameters=sum(parameter.numel() for parameter in parameters),
        trained_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        frozen=config.freeze,
        own_size=config.image_size is None and expected.resize is not None,
    )


def _memory(
    training: Training,
    network: NetworkFigures,
    probe: NetworkProbe,
    inputs: Tensor,
    share: float,
    virtual: int,
    held_before: int,
) -> float:
    """Memory in bytes. ``inputs``: one of the largest size; ``share``: average size of an input relative to it."""
    batches, machine = training.batches, training.machine
    mine = -(-batches.size // machine.team.size)
    # The process already contains the weights; gradients and the optimizer's two moments come later.
    held = float(held_before) if machine.device.type == "cpu" else 4.0 * network.parameters
    held += 12 * network.trained_parameters
    # One chunk's graph; the batch, the next one being read, and whatever else the pipeline reads ahead.
    held += _BESIDE * probe.graph.of(batches.chunk) + 2 * mine * inputs[0].nbytes * share
    if isinstance(batches.feed, PixelFeed) and machine.device.type == "cpu":
        ahead = mine * inputs[0].nbytes * share * batches.steps
        held += min(training.config.data.prefetch_mb << 20, ahead)
    held += min(_LOSS_MEMORY, 4 * _LOSS_MATRICES * virtual * virtual)
    # Embedding for an evaluation, or features of the frozen part, before or between steps.
    passing = max((probe.passing * each.at_once for each in training.watched), default=0.0)
    if training.network.frozen is not None and machine.device.type == "cpu":
        passing = max(passing, _FEATURES_AT_ONCE * _passing_of_frozen(training))
    vectors = max((2 * 4 * len(each.images) * training.network.embedder.dim for each in training.watched), default=0)
    return max(held, float(held_before) + _BESIDE * passing) + vectors


def _passing_of_frozen(training: Training) -> float:
    """Memory per image for computing features, in bytes."""
    embedder, frozen = training.network.embedder, training.network.frozen
    if frozen is None:
        return 0.0
    side = embedder.preprocessing.size
    image = torch.zeros(1, 3, side, side, dtype=torch.uint8, device=embedder.device)
    with torch.no_grad():
        return passing_bytes(frozen, lambda: frozen(image))


def _time(training: Training, network: NetworkFigures, probe: NetworkProbe, share: float) -> TimeFigures:
    config, sets, batches, machine = training.config, training.sets, training.batches, training.machine
    dim, device, processes = training.network.embedder.dim, machine.device, machine.team.size
    each = config.batch.samples_per_class
    num_classes, coarse = len(sets.train.class_names), sets.train.coarse_of_classes
    # Spread over all classes: neighbours belong to one coarser class.
    drawn = np.linspace(0, num_classes - 1, batches.size // each).astype(np.int64)
    labels = sets.train.labels if config.batch.size == "all" else np.repeat(drawn, each)
    optimizing, reading = probe_optimizer(config, network.trained_parameters, device), probe_reading(batches.feed)

    def step_on(labels: NDArray[np.int64], images: int, processes: int) -> float:
        mine = -(-images // processes)
        compute = probe.step(mine, batches.chunk) * share + optimizing
        # Processes share the loss if it can be shared; otherwise it takes the full time on each.
        compute += probe_loss(config, labels, num_classes, dim, device, training.given_loss, coarse) / processes
        return both_at_once(compute, reading * mine, device)

    step, choosing = step_on(labels, batches.size, processes), 0.0
    if trials := all_trial_steps(training):  # by one process
        half = labels[labels < (num_classes + 1) // 2][: None if config.batch.size == "all" else LARGEST]
        choosing = trials * step_on(half, len(half), 1)
    features = sum(feed.seconds_to_prepare() for feed in training.feeds)
    evaluation = sum(_evaluation(training, watched, probe, share) for watched in training.watched)
    chosen = whitening_images(config, sets.train)
    whitening = 0.0 if chosen is None else len(chosen.images) * (probe.forward * share + reading)
    count = _evaluations(training)
    verdict = _verdict(training, probe.forward * share + reading)
    saving = _saving(training, network, step * batches.steps, count)
    return TimeFigures(
        seconds=features + whitening + choosing + step * batches.steps + count * evaluation + saving + verdict,
        seconds_features=features,
        seconds_whitening=whitening,
        seconds_choosing=choosing,
        seconds_per_step=step,
        evaluations=count,
        seconds_per_evaluation=evaluation,
        seconds_saving=saving,
        seconds_verdict=verdict,
    )


def _verdict(training: Training, per_image: float) -> float:
    """Seconds of the verdict: with a frozen part its features of the test images, otherwise a pass for each network."""
    held_out, network = training.sets.held_out, training.network
    if held_out is None:
        return 0.0
    if network.frozen is None:
        return (3 if training.config.model.whitening == "all" else 2) * len(held_out) * per_image
    # The verdict skips test photos that cannot be read, so the plan does too.
    config = replace(training.config, data=replace(training.config.data, on_bad_image="skip"))
    return make_feed(config, network.embedder, held_out, frozen=network.frozen, training=False).seconds_to_prepare()


def _evaluation(training: Training, watched: Watched, probe: NetworkProbe, share: float) -> float:
    """Seconds of one evaluation of a set: reading, embedding, ranking."""
    machine, images = training.machine, watched.images
    mine = -(-len(images) // machine.team.size)
    embedding = both_at_once(probe.forward * share, probe_reading(watched.feed), machine.device) * mine
    if watched.benchmark is not None:  # a few queries
        return embedding
    return embedding + probe_ranking(images.labels, training.network.embedder.dim, machine.device) / machine.team.size


def _evaluations(training: Training) -> int:
    """How often the watched sets are evaluated."""
    run, batches = training.config.run, training.batches
    if not training.watched:
        return 0
    per_epoch = max(len(batches.sampler), 1)
    epochs, rest = divmod(batches.steps, per_epoch)
    every = run.evaluate_every if isinstance(run.evaluate_every, int) else 1
    at_the_end = bool(rest) or epochs % every != 0
    return int(run.evaluate_first) + epochs // every + int(at_the_end)


def _saving(training: Training, network: NetworkFigures, seconds: float, evaluations: int) -> float:
    """Seconds of checkpoints, best weights and the model at the end."""
    run = training.config.run
    checkpoints = seconds / (60 * run.checkpoint_minutes) if run.checkpoint_minutes else training.batches.steps
    if run.checkpoint_steps:
        checkpoints = max(checkpoints, training.batches.steps / run.checkpoint_steps)
    weights, moments = 4 * network.parameters, 8 * network.trained_parameters
    # About a third of many evaluations are the best so far.
    best = evaluations / 3 if training.sets.validation is not None else 0
    return float(checkpoints * (weights + moments) + (best + 1) * weights) / _BYTES_PER_SECOND


def _virtual(config: Config, batch: int, sizes: NDArray[np.int64]) -> int:
    """Images and virtual images of a loss: SiMix adds one for each pair of a class, up to ``max_pairs``."""
    if not config.loss.options.get("simix"):
        return batch
    each = config.batch.samples_per_class
    classes = sizes if config.batch.size == "all" else np.full(batch // each, each)
    pairs = classes * (classes - 1) // 2
    limit = config.loss.options.get("max_pairs", MAX_PAIRS)
    return batch + int((pairs if limit is None else np.minimum(pairs, limit)).sum())
