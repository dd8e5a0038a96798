"""Small measurements for a plan: reading a few images, embedding a few, the loss of a small batch.

Each probe does a little of the training's work, with the same code, and returns the cost of one image or one step.
Times are medians of wall time, so the current load of the machine is included. ``estimate.py`` extrapolates them.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from recollect.common.machine import seconds_of
from recollect.config.schema import Config
from recollect.data.image_set import Indices
from recollect.inference.evaluate import measure_labelled
from recollect.models.backbones import refusing_narrow
from recollect.step.chunking import GraphWeight, graph_weight
from recollect.step.model_inputs import call_model
from recollect.training.batches import Feed
from recollect.training.build import Machine, make_loss
from recollect.training.optimizer import clip_gradients, optimizer_of

CORES = os.cpu_count() or 1
_IMAGES = 32  # through the network: enough that their time is that of a large chunk
_READ = 32  # images
_LOSS_IMAGES = 800
_EVALUATED = 2000  # vectors
_PARAMETERS = 1 << 20  # of an optimizer's step


def _waiting(device: torch.device) -> Callable[[], object] | None:
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else None


@dataclass(frozen=True)
class NetworkProbe:
    """Cost of the trained part of the network per image of the largest size."""

    graph: GraphWeight
    passing: float
    """Peak memory of a forward pass without a graph, in bytes."""
    forward: float
    """Seconds without a graph."""
    both: float
    """Seconds forward and backward."""

    def step(self, images: int, chunk: int) -> float:
        """Seconds for a large-batch step: all but the last chunk are embedded twice."""
        return self.both * images + self.forward * max(images - chunk, 0)


def probe_network(network: nn.Module, inputs: Tensor, chunk: int, machine: Machine) -> NetworkProbe:
    """Measure the network on copies of ``inputs``, at most ``chunk`` of them."""
    device, dtype, count = machine.device, machine.dtype, min(_IMAGES, chunk)
    some = inputs[torch.arange(count) % len(inputs)].to(device)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]

    def forward(number: int) -> Tensor:
        autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)
        with autocast, refusing_narrow(some):
            embeddings: Tensor = call_model(network, some[:number])
        return embeddings

    def alone() -> None:
        with torch.no_grad():
            forward(count)

    def both() -> None:
        with torch.enable_grad():
            embeddings = forward(count)
            torch.autograd.grad(embeddings, parameters, torch.zeros_like(embeddings), allow_unused=True)

    graph = graph_weight(forward, network, count)
    passing = passing_bytes(network, alone) / count
    return NetworkProbe(
        graph, passing, seconds_of(alone, _waiting(device)) / count, seconds_of(both, _waiting(device)) / count
    )


def passing_bytes(network: nn.Module, forward: Callable[[], object]) -> float:
    """The largest input and output of one layer in ``forward``: about the memory of a pass without a graph."""
    largest = 0

    def weigh(layer: nn.Module, given: tuple[object, ...], made: object) -> None:
        nonlocal largest
        held = sum(tensor.nbytes for tensor in (*given, made) if isinstance(tensor, Tensor))
        largest = max(largest, held)

    hooks = [layer.register_forward_hook(weigh) for layer in network.modules() if not list(layer.children())]
    try:
        forward()
    finally:
        for hook in hooks:
            hook.remove()
    return float(largest)


def probe_reading(feed: Feed) -> float:
    """Seconds per image, with all threads that decode."""
    numbers = iter(range(1000))
    count = len(feed.some(_READ, next(numbers)).indices)
    return seconds_of(lambda: feed.some(count, next(numbers))) / count


def probe_loss(
    config: Config,
    labels: Indices,
    num_classes: int,
    dim: int,
    device: torch.device,
    given: nn.Module | None = None,
    coarse: list[int] | None = None,
) -> float:
    """Seconds of the loss and its gradient for a batch with these labels, from one of fewer classes if it is large.

    ``given``: a loss passed in Python; it is copied, since its state belongs to the training.

    Each query is compared with everything for each of its positives: N · Σ n² for classes of n images, of coarser
    classes where the loss has two levels.
    """
    share = max(1, round(len(labels) / _LOSS_IMAGES))
    some = labels[np.isin(labels, np.unique(labels)[::share])]
    loss = (make_loss(config, num_classes, dim, coarse) if given is None else copy.deepcopy(given)).to(device)
    two_levels = coarse is not None and hasattr(loss, "coarse")

    def comparisons(of: Indices) -> float:
        sizes = np.unique(np.asarray(coarse)[of] if two_levels else of, return_counts=True)[1]
        return len(of) * float((sizes**2).sum())

    scale = comparisons(labels) / comparisons(some)
    names = torch.from_numpy(some).to(device)
    centres = functional.normalize(torch.randn(int(some.max()) + 1, dim, device=device), dim=1)
    noise = functional.normalize(torch.randn(len(some), dim, device=device), dim=1)
    embeddings = functional.normalize(centres[names] + noise, dim=1)

    def work() -> None:
        leaf = embeddings.clone().requires_grad_()
        value = loss(leaf, names)
        if value.requires_grad:
            value.backward()

    return seconds_of(work, _waiting(device)) * scale


def probe_optimizer(config: Config, parameters: int, device: torch.device) -> float:
    """Seconds of one step of the optimizer over this many parameters, with or without gradient clipping."""
    count = min(parameters, _PARAMETERS)
    weight = nn.Parameter(torch.zeros(count, device=device))
    weight.grad = torch.zeros_like(weight)
    optimizer = optimizer_of(config.optimizer, [{"params": [weight], "lr": 1e-4, "weight_decay": 1e-4}])

    def work() -> None:
        clip_gradients(optimizer, config.optimizer.clip)
        optimizer.step()

    return seconds_of(work, _waiting(device)) * parameters / count


def probe_ranking(labels: Indices, dim: int, device: torch.device) -> float:
    """Seconds to evaluate a set against itself, extrapolated from a part if it is large: all pairs are compared."""
    count, each = min(len(labels), _EVALUATED), max(2, round(len(labels) / len(np.unique(labels))))
    some = (torch.arange(count) // each).to(device)
    vectors = functional.normalize(torch.randn(count, dim, device=device), dim=1)
    seconds = seconds_of(lambda: measure_labelled(vectors, some), _waiting(device))
    return seconds * (len(labels) / count) ** 2


def both_at_once(compute: float, reading: float, device: torch.device) -> float:
    """Seconds of computing while threads do ``reading``: on a CPU both need the same cores."""
    if device.type == "cpu" and torch.get_num_threads() >= CORES:
        return compute + reading
    return max(compute, reading)
