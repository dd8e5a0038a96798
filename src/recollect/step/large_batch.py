"""The large-batch step: the exact gradient of a loss on M images with the memory of a few.

A rank loss needs thousands of images at once, but the graph of thousands of images does not fit in memory. The loss needs
only the embeddings, and given its gradient with respect to them, each image's part of the parameter gradient can be computed
separately. So (multistage back-propagation):

1. ``_embed``: all images in chunks without a graph, keeping only the embeddings (and the random states drawn from);
2. ``_loss_and_gradient``: any loss on all embeddings and labels, and its gradient with respect to the embeddings;
3. ``_backward``: each chunk again, now with a graph, back-propagating its rows of that gradient.

The last chunk keeps its graph in 1 and is not embedded again in 3, so n chunks cost (4n − 1)/3n of one plain step when
a backward pass costs two forwards, and a batch that fits into one chunk costs exactly one plain step.

Everything that trains goes through this file. Memory for ``"auto"`` is in ``chunking.py``, communication between processes in
``team.py``. Invariant: the gradient equals that of one ordinary backward pass (tests/step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from recollect.common.errors import ConfigError, InputError
from recollect.step.chunking import fitting_chunk
from recollect.step.model_inputs import Images, call_model, count_rows, describe, first_tensor, take_rows, tensors_of
from recollect.step.randomness import random_state, set_random_state, shared_randomness
from recollect.step.team import Team

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

    def light_share(self, share: float = 0.01) -> float:
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
    group: dist.ProcessGroup | None = None,
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
        chunk_size: images per graph; ``"auto"`` finds what fits and remembers it.
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
    total, team = count_rows(images, labels), Team.of(group)
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
    chunks = [slice(start, min(start + chunk_size, total)) for start in range(0, total, chunk_size)]
    info.chunk_size = min(chunk_size, total)

    shares = hasattr(loss, "share") and team.size > 1
    own = list(loss.parameters()) if isinstance(loss, nn.Module) else []
    with team.summed_gradients(chain(model.parameters(), own)):
        embeddings, last, states = _embed(forward, chunks, model, device)
        value, gradient = _loss_and_gradient(loss, embeddings, labels.to(device), scaler, team, device)
        if not shares and team.rank > 0:
            # A loss computed completely by every process gives each the whole gradient of its parameters. On a GPU the last
            # digits differ, and copies would drift apart: all use the first process's gradient.
            for parameter in own:
                parameter.grad = None
        info.gradient_norms = gradient.norm(dim=1)
        _backward(forward, chunks, last, gradient, states, skip_share, device, info)
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
    team: Team,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The loss of all processes' embeddings, and its (scaled) gradient with respect to this process's own."""
    batch = team.gather(embeddings, labels)
    leaf = batch.embeddings.detach().requires_grad_()
    # Losses that draw from the global generator must draw the same everywhere.
    with shared_randomness(batch.seed, device), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        shares = hasattr(loss, "share") and team.size > 1
        value = (
            loss.share(leaf, batch.labels, team.rank, team.size)  # type: ignore[attr-defined]
            if shares
            else loss(leaf, batch.labels)
        )
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InputError(f"the loss must return a tensor with one number, not {describe(value)}.")
        if value.requires_grad:
            (value if scaler is None else scaler.scale(value)).backward()
    value, gradient = value.detach(), torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    if shares:
        gradient, value = team.sum_with_value(gradient, value)
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
) -> None:
    """Back-propagate each row of ``gradient`` that matters, and leave the random state as it was."""
    present = random_state(device)  # not the first pass's last: the loss may have drawn since
    if last.requires_grad:
        last.backward(gradient[chunks[-1]])
    before = chunks[-1].start
    kept = _matters(info.gradient_norms, skip_share)[:before]
    drew = not all(map(torch.equal, states[0], states[-1]))
    work: list[tuple[slice | Tensor, list[Tensor]]]
    if drew:
        # A mask is drawn for a whole chunk, so a chunk is replayed completely or not at all.
        work = [(chunk, state) for chunk, state in zip(chunks[:-1], states, strict=False) if bool(kept[chunk].any())]
    elif bool(kept.all()):
        work = [(chunk, states[0]) for chunk in chunks[:-1]]
    else:
        work = [(rows, states[0]) for rows in kept.nonzero().flatten().split(info.chunk_size) if len(rows)]
    for rows, state in work:
        if drew:
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


def find_chunk(model: nn.Module, images: Images, autocast: torch.dtype | None = None, limit: int | None = None) -> int:
    """The chunk size that ``"auto"`` chooses for such images; found once, then remembered with the model.

    Args:
        model: the network on its device.
        images: as for ``large_batch_step``; only their shapes matter.
        autocast: as for ``large_batch_step``.
        limit: the number of images, if not all of the given ones.
    """
    device = next((parameter.device for parameter in model.parameters()), first_tensor(images).device)
    total = limit or len(images if isinstance(images, list) else first_tensor(images))
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
