"""What a training is about to do, said before it does it: sizes, memory, time, and every choice made for the user."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recollect.common.threads import limited_threads
from recollect.common.words import in_words
from recollect.config.automatic import Choice
from recollect.config.schema import Config
from recollect.losses.engine.simix import MAX_PAIRS
from recollect.models.zoo import find
from recollect.step.chunking import GraphWeight, graph_weight
from recollect.step.model_inputs import call_model
from recollect.step.randomness import random_state, set_random_state
from recollect.training.build import Machine, Training

_PROBE = 32  # images: enough that their time is that of a large chunk
_PROBE_SECONDS = 1.0  # a probe goes on for about so long, if it is short
_LOSS_MEMORY = 512 << 20  # what the rank losses allow themselves beside embeddings


@dataclass(frozen=True)
class DataFigures:
    """What is learned from."""

    data: str
    images: int
    classes: int
    classes_used: int
    validation_classes: int
    validation_queries: int

    def lines(self) -> list[str]:
        """As text."""
        unused = self.classes - self.classes_used
        parts = [
            f"{self.images:,} images, {self.classes_used:,} classes{f' ({unused:,} too small to use)' if unused else ''}"
        ]
        if self.validation_classes:
            parts.append(f"{self.validation_classes:,} classes validate")
        if self.validation_queries:
            parts.append(f"{self.validation_queries:,} queries of sfm120k validate")
        return [f"data       {self.data}: {'; '.join(parts)}"]


@dataclass(frozen=True)
class NetworkFigures:
    """What learns."""

    init: str
    image_size: int | None
    parameters: int
    trained_parameters: int
    frozen: str

    def lines(self) -> list[str]:
        """As text."""
        size = f" at {self.image_size} px" if self.image_size else ""
        frozen = f", frozen up to {self.frozen}: features are computed once" if self.frozen != "none" else ""
        return [
            f"model      {self.init}{size}: {self.parameters / 1e6:.1f} M parameters, "
            f"{self.trained_parameters / 1e6:.2f} M trained{frozen}"
        ]


@dataclass(frozen=True)
class BatchFigures:
    """What one step sees."""

    batch: int
    classes_per_batch: int
    virtual_batch: int
    """Images and virtual images of the loss; SiMix adds one for each pair of a class, up to ``max_pairs``."""
    chunk: int
    processes: int
    longer_side: int
    """Of whole images, at most; 0 when all have one size."""

    def lines(self) -> list[str]:
        """As text."""
        virtual = f", with SiMix {self.virtual_batch:,}" if self.virtual_batch > self.batch else ""
        each = f", {self.batch // self.processes:,} on each of {self.processes} processes" if self.processes > 1 else ""
        whole = f", each of at most {self.longer_side} × {self.longer_side} pixels" if self.longer_side else ""
        return [
            f"batch      {self.batch:,} images of {self.classes_per_batch:,} classes{virtual}{each}",
            f"chunk      {self.chunk:,} images in the network at once{whole}",
        ]


@dataclass(frozen=True)
class LengthFigures:
    """How long it goes on."""

    steps: int
    epochs: float
    batches_per_epoch: int

    def lines(self) -> list[str]:
        """As text."""
        return [f"length     {self.steps:,} steps: {self.epochs:.3g} epochs of {self.batches_per_epoch:,} batches"]


@dataclass(frozen=True)
class CostFigures:
    """What it takes, measured on a few images."""

    device: str
    precision: str
    memory_mb: int
    seconds_per_step: float

    def lines(self, steps: int) -> list[str]:
        """As text."""
        return [
            f"machine    {self.device}, {self.precision}; about {self.memory_mb:,} MB",
            f"time       about {in_words(self.seconds_per_step * steps)} for the network "
            f"({self.seconds_per_step:.2g} s a step), loss and evaluation not counted",
        ]


@dataclass(frozen=True)
class Plan:
    """The figures of a training before it starts."""

    data: DataFigures
    network: NetworkFigures
    batch: BatchFigures
    length: LengthFigures
    cost: CostFigures

    def as_dict(self) -> dict[str, Any]:
        """All figures in one mapping of plain values, for the manifest: their names are unique."""
        return {name: value for group in asdict(self).values() for name, value in group.items()}

    def lines(self, choices: Sequence[Choice] = ()) -> list[str]:
        """The plan as text."""
        groups = (self.data, self.network, self.batch, self.length)
        text = [line for group in groups for line in group.lines()] + self.cost.lines(self.length.steps)
        return text + [f"chosen     {choice}" for choice in choices]


def estimate(training: Training) -> Plan:
    """Measure a few images and put the figures together. Leaves no trace in ``training``."""
    config, sets, batches = training.config, training.sets, training.batches
    images, batch = sets.train, config.batch
    whole = batch.size == "all"
    sizes = images.class_sizes[images.class_sizes > 0]
    used = sizes if whole or batch.small_classes == "repeat" else sizes[sizes >= batch.samples_per_class]
    inputs, share = batches.feed.example()
    per_epoch, epochs = len(batches.sampler), config.run.epochs
    return Plan(
        DataFigures(
            data=config.data.name,
            images=len(images),
            classes=len(sizes),
            classes_used=len(used),
            validation_classes=0 if sets.validation is None or sets.benchmark else sets.validation.num_classes,
            validation_queries=0 if sets.benchmark is None else len(sets.benchmark.queries),
        ),
        _network(training),
        BatchFigures(
            batch=batches.size,
            classes_per_batch=len(used) if whole else batches.size // batch.samples_per_class,
            virtual_batch=_virtual(config, batches.size, used),
            chunk=batches.chunk,
            processes=training.machine.team.size,
            longer_side=inputs.shape[-1] if batches.feed.whole_images else 0,
        ),
        LengthFigures(batches.steps, epochs if isinstance(epochs, int) else batches.steps / per_epoch, per_epoch),
        _cost(training, inputs, share),
    )


def _network(training: Training) -> NetworkFigures:
    config, parameters = training.config.model, list(training.network.embedder.parameters())
    row = find(config.init)
    return NetworkFigures(
        init=config.init,
        image_size=config.image_size or (row.size if row.resize is not None else None),
        parameters=sum(parameter.numel() for parameter in parameters),
        trained_parameters=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        frozen=config.freeze,
    )


def _cost(training: Training, inputs: Tensor, share: float) -> CostFigures:
    """``inputs``: at least one input, as large as any; ``share``: how much of that an input has on average."""
    machine, batches, network = training.machine, training.batches, _network(training)
    mine = -(-batches.size // machine.team.size)
    with limited_threads(batches.threads):
        weight, seconds = _probe(training.network.trained, inputs, min(_PROBE, batches.chunk), machine)
    # Weights, gradients and the optimizer's two moments; one chunk's graph; the batch and the one being read ahead.
    held = 4 * network.parameters + 12 * network.trained_parameters + weight.of(batches.chunk)
    held += 2 * mine * inputs[0].nbytes * share + _LOSS_MEMORY
    passes = 1.0 if batches.chunk >= mine else 4 / 3
    return CostFigures(
        device=str(machine.device),
        precision=training.config.run.precision,
        memory_mb=int(held / 2**20),
        seconds_per_step=seconds * share * mine * passes,
    )


def _probe(network: nn.Module, inputs: Tensor, count: int, machine: Machine) -> tuple[GraphWeight, float]:
    """What the graph weighs, and seconds of forward and backward per image; leaves no trace."""
    device, dtype = machine.device, machine.dtype
    state = random_state(device)
    some = inputs[torch.arange(count) % len(inputs)].to(device)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]

    def forward(number: int) -> Tensor:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False):
            embeddings: Tensor = call_model(network, some[:number])
        return embeddings

    weight = graph_weight(forward, network, count)
    seconds: list[float] = []
    # The first pays for memory and kernels that later ones reuse; of a small network more are needed, and cost nothing.
    while len(seconds) < 2 or (len(seconds) < 8 and sum(seconds) < _PROBE_SECONDS):
        start = time.perf_counter()
        with torch.enable_grad():
            embeddings = forward(count)
            torch.autograd.grad(embeddings, parameters, torch.zeros_like(embeddings), allow_unused=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    set_random_state(device, state)
    return weight, min(seconds) / count


def _virtual(config: Config, batch: int, sizes: NDArray[np.int64]) -> int:
    """Images and virtual images a loss sees: SiMix adds one for each pair of a class, up to ``max_pairs``."""
    if not config.loss.options.get("simix"):
        return batch
    each = config.batch.samples_per_class
    classes = sizes if config.batch.size == "all" else np.full(batch // each, each)
    pairs = classes * (classes - 1) // 2
    limit = config.loss.options.get("max_pairs", MAX_PAIRS)
    return batch + int((pairs if limit is None else np.minimum(pairs, limit)).sum())
