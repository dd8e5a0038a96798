"""Finds by measurement how many images to pass through the network at once, and on how many threads.

``large_batch_step`` calls ``fitting_chunk`` when its chunk size is ``"auto"``. The result follows from the memory of one
image's graph (measured on a few images) and the free memory. It is tried once with a forward and a backward pass, halved
until that no longer runs out of memory, and remembered with the model. ``graph_weight`` is also used for the memory
estimate that is printed before training.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError
from recollect.common.machine import forward_work, threads_for

CPU_BUDGET = 1 << 30
"""Bytes of saved activations per chunk on a CPU, where running out of memory ends the process without a message."""

CUDA_SHARE = 0.7
"""Share of the free GPU memory that a chunk's saved activations may take; backward needs some more."""

_PROBE = 4  # images measured, and half as many: enough to separate what grows with the batch from what does not
_OPERATIONS_BESIDE = 50  # roughly those of a rank loss on one tile and of an optimizer


@dataclass(frozen=True)
class GraphWeight:
    """The memory that the graph of some images holds until its backward pass, in bytes."""

    fixed: float
    """Independent of the number of images, such as weights cast to another precision."""
    each: float
    """Per image."""

    def of(self, images: int) -> float:
        """The graph of ``images`` images."""
        return self.fixed + images * self.each


@dataclass
class _Memory:
    """Measurements of one model on one kind of input."""

    capacity: int
    proven: int = 0


_remembered: WeakKeyDictionary[nn.Module, dict[Hashable, _Memory]] = WeakKeyDictionary()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is an out-of-memory error of the device or the machine."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("not enough memory" in text or "out of memory" in text)


def out_of_memory(error: BaseException, chunk: int) -> ConfigError:
    """What to do about an error of ``is_out_of_memory``, with ``chunk`` images in the network at once."""
    half = max(1, chunk // 2)
    return ConfigError(
        f"out of memory with {chunk} images in the network at once ({str(error).splitlines()[0]}) Set "
        f"batch.chunk to {half} (--set batch.chunk={half}): the result stays the same. If that does not help: "
        "run.precision=bf16, a smaller model.image_size, or a smaller batch.size."
    )


def graph_weight(forward: Callable[[int], Tensor], model: nn.Module, count: int = _PROBE) -> GraphWeight:
    """The memory of a graph, estimated from graphs of ``count`` images and of half as many.

    Args:
        forward: embeds the given number of first images.
        model: its parameters are not counted, since they are in memory anyway.
        count: how many images to measure. With one image the fixed part is unknown, so all of it counts as per image.
    """
    whole = _held(forward, model, count)
    half = count // 2
    each = (whole - _held(forward, model, half)) / (count - half) if half else whole
    return GraphWeight(max(whole - count * each, 0.0), each) if each > 0 else GraphWeight(0.0, whole / count)


def _held(forward: Callable[[int], Tensor], model: nn.Module, count: int) -> float:
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    known |= {buffer.untyped_storage().data_ptr() for buffer in model.buffers()}
    saved: dict[int, int] = {}

    def weigh(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
        kept = forward(count)  # alive while it is weighed: a freed storage's address would be reused and counted once
    del kept
    return float(sum(saved.values()))


def fitting_chunk(
    model: nn.Module, forward: Callable[[int], Tensor], total: int, device: torch.device, key: Hashable
) -> int:
    """The number of images to embed at once: ``total`` if all fit.

    Args:
        model: the network; the answer is remembered with it.
        forward: embeds the given number of first images of the batch, without changing random states.
        total: number of available images.
        device: where the network is.
        key: what distinguishes this kind of input: shapes, types, precision.

    Raises:
        ConfigError: not even one image fits.
    """
    memories = _remembered.setdefault(model, {})
    if key not in memories:
        weight = graph_weight(forward, model, min(total, _PROBE))
        memories[key] = _Memory(capacity=max(1, int((_budget(device) - weight.fixed) / max(weight.each, 1.0))))
    memory = memories[key]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    while min(total, memory.capacity) > memory.proven:
        chunk = min(total, memory.capacity)
        try:
            _try(forward, chunk, parameters)
            memory.proven = chunk
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if chunk == 1:
                raise ConfigError(
                    f"not even one image fits into the memory of {device} ({error}). Use smaller images (image_size), "
                    "a smaller model, or a lower precision (bf16)."
                ) from error
            memory.capacity = chunk // 2
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return min(total, memory.capacity)


def _try(forward: Callable[[int], Tensor], chunk: int, parameters: list[nn.Parameter]) -> None:
    """One forward and backward pass whose gradients are discarded."""
    with torch.enable_grad():
        embeddings = forward(chunk)
        if embeddings.requires_grad:
            gradients: Any = torch.autograd.grad(
                embeddings, parameters, grad_outputs=torch.zeros_like(embeddings), allow_unused=True
            )
            del gradients


def _budget(device: torch.device) -> float:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (free + cached) * CUDA_SHARE
    return float(CPU_BUDGET)


def step_threads(network: nn.Module, inputs: Tensor, batch: int, chunk: int) -> int:
    """Threads for a step on ``batch`` images; follows from the configuration and the number of threads torch has.

    A last layer on features of 1,280 dimensions gets a second thread from about 1,100 vectors per step; a network on
    images nearly always gets all threads.

    Args:
        network: the part that is trained; threads matter on the CPU only.
        inputs: one or more of its largest inputs.
        batch: images of this process.
        chunk: images in the network at once.
    """
    if any(parameter.device.type != "cpu" for parameter in network.parameters()):
        return torch.get_num_threads()
    work = forward_work(network, inputs[:1])
    # A backward pass costs two forwards.
    multiply_adds = 3 * batch * work.multiply_adds
    operations = 3 * work.operations * -(-batch // chunk) + _OPERATIONS_BESIDE
    return threads_for(multiply_adds, operations)
