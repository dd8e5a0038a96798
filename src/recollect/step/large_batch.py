"""The large-batch step: the exact gradient of a loss on M images with the memory of a few.

A rank loss needs thousands of images at once, but the graph of thousands of images does not fit in memory. The loss needs
only the embeddings, and given its gradient with respect to them, each image's part of the parameter gradient can be computed
separately. So (multistage back-propagation):

1. ``_embed``: all images in chunks without a graph, keeping only the embeddings (and the random states drawn from);
2. ``_loss_and_gradient``: any loss on all embeddings and labels, and its gradient with respect to the embeddings;
3. ``_backward``: each chunk again, now with a graph, back-propagating its rows of that gradient.

The last chunk keeps its graph in 1 and is not embedded again in 3, so n chunks cost (4n − 1)/3n of one plain step when
a backward pass costs two forwards, and a batch that fits into one chunk costs exactly one plain step.

Everything that trains goes through this file. Communication between processes is in ``distributed.py``. Invariant: the gradient
equals that of one ordinary backward pass (tests/step).

How many images pass through the network at once follows, for ``"auto"``, from the memory of one image's graph (measured on a
few images) and the free memory. It is tried once with a forward and a backward pass, halved until that no longer runs out of
memory, and remembered with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from recollect.common.errors import ConfigError, InputError
from recollect.common.machine import forward_work, full_precision, threads_for
from recollect.step.distributed import Processes, sharded_parts, unsharded

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class StepInfo:
    """What a step did; give one to ``large_batch_step`` to have it filled in."""

    chunk_size: int = 0
    """Images embedded at once."""
    reembedded: int = 0
    """Images that went through the network a second time."""
    skipped: int = 0
    """Images that went through it only once, because their gradient is zero or within ``skip_share``."""
    gradient_norms: Tensor = field(default_factory=lambda: torch.empty(0))
    """For each image of this process, the norm of the loss's gradient with respect to its embedding."""

    def negligible_share(self, share: float = 0.01) -> float:
        """The share of images whose gradients together make up at most ``share`` of the sum of all norms."""
        return 1.0 - float(_matters(self.gradient_norms, share).float().mean())


def large_batch_step(
    model: nn.Module,
    loss: Loss,
    images: Images,
    labels: Tensor,
    chunk_size: int | Literal["auto"] = "auto",
    *,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    group: dist.ProcessGroup | Processes | None = None,
    skip_share: float = 0.0,
    info: StepInfo | None = None,
) -> Tensor:
    """Add the gradient of ``loss(model(images), labels)`` to ``.grad``, holding the graph of one chunk at a time.

    The gradient is that of one ordinary backward pass over the whole batch. Dropout and stochastic depth are replayed;
    randomness must come from torch's own generators. ``.grad`` is added to, as by ``backward``; call
    ``optimizer.zero_grad()`` before and ``optimizer.step()`` after.

    Under ``torch.distributed`` each process gives its own part of the batch, the loss is that of all parts together,
    and every process ends with the same gradient: that of one process holding the whole batch (a sum: do not divide
    it). The model must not be wrapped in DistributedDataParallel.

    Args:
        model: images to embeddings, M × d; each image on its own. Trained BatchNorm mixes images and is refused.
        loss: embeddings and labels to a scalar; may have parameters. If it has a method
            ``share(embeddings, labels, rank, world_size)``, each process computes only its own part of the loss.
        images: a tensor with M rows; or a tuple or dict of such tensors, given to the model as arguments; or a list of
            M tensors of any shapes, given as a list. They may stay on the CPU: chunks are moved to the model's device.
        labels: M labels, any type.
        chunk_size: maximum number of images per graph; chunks are as equal as possible. ``"auto"`` finds what fits and
            remembers it.
        autocast: ``torch.bfloat16`` or ``torch.float16`` for the network; by default the active autocast. The
            loss always sees float32 or better.
        scaler: for float16. The gradients left are then scaled, as ``scaler.scale(loss).backward()`` leaves them.
        group: the processes that share the batch; by default all.
        skip_share: images whose gradients together make up at most this share of the sum of all gradient norms are not
            back-propagated. 0 is exact: it skips only images whose gradient is zero.
        info: filled with what the step did.

    Returns:
        The loss of the whole batch, without a graph, unscaled.

    Raises:
        InputError: images and labels differ in number, the model does not return one embedding per image, or the loss
            does not return one number.
        ConfigError: the model cannot be trained in chunks; the message says why and what to do.

    Examples:
        >>> model, data = nn.Linear(8, 4), torch.randn(6, 8)
        >>> spread = lambda e, y: (e @ e.T).mean()
        >>> value = large_batch_step(model, spread, data, torch.arange(6), chunk_size=2)
        >>> model.weight.grad.shape
        torch.Size([4, 8])
    """
    info = StepInfo() if info is None else info
    info.reembedded = info.skipped = 0
    check_trainable_in_chunks(model)
    device = next((parameter.device for parameter in model.parameters()), first_tensor(images).device)
    total, processes = count_rows(images, labels), group if isinstance(group, Processes) else Processes.of(group)
    if not 0.0 <= skip_share < 1.0:
        raise ConfigError(f"skip_share must be at least 0 (exact) and below 1, not {skip_share}.")
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    dtype = autocast or dtype

    def forward(rows: slice | Tensor) -> Tensor:
        # Without autocast's cache: weights cast while no graph is recorded must not be reused by a pass that records one.
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False):
            embeddings = call_model(model, take_rows(images, rows, device))
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
            raise InputError(f"the model must return one M × d tensor of embeddings, not {describe(embeddings)}.")
        return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))

    if chunk_size == "auto":
        chunk_size = find_chunk(model, images, dtype)
    elif chunk_size < 1:
        raise ConfigError(f"chunk_size must be 1 or more, or 'auto', not {chunk_size}.")
    # Equal chunks: the last is not embedded twice, so a small remainder there would save little.
    info.chunk_size = size = -(-total // -(-total // chunk_size))
    chunks = [slice(start, min(start + size, total)) for start in range(0, total, size)]

    shares = hasattr(loss, "share") and processes.size > 1
    own = list(loss.parameters()) if isinstance(loss, nn.Module) else []
    summed = own if sharded_parts(model) else chain(model.parameters(), own)
    with processes.summed_gradients(summed), unsharded(model) as before_last_backward:
        embeddings, last, states = _embed(forward, chunks, model, device)
        value, gradient = _loss_and_gradient(loss, embeddings, labels.to(device), scaler, processes, device)
        if not shares and processes.rank > 0:
            # A loss computed completely by every process gives each the whole gradient of its parameters. On a GPU the last
            # digits differ, and copies would drift apart: all use the first process's gradient.
            for parameter in own:
                parameter.grad = None
        info.gradient_norms = gradient.norm(dim=1)
        _backward(forward, chunks, last, gradient, states, skip_share, device, info, before_last_backward)
    return value


def _embed(
    forward: Callable[[slice | Tensor], Tensor], chunks: list[slice], model: nn.Module, device: torch.device
) -> tuple[Tensor, Tensor, list[list[Tensor]]]:
    """All embeddings, the last chunk's with its graph, and the random state before each chunk and after the last."""
    states, parts = [], []
    versions = [buffer._version for buffer in model.buffers()]
    for chunk in chunks:
        states.append(random_state(device))
        with torch.set_grad_enabled(chunk is chunks[-1]):
            parts.append(forward(chunk))
        if len(parts[-1]) != chunk.stop - chunk.start:
            raise InputError(f"the model returned {len(parts[-1])} embeddings for {chunk.stop - chunk.start} images.")
        if versions != [buffer._version for buffer in model.buffers()]:
            names = [n for (n, b), v in zip(model.named_buffers(), versions, strict=True) if b._version != v]
            raise ConfigError(
                f"the forward pass changes {names[0]}, so a second pass would not repeat the first. Put that module "
                "into eval mode."
            )
    states.append(random_state(device))
    return torch.cat([part.detach() for part in parts]), parts[-1], states


def _loss_and_gradient(
    loss: Loss,
    embeddings: Tensor,
    labels: Tensor,
    scaler: torch.amp.GradScaler | None,
    processes: Processes,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The loss of all processes' embeddings, and its (scaled) gradient with respect to this process's own."""
    batch = processes.gather(embeddings, labels)
    leaf = batch.embeddings.detach().requires_grad_()
    # Losses that draw from the global generator must draw the same everywhere.
    with (
        shared_randomness(batch.seed, device),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        full_precision(),
    ):
        shares = hasattr(loss, "share") and processes.size > 1
        value = (
            loss.share(leaf, batch.labels, processes.rank, processes.size)  # type: ignore[attr-defined]
            if shares
            else loss(leaf, batch.labels)
        )
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InputError(f"the loss must return a tensor with one number, not {describe(value)}.")
        if value.requires_grad:
            (value if scaler is None else scaler.scale(value)).backward()
    value, gradient = value.detach(), torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    if shares:
        gradient, value = processes.sum_with_value(gradient, value)
    return value, gradient[batch.start : batch.start + len(embeddings)]


def _backward(
    forward: Callable[[slice | Tensor], Tensor],
    chunks: list[slice],
    last: Tensor,
    gradient: Tensor,
    states: list[list[Tensor]],
    skip_share: float,
    device: torch.device,
    info: StepInfo,
    before_last: Callable[[], None],
) -> None:
    """Back-propagate each row of ``gradient`` that matters, and leave the random state as it was."""
    present = random_state(device)  # not the first pass's last: the loss may have drawn since
    before = chunks[-1].start
    matters = _matters(info.gradient_norms, skip_share)[:before]
    random = not all(map(torch.equal, states[0], states[-1]))
    work: list[tuple[slice | Tensor, list[Tensor]]]
    if random:
        # A mask is drawn for a whole chunk, so a chunk is replayed completely or not at all.
        work = [(chunk, state) for chunk, state in zip(chunks[:-1], states, strict=False) if bool(matters[chunk].any())]
    elif bool(matters.all()):
        work = [(chunk, states[0]) for chunk in chunks[:-1]]
    else:
        work = [(rows, states[0]) for rows in matters.nonzero().flatten().split(info.chunk_size) if len(rows)]
    if not work:
        before_last()
    if last.requires_grad:
        last.backward(gradient[chunks[-1]])
    for number, (rows, state) in enumerate(work, 1):
        if number == len(work):
            before_last()
        if random:
            set_random_state(device, state)
        with torch.enable_grad():
            embeddings = forward(rows)
        if embeddings.requires_grad:
            embeddings.backward(gradient[rows])
        info.reembedded += len(embeddings)
    info.skipped = before - info.reembedded
    set_random_state(device, present)


def _matters(norms: Tensor, share: float) -> Tensor:
    """Which images to back-propagate: all except the smallest, whose norms sum to at most ``share`` of the total."""
    norms = norms.cpu().double()  # on the CPU: some devices have no double precision
    ordered, order = norms.sort()
    matters = torch.ones_like(norms, dtype=torch.bool)
    matters[order[ordered.cumsum(0) <= share * ordered.sum()]] = False
    return matters | ~norms.isfinite()


def check_trainable_in_chunks(model: nn.Module) -> None:
    """Refuse a model whose embedding of an image depends on the other images.

    Raises:
        ConfigError: the message names the module, the reason and what to do.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ConfigError(
            "give large_batch_step the bare model (model.module), not DistributedDataParallel, which reduces gradients "
            "after every chunk; the step reduces them once."
        )
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise ConfigError(
                f"BatchNorm {name or type(module).__name__!r} normalizes by the statistics of the images it sees "
                "together, so chunks of a batch would not give the gradient of the batch. Freeze it (module.eval() "
                "after model.train(); an Embedder does so by default) or use GroupNorm or LayerNorm."
            )


def find_chunk(model: nn.Module, images: Images, autocast: torch.dtype | None = None) -> int:
    """The chunk size that ``"auto"`` chooses for such images; measured once, then remembered with the model.

    Args:
        model: the network on its device.
        images: as for ``large_batch_step``; only their shapes matter.
        autocast: as for ``large_batch_step``.
    """
    device = next((parameter.device for parameter in model.parameters()), first_tensor(images).device)
    total = len(images if isinstance(images, list) else first_tensor(images))
    if isinstance(images, list):
        # Where sizes differ, a chunk must fit even if all its images are as large as the largest.
        images = [max(images, key=Tensor.numel)] * total

    def forward(count: int) -> Tensor:
        state = random_state(device)
        try:
            with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None, cache_enabled=False):
                embeddings: Tensor = call_model(model, take_rows(images, slice(0, count), device))
            return embeddings
        finally:
            set_random_state(device, state)

    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    some = images[:1] if isinstance(images, list) else [tensor[0] for tensor in tensors_of(images)]
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in some)
    return fitting_chunk(model, forward, total, device, (shapes, autocast, device, model.training, trained))


# Images in the network at once, and threads ----------------------------------------------------------------------------

CPU_BUDGET = 1 << 30
"""Bytes of saved activations per chunk on a CPU, where running out of memory ends the process without a message."""

CUDA_SHARE = 0.7
"""Share of the free GPU memory that a chunk's saved activations may take; backward needs some more."""

_PROBE = 4  # images measured, and half as many: enough to separate what grows with the batch from what does not
_OTHER_OPERATIONS = 50  # roughly those of a rank loss on one tile and of an optimizer


@dataclass(frozen=True)
class GraphWeight:
    """The memory that the graph of some images holds until its backward pass, in bytes."""

    fixed: float
    """Independent of the number of images, such as weights cast to another precision."""
    each: float
    """Per image."""


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
    of_model = {tensor.untyped_storage().data_ptr() for tensor in chain(model.parameters(), model.buffers())}
    saved: dict[int, int] = {}

    def weigh(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in of_model:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
        graph = forward(count)  # alive while it is weighed: a freed storage's address would be reused and counted once
    del graph
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
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        budget = CPU_BUDGET
        if device.type == "cuda":
            budget = int(CUDA_SHARE * (free_bytes(device) - _unallocated(trained, copies=3)))
        memories[key] = _Memory(capacity=max(1, int((budget - weight.fixed) / max(weight.each, 1.0))))
    memory = memories[key]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    reserved = _unallocated(parameters, copies=2)  # the pass itself allocates gradients
    while min(total, memory.capacity) > memory.proven:
        chunk, moments = min(total, memory.capacity), list[Tensor]()
        try:
            # One forward and backward pass, whose gradients are discarded, beside what the first step will allocate.
            if device.type == "cuda":
                moments.append(torch.empty(reserved, dtype=torch.uint8, device=device))
            with torch.enable_grad():
                embeddings = forward(chunk)
                if embeddings.requires_grad:
                    torch.autograd.grad(embeddings, parameters, torch.zeros_like(embeddings), allow_unused=True)
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
        moments.clear()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return min(total, memory.capacity)


def free_bytes(device: torch.device) -> int:
    """The memory of a GPU that is free or only cached."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _unallocated(parameters: Sequence[nn.Parameter], copies: int) -> int:
    """Bytes that a step needs beside the graph: gradients and the two moments of Adam (``copies``), unless an earlier step
    allocated them; and one gradient more while it is added.
    """
    new = sum(parameter.nbytes for parameter in parameters if parameter.grad is None)
    return copies * new + max((parameter.nbytes for parameter in parameters), default=0)


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
    multiply_adds, operations = forward_work(network, inputs[:1])
    # A backward pass costs two forwards.
    return threads_for(3 * batch * multiply_adds, 3 * operations * -(-batch // chunk) + _OTHER_OPERATIONS)


# Inputs of a network: one tensor, several, or a list of images of different sizes --------------------------------------

Images = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor] | list[Tensor]


def tensors_of(images: Images) -> list[Tensor]:
    """The tensors of an input, in order."""
    if isinstance(images, Tensor):
        return [images]
    return list(images.values()) if isinstance(images, Mapping) else list(images)


def first_tensor(images: Images) -> Tensor:
    """The first tensor; raises an error if the input is something else."""
    tensors = tensors_of(images)
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise InputError(f"images must be a tensor, or a tuple, dict or list of tensors, not {describe(images)}.")
    return tensors[0]


def count_rows(images: Images, labels: Tensor) -> int:
    """The number of images; raises an error if it differs from the number of labels."""
    counts = {len(images)} if isinstance(images, list) else {len(tensor) for tensor in tensors_of(images)}
    if counts != {len(labels)} or not len(labels):
        raise InputError(
            f"give one label per image, and at least one image: there are {sorted(counts)} images and {len(labels)} labels."
        )
    return len(labels)


def take_rows(images: Images, rows: slice | Tensor, device: torch.device) -> Images:
    """Some of the images, on ``device``."""

    def some(tensor: Tensor) -> Tensor:
        part = tensor[rows if isinstance(rows, slice) else rows.to(tensor.device)]
        return part.to(device, non_blocking=True)

    if isinstance(images, Tensor):
        return some(images)
    if isinstance(images, Mapping):
        return {name: some(tensor) for name, tensor in images.items()}
    if isinstance(images, list):
        part = images[rows] if isinstance(rows, slice) else [images[row] for row in rows.tolist()]
        return [image.to(device, non_blocking=True) for image in part]
    return tuple(some(tensor) for tensor in images)


def call_model(model: nn.Module, images: Images) -> Any:
    """``model(images)``, with a tuple or dict as its arguments."""
    if isinstance(images, Mapping):
        return model(**images)
    return model(*images) if isinstance(images, tuple) else model(images)


def describe(value: object) -> str:
    """A value in a few words, for messages."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


# Torch's random states -------------------------------------------------------------------------------------------------


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the generators that a network on ``device`` draws from by default."""
    if device.type == "cpu":
        return [torch.get_rng_state()]
    try:
        return [torch.get_rng_state(), torch.get_device_module(device).get_rng_state(*_place(device))]
    except (RuntimeError, AttributeError) as error:
        raise ConfigError(
            f"torch gives no access to the random numbers of {device.type}, so dropout could not be repeated there and "
            "gradients would be wrong: use cpu or cuda."
        ) from error


def set_random_state(device: torch.device, states: list[Tensor]) -> None:
    """Restore what ``random_state`` returned."""
    torch.set_rng_state(states[0])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[1], *_place(device))


def _place(device: torch.device) -> list[torch.device]:
    return [] if device.type == "mps" else [device]  # there is one, and its functions take no argument


@contextmanager
def shared_randomness(seed: int | None, device: torch.device) -> Iterator[None]:
    """The same random numbers on every process inside the block; each process's own stream continues after it."""
    if seed is None:
        yield
        return
    state = random_state(device)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        set_random_state(device, state)
