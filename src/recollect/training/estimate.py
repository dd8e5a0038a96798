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

from recollect.common.words import in_words
from recollect.config.automatic import Choice
from recollect.config.schema import Config
from recollect.losses.engine.simix import MAX_PAIRS
from recollect.models.zoo import find
from recollect.step.chunking import GraphWeight, graph_weight
from recollect.step.model_inputs import call_model
from recollect.step.randomness import random_state, set_random_state
from recollect.training.parts import Sets

_PROBE = 32  # images: enough that their time is that of a large chunk
_PROBE_SECONDS = 1.0  # a probe goes on for about so long, if it is short
_LOSS_MEMORY = 512 << 20  # what the rank losses allow themselves beside embeddings


@dataclass(frozen=True)
class Plan:
    """The figures of a training before it starts."""

    data: str
    images: int
    classes: int
    classes_used: int
    validation_classes: int
    batch: int
    classes_a_batch: int
    virtual_batch: int
    chunk: int
    processes: int
    batches_an_epoch: int
    epochs: float
    steps: int
    parameters: int
    trained_parameters: int
    memory_mb: int
    seconds_a_step: float
    device: str
    precision: str
    frozen: str
    init: str = ""
    image_size: int | None = None
    validation_queries: int = 0
    longer_side: int = 0
    """Of whole images, at most; 0 when all have one size."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        return asdict(self)

    def lines(self, choices: Sequence[Choice] = ()) -> list[str]:
        """The plan as text."""
        virtual = f", with SiMix {self.virtual_batch:,}" if self.virtual_batch > self.batch else ""
        shared = (
            f", {self.batch // self.processes:,} on each of {self.processes} processes" if self.processes > 1 else ""
        )
        unused = (
            "" if self.classes_used == self.classes else f" ({self.classes - self.classes_used:,} too small to use)"
        )
        held_out = f"; {self.validation_classes:,} classes validate" if self.validation_classes else ""
        held_out += f"; {self.validation_queries:,} queries of sfm120k validate" if self.validation_queries else ""
        whole = f", each of at most {self.longer_side} × {self.longer_side} pixels" if self.longer_side else ""
        frozen = f", frozen up to {self.frozen}: features are computed once" if self.frozen != "none" else ""
        size = f" at {self.image_size} px" if self.image_size else ""
        text = [
            f"data       {self.data}: {self.images:,} images, {self.classes_used:,} classes{unused}{held_out}",
            f"model      {self.init}{size}: {self.parameters / 1e6:.1f} M parameters, "
            f"{self.trained_parameters / 1e6:.2f} M trained{frozen}",
            f"batch      {self.batch:,} images of {self.classes_a_batch:,} classes{virtual}{shared}",
            f"chunk      {self.chunk:,} images in the network at once{whole}",
            f"length     {self.steps:,} steps: {self.epochs:.3g} epochs of {self.batches_an_epoch:,} batches",
            f"machine    {self.device}, {self.precision}; about {self.memory_mb:,} MB",
            f"time       about {in_words(self.seconds_a_step * self.steps)} for the network "
            f"({self.seconds_a_step:.2g} s a step), loss and evaluation not counted",
        ]
        return text + [f"chosen     {choice}" for choice in choices]


def make_plan(
    config: Config,
    sets: Sets,
    *,
    model: nn.Module,
    trained: nn.Module,
    inputs: Tensor,
    share: float,
    whole_images: bool,
    chunk: int,
    batch: int,
    batches_an_epoch: int,
    steps: int,
    processes: int,
    device: torch.device,
    dtype: torch.dtype | None,
) -> Plan:
    """Measure a few images and put the figures together.

    Args:
        config: settled.
        sets: the images.
        model: the whole network.
        trained: the part that the loop calls.
        inputs: at least one input of it, as large as any.
        share: how much of that an input has on average.
        whole_images: whether inputs have sizes of their own.
        chunk: images in the network at once.
        batch: images a step, over all processes.
        batches_an_epoch, steps: how long it goes on.
        processes: how many share it.
        device, dtype: where and in which precision.
    """
    images, benchmark = sets.train, sets.benchmark
    whole = config.batch.size == "all"
    each = config.batch.samples_per_class
    sizes = images.class_sizes[images.class_sizes > 0]
    used = sizes if whole or config.batch.small_classes == "repeat" else sizes[sizes >= each]
    mine = -(-batch // processes)
    weight, seconds = _probe(trained, inputs, min(_PROBE, chunk), device, dtype)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    learned = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    # Weights, gradients and the optimizer's two moments; one chunk's graph; the batch and the one being read ahead.
    held = 4 * parameters + 12 * learned + weight.of(chunk) + 2 * mine * inputs[0].nbytes * share + _LOSS_MEMORY
    passes = 1.0 if chunk >= mine else 4 / 3
    return Plan(
        data=config.data.name,
        images=len(images),
        classes=len(sizes),
        classes_used=len(used),
        validation_classes=0 if sets.validation is None or benchmark else sets.validation.num_classes,
        batch=batch,
        classes_a_batch=len(used) if whole else batch // each,
        virtual_batch=_virtual(config, batch, used),
        chunk=chunk,
        processes=processes,
        batches_an_epoch=batches_an_epoch,
        epochs=config.run.epochs if isinstance(config.run.epochs, int) else steps / batches_an_epoch,
        steps=steps,
        parameters=parameters,
        trained_parameters=learned,
        memory_mb=int(held / 2**20),
        seconds_a_step=seconds * share * mine * passes,
        device=str(device),
        precision=config.run.precision,
        frozen=config.model.freeze,
        init=config.model.init,
        image_size=_image_size(config),
        validation_queries=0 if benchmark is None else len(benchmark.queries),
        longer_side=inputs.shape[-1] if whole_images else 0,
    )


def _probe(
    network: nn.Module, inputs: Tensor, count: int, device: torch.device, dtype: torch.dtype | None
) -> tuple[GraphWeight, float]:
    """What the graph weighs, and seconds of forward and backward an image; leaves no trace."""
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


def _image_size(config: Config) -> int | None:
    row = find(config.model.init)
    return config.model.image_size or (row.size if row.resize is not None else None)


def _virtual(config: Config, batch: int, sizes: NDArray[np.int64]) -> int:
    """Images and virtual images a loss sees: SiMix adds one for each pair of a class, up to ``max_pairs``."""
    if not config.loss.options.get("simix"):
        return batch
    each = config.batch.samples_per_class
    classes = sizes if config.batch.size == "all" else np.full(batch // each, each)
    pairs = classes * (classes - 1) // 2
    limit = config.loss.options.get("max_pairs", MAX_PAIRS)
    return batch + int((pairs if limit is None else np.minimum(pairs, limit)).sum())
