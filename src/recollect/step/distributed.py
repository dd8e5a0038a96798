"""Processes that train one model together: their ranks and their communication.

``large_batch_step`` talks to other processes only through ``Processes``, four times per step, independent of the model and the
number of chunks: a header of three numbers, embeddings with labels, the gradient of the embeddings with the loss, and the
parameters' gradients in flat buffers of 64 MiB. Sums, not means: a batch has one loss, for any number of processes. A model
that ``shard`` has divided among them (FSDP2) is gathered once per step instead, and its gradients are summed in parts.
``start`` and ``stop`` create and end the process group for ``torchrun``.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recollect.common.errors import ConfigError, InputError, RecollectError

MINUTES = 30.0
"""How long a process waits for another between two steps; ``RECOLLECT_TEAM_MINUTES`` overrides it."""
BUCKET = 2**24
"""Numbers of the parameters' gradients that are summed at a time: 64 MiB in float32."""
_LOST = ("connection closed by peer", "connection reset by peer", "timed out waiting", "socket timeout", "broken pipe",
         "connection refused", "gloo", "nccl",
         "wait timeout after", "connection was likely closed")  # of the store, where groups are made  # fmt: skip


@dataclass(frozen=True)
class Gathered:
    """The whole batch as every process sees it: rows of process 0 first, then of process 1, and so on."""

    embeddings: Tensor
    labels: Tensor
    start: int
    """The first of the rows that are this process's own."""
    seed: int | None
    """A random number that all processes share; None when there is one process."""


@dataclass(frozen=True)
class Processes:
    """The processes that share a batch. With one process nothing is sent.

    Args:
        rank: this process's number.
        size: how many there are.
        group: the ``torch.distributed`` group; None for the default one.
    """

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None) -> Processes:
        """The processes of ``group``, by default of every process that ``torch.distributed`` was started with."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    def gather(self, embeddings: Tensor, labels: Tensor) -> Gathered:
        """All processes' rows. Embeddings and labels are sent together, as bytes, so labels of any type are exact.

        Args:
            embeddings: this process's rows, any number of them, R × d without a graph.
            labels: its R labels.

        Raises:
            InputError: processes have embeddings of different widths, or different kinds of labels.
        """
        if self.size == 1:
            return Gathered(embeddings, labels, 0, None)
        rows = torch.cat([_as_bytes(embeddings), _as_bytes(labels)], dim=1)
        # A collective on unequal shapes hangs or corrupts; this header makes both impossible.
        seed = int(torch.randint(2**62, ()))
        header = torch.tensor([rows.shape[0], rows.shape[1], seed], device=rows.device)
        headers = [torch.empty_like(header) for _ in range(self.size)]
        dist.all_gather(headers, header, group=self.group)
        counts, widths, seeds = torch.stack(headers, dim=1).tolist()
        if len(set(widths)) > 1:
            raise InputError(
                f"processes disagree on the bytes of one embedding with its label: {widths}. Every process needs the "
                "same embedding size, precision and type of labels."
            )
        padded = rows.new_zeros((max(counts), rows.shape[1]))
        padded[: rows.shape[0]] = rows
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.group)
        whole = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        split = embeddings.shape[1] * embeddings.element_size()
        return Gathered(
            embeddings=_from_bytes(whole[:, :split], embeddings),
            labels=_from_bytes(whole[:, split:], labels),
            start=sum(counts[: self.rank]),
            seed=seeds[0],
        )

    def sum_with_value(self, gradient: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """A gradient and a scalar, each summed over all processes, in one reduction."""
        if self.size == 1:
            return gradient, value
        buffer = torch.cat([gradient.flatten(), value.to(gradient).reshape(1)])
        dist.all_reduce(buffer, group=self.group)
        return buffer[:-1].view_as(gradient), buffer[-1].to(value)

    @contextmanager
    def summed_gradients(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """Sum over processes what is added to ``.grad`` inside the block, in few reductions at its end.

        What ``.grad`` held before is kept out of the sum, so steps can accumulate.
        """
        if self.size == 1:
            yield
            return
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        earlier = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        yield
        self._sum_gradients(parameters)
        for parameter, before in zip(parameters, earlier, strict=True):
            if before is not None:
                parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)

    def _sum_gradients(self, parameters: list[nn.Parameter]) -> None:
        """One reduction per ``BUCKET`` numbers, so that memory does not grow by a copy of the model."""
        dtype = functools.reduce(torch.promote_types, (parameter.dtype for parameter in parameters), torch.bfloat16)
        buckets: list[list[nn.Parameter]] = []
        room = 0
        for parameter in parameters:
            if parameter.numel() > room:
                room = BUCKET
                buckets.append([])
            buckets[-1].append(parameter)
            room -= parameter.numel()
        for bucket in buckets:
            # One more number per parameter counts the processes that have a gradient: if none has, it stays None, as with
            # one process, and the optimizer leaves that parameter alone.
            present = torch.tensor([p.grad is not None for p in bucket], device=bucket[0].device)
            gradients = (torch.zeros_like(p) if p.grad is None else p.grad for p in bucket)
            buffer = torch.cat([part.detach().flatten().to(dtype) for part in (present, *gradients)])
            dist.all_reduce(buffer, group=self.group)
            counts, *sums = buffer.split([len(bucket), *(parameter.numel() for parameter in bucket)])
            for parameter, count, part in zip(bucket, counts.tolist(), sums, strict=True):
                if count > 0:
                    total = torch.empty_like(parameter.detach()) if parameter.grad is None else parameter.grad
                    parameter.grad = total.copy_(part.view_as(parameter))

    def broadcast(self, value: Any) -> Any:
        """The first process's ``value``, on every process."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Every process's ``value``, on every process."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def run_on_rank_zero(self, work: Callable[[], None]) -> None:
        """Let the first process do ``work`` while the others wait for it, as long as it takes.

        The first process tells the others now and then that it is still at work: one that was stopped or cut off is
        missed as soon as between two steps.
        """
        if self.size == 1:
            work()
            return
        members, minutes = dist.get_process_group_ranks(self.group or dist.group.WORLD), timeout_minutes()
        # Made from the ranks alone, its name would be that of the group of an earlier call, and its addresses in the store
        # those of the closed one. Among all processes, names are counted.
        part = len(members) < dist.get_world_size()
        group = dist.new_group(
            members, timeout=timedelta(minutes=minutes), backend="gloo", use_local_synchronization=part
        )
        # The store may be in the first process: the others are done with it before the work begins, which may stop it.
        dist.barrier(group=group)

        def still_at_work(answer: bool) -> bool:
            message = torch.tensor([answer])
            dist.broadcast(message, src=members[0], group=group)
            return bool(message)

        if self.rank == 0:
            with _repeated(lambda: still_at_work(True), min(30.0, 15 * minutes)):
                work()
            still_at_work(False)
        else:
            while still_at_work(True):
                pass
        dist.barrier(group=group)
        dist.destroy_process_group(group)

    def barrier(self) -> None:
        """Wait for every process."""
        if self.size > 1:
            dist.barrier(group=self.group)


_meshes: list[Any] = []


def shard(model: nn.Module, layers: Iterable[nn.Module], processes: Processes) -> None:
    """Divide the parameters of ``model``, their gradients and the optimizer's state among processes (FSDP2).

    A step holds the whole parameters and gradients (``unsharded``): what is saved is memory between steps, such as the
    moments of Adam, and each process updates only its part.

    Args:
        model: the same on every process.
        layers: parts of it that are gathered and summed at a time; the rest is one more.
        processes: who shares it.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]  # FSDP2 takes no other, also not channels last
    mesh = init_device_mesh(next(model.parameters()).device.type, (processes.size,))
    _meshes.append(mesh)
    for part in (*layers, model):
        fully_shard(part, mesh=mesh)


def sharded_parts(model: nn.Module) -> list[Any]:
    """The modules of ``model`` whose parameters are divided among processes; none for an ordinary model."""
    return [module for module in model.modules() if hasattr(module, "set_requires_gradient_sync")]


@contextmanager
def unsharded(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Gather the parameters of a sharded model for the block, in which its passes then need no other process.

    Yields:
        A function to be called before the last backward pass of a step, on every process: this pass sums the gradients.
    """
    parts = sharded_parts(model)

    def sum_gradients(wanted: bool = True) -> None:
        for part in parts:
            part.set_requires_gradient_sync(wanted, recurse=False)
            part.set_reshard_after_backward(wanted, recurse=False)

    for part in parts:
        part.set_gradient_divide_factor(1.0)  # a sum, not a mean
        part.set_force_sum_reduction_for_comms(True)  # Gloo has no other
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    sum_gradients(False)
    try:
        yield sum_gradients
    finally:
        for part in parts:
            part.reshard()


def whole(values: Any) -> Any:
    """A state dict with whole tensors instead of shards, on the CPU. Called by every process."""
    if isinstance(values, dict):
        return {name: whole(value) for name, value in values.items()}
    if isinstance(values, list):
        return [whole(value) for value in values]
    return values.full_tensor().cpu() if hasattr(values, "full_tensor") else values


def part_of(value: Any, like: Any) -> Any:
    """The shard of a whole tensor that corresponds to ``like``; the tensor itself if that is no shard."""
    if not hasattr(like, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


@contextmanager
def _repeated(call: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call ``call`` from another thread, again and again while the block runs; its error is raised after the block."""
    over, failed = threading.Event(), []

    def repeat() -> None:
        try:
            while not over.wait(seconds):
                call()
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


class LostProcessError(RecollectError):
    """Another process of this training has ended or no longer responds."""


@contextmanager
def distributed_errors(processes: Processes, advice: Callable[[], str]) -> Iterator[None]:
    """Turn the error that ``torch.distributed`` raises when another process is gone into a readable one.

    Args:
        processes: the processes.
        advice: returns what to do then; called only when it happens.

    Raises:
        LostProcessError: within ``MINUTES`` after the other process ended or stopped responding.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if processes.size == 1 or not any(words in text for words in _LOST):
            raise
        traceback.clear_frames(error.__traceback__)  # they keep the group, and its threads, alive after ``stop``
        raise LostProcessError(
            f"another of the {processes.size} processes ended or did not respond for {timeout_minutes():g} minutes; "
            f"process {processes.rank} stops. {advice()}"
        ) from error


def timeout_minutes() -> float:
    """``RECOLLECT_TEAM_MINUTES``, or ``MINUTES`` by default."""
    return float(os.environ.get("RECOLLECT_TEAM_MINUTES", MINUTES))


def start(device: str = "cpu") -> Processes:
    """Join the processes that ``torchrun`` started; without ``torchrun``, a single process.

    NCCL when the device is a GPU, Gloo otherwise. Each GPU process takes the GPU of its local number.
    """
    if "WORLD_SIZE" not in os.environ or not dist.is_available():
        return Processes()
    if not dist.is_initialized():
        if device.startswith("cuda"):
            local = int(os.environ.get("LOCAL_RANK", "0"))
            if local >= torch.cuda.device_count():
                raise ConfigError(
                    f"process {local} on this machine finds {torch.cuda.device_count()} GPUs. Start as many processes "
                    "as there are GPUs (torchrun --nproc-per-node), or use --device cpu."
                )
            torch.cuda.set_device(local)
        # Functions in them have the group of all processes as a default argument, taken when they are imported. If they are
        # imported later, they keep the group, and its threads, until the interpreter ends; a thread that then still has a
        # tensor to release ends the process with SIGABRT.
        for module in ("torch.distributed.nn.functional", "torch.distributed.fsdp"):
            importlib.import_module(module)
        backend = "nccl" if device.startswith("cuda") else "gloo"
        dist.init_process_group(backend, timeout=timedelta(minutes=timeout_minutes()))
    return Processes.of()


def stop() -> None:
    """Leave the process group, if there is one, and end its threads."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    for mesh in _meshes:  # torch's caches keep them, and they the group with its threads
        getattr(mesh, "_pg_registry", {}).clear()
    _meshes.clear()
    gc.collect()  # a sharded model is part of cycles


def _as_bytes(tensor: Tensor) -> Tensor:
    """R × anything to R × bytes."""
    return tensor.contiguous().view(len(tensor), -1).view(torch.uint8)


def _from_bytes(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse of ``_as_bytes``, in the type and row shape of ``like``."""
    return rows.contiguous().view(like.dtype).view(len(rows), *like.shape[1:])
