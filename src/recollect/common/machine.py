"""This machine: its memory within the limits of a container, threads and devices of torch, and a repair of torchvision.

``total_memory`` always returns the same value, so settings may depend on it, in several processes alike;
``available_bytes`` is the memory that is free now, for caches. Importing this module does not import torch.

torch splits every operation above a certain size over all threads and waits for the slowest. Threads wait by spinning,
for milliseconds. Next to other busy processes one of them is often not running; the others then waste their share of the
processor by spinning, at every operation, and small operations take twenty times as long (``benchmarks/threads.py``). Two
remedies: small work runs on fewer threads (``threads_for``, ``limited_threads``), and in recollect's own programs threads
soon stop spinning and sleep (``spin_briefly``). The number of threads depends on the work and never on the load, so
results are bit-identical however busy the machine is.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from recollect.common.errors import ConfigError
from recollect.common.text import check_choice, number_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# Memory -------------------------------------------------------------------------------------------------------------

UNKNOWN = 8 * 2**30
"""Assumed free memory if the system does not report it."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory of freed tensors for the next ones; returns whether anything was changed.

    glibc returns the memory of a large tensor to the system when it is freed, and the system clears every page of the
    next one: half of the processor time of a network on a CPU. This raises glibc's two thresholds, for this process and
    those it starts. Call it at the beginning of a program; the commands of recollect do. Nothing is changed on systems
    without glibc (macOS, Windows, Alpine), with another allocator in ``LD_PRELOAD``, if a variable ``MALLOC_…`` is set,
    or with ``RECOLLECT_MALLOC=default``.

    Example:
        Before the first tensor is made::

            recollect.keep_freed_memory()
    """
    decided = "malloc" in os.environ.get("LD_PRELOAD", "") or " MALLOC_" in " ".join(["", *os.environ])
    if decided or os.environ.get("RECOLLECT_MALLOC") == "default" or platform.libc_ver()[0] != "glibc":
        return False
    import ctypes

    mallopt, mmap_threshold, trim_threshold, mmap_max = ctypes.CDLL(None).mallopt, -3, -1, -4  # from malloc.h
    # glibc before 2.35 refuses more than 32 MiB: there, no tensor gets pages of its own.
    if not mallopt(mmap_threshold, 2**30):
        mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
    return True


def total_memory(root: Path = Path("/")) -> int | None:
    """Bytes that all processes on this machine can use; None if the system does not report it.

    Args:
        root: the root of the system's files.
    """
    sizes = [limit for limit, _ in _groups(root)]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not on Windows
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(sizes, default=None)


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process can allocate now without swapping or being killed.

    If several processes of a run share the machine (``LOCAL_WORLD_SIZE``, which ``torchrun`` sets), an equal part
    for each.

    Args:
        root: the root of the system's files.
    """
    sizes = [max(0, limit - used) for limit, used in _groups(root)]
    free = _number(root / "proc/meminfo", "MemAvailable:")
    if free is not None:
        sizes.append(free * 1024)
    return min(sizes, default=UNKNOWN) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def peak_memory_mb(device: torch.device) -> int | None:
    """Peak memory so far, of the GPU or of this process; None if the system does not report it."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device) >> 20)
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak >> 20 if sys.platform == "darwin" else peak >> 10)


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and used bytes of the control groups of this process and their parents: the lowest limit applies.

    Both versions of control groups are read. A missing file means no limit.
    """
    table = root / "proc/self/cgroup"
    for line in table.read_text().splitlines() if table.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        # A container may see its own group as the root group: then only the last of these exists.
        for place in (inner, *inner.parents):
            folder = mount / place
            limit, used = _number(folder / names[0]), _number(folder / names[1])
            if limit is not None and used is not None:  # otherwise a file is missing, or the limit is "max"
                # Cached pages of files that were not used recently count as used, but are freed when memory is needed.
                yield limit, used - (_number(folder / "memory.stat", names[2]) or 0)


def _number(path: Path, name: str = "") -> int | None:
    """The number in a file of the system, or the one after ``name`` in it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = path.read_text().split()
        return int(words[words.index(name) + 1 if name else 0])
    return None


# Threads ------------------------------------------------------------------------------------------------------------

WORTH_A_THREAD = 2e7
"""Multiply-adds per operation that justify a thread: about a millisecond, a hundred times the cost of splitting."""

_SPINS = 2000
# Turns of a waiting loop, some 50 µs. Measured on two cores, against 300,000 turns (the default) and none: training steps
# and evaluations of 50–150 ms take 4–9 % longer when idle (none: 10–20 %), and 1.3–2.2 times as long beside two busy
# processes instead of 4–20 times.


def threads_for(multiply_adds: float, operations: float = 1) -> int:
    """Threads for work of this size: at least 1, at most as many as torch uses now.

    Args:
        multiply_adds: number of multiply-adds of the whole work.
        operations: number of consecutive operations it consists of.

    Examples:
        >>> threads_for(1e6)
        1
        >>> import torch
        >>> threads_for(1e15) == torch.get_num_threads()
        True
    """
    import torch

    return max(1, min(torch.get_num_threads(), int(multiply_adds / operations / WORTH_A_THREAD)))


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Use at most ``count`` threads for torch's operations inside the block.

    The number belongs to the Python thread that sets it; a thread that first uses torch meanwhile starts with it and
    keeps it. So this is for programs with a single computing thread, not for servers.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(count, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spin_briefly() -> None:
    """Let threads that wait for each other sleep after a short time. Call it at the beginning of a program.

    OpenMP reads these variables when torch is imported; afterwards, or if the user has set one of them, nothing is
    changed. Child processes inherit them.
    """
    decided = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys()
    if "torch" not in sys.modules and not decided:
        # The first is for OpenMP libraries other than GNU's, which uses the second.
        os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(_SPINS)}


def forward_work(network: nn.Module, inputs: Tensor) -> tuple[float, int]:
    """Multiply-adds of the convolutions and linear layers in one forward pass, and how many of these layers there are.

    The pass is done in evaluation mode and without a graph, so that no random number is drawn.

    Examples:
        >>> import torch
        >>> forward_work(torch.nn.Linear(8, 4), torch.zeros(2, 8))
        (64.0, 1)
    """
    import torch
    from torch import nn

    total, count = 0.0, 0

    def add(layer: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal total, count
        weight: Tensor = layer.weight  # type: ignore[assignment]
        total += output.numel() * weight[0].numel()  # every output is a sum of this many products
        count += 1

    hooks = []
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            hooks.append(module.register_forward_hook(add))
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            network(inputs)
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return total, count


# Devices ------------------------------------------------------------------------------------------------------------

SECONDS = 1.0
"""Short work is repeated for about this many seconds."""
clock: Callable[[], float] = time.perf_counter
"""The clock. A benchmark on a busy machine replaces it by ``time.process_time``."""


def usable_device(name: str, setting: str = "device", *, training: bool = False) -> torch.device:
    """The device called ``name``; ``"auto"`` is a GPU if there is one.

    Args:
        name: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, …
        setting: name of the user's setting, for the message.
        training: whether losses and metrics are computed there, not only embeddings.

    Raises:
        ConfigError: there is no such device here.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{setting} {name!r} is not a device: use auto, cpu or cuda.") from error
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        remedy = "count them from 0" if count else "use cpu, or install a CUDA build of torch"
        raise ConfigError(f"{setting} is {name}, but torch finds {number_of(count, 'GPU')}: {remedy}.")
    if device.type not in ("cpu", "cuda"):
        try:  # "meta" has tensors without content, "mps" no float64, in which losses are summed
            torch.ones(1, dtype=torch.float64 if training else None, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            why = " (it has no float64)" if isinstance(error, TypeError) else ""
            raise ConfigError(
                f"{setting} is {device}, which cannot compute here{why}: use auto, cpu or cuda."
            ) from error
    return device


PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def usable_precision(precision: str, device: torch.device, setting: str = "--precision") -> str:
    """``precision``, with ``auto`` resolved: ``bf16`` on GPUs that compute with it, ``fp32`` elsewhere.

    Raises:
        ConfigError: there is no such precision, or the device cannot compute with it.
    """
    import torch

    check_choice(setting, precision, PRECISIONS)
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError(f"{setting} fp16 is for GPUs, but this runs on the CPU: use bf16 or fp32.")
    if precision == "auto":
        fast = device.type == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] >= 8
        return "bf16" if fast else "fp32"
    return precision


def autocast_dtype(precision: str) -> torch.dtype | None:
    """The type of autocast for a precision; None for float32."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


@contextmanager
def tf32(device: torch.device) -> Iterator[None]:
    """Let a GPU multiply the float32 matrices of a network in TF32 inside the block: several times as fast.

    Losses and evaluation turn it off again (``full_precision``). A program that chose by torch's newer setting keeps it.
    """
    import torch

    older = None
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            older = torch.get_float32_matmul_precision()
    if older == "highest":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        if older == "highest":
            torch.set_float32_matmul_precision(older)


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices in float32 inside the block, even if the program allows TF32 or bfloat16 elsewhere.

    Losses and evaluation need it: differences of a fraction of tau = 0.01, and error bounds, would be lost in rounding.
    torch has two sets of functions for this and refuses to answer by the older once the newer has been used.
    """
    import torch

    backends: list[Any] = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    precisions = [(backend, getattr(backend, "fp32_precision", None)) for backend in backends]  # None before torch 2.9
    reduced = [(backend, precision) for backend, precision in precisions if precision in ("tf32", "bf16")]
    older = None
    with contextlib.suppress(RuntimeError):
        older = torch.get_float32_matmul_precision()
    if not reduced and older == "highest":
        yield
        return
    try:
        if older is not None:
            torch.set_float32_matmul_precision("highest")
        for backend, _ in reduced:
            backend.fp32_precision = "ieee"
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        for backend, precision in reduced:
            backend.fp32_precision = precision


def seconds_of(work: Callable[[], object]) -> float:
    """The median time of ``work`` in the current state of the machine, busy or not.

    The first call also allocates memory and fills caches and is not counted, unless it takes so long that one must do.
    """
    import statistics

    taken: list[float] = []
    while len(taken) < 3 or (len(taken) < 9 and sum(taken) < SECONDS):
        start = clock()
        work()
        taken.append(clock() - start)
        if sum(taken) > 4 * SECONDS:
            break
    return statistics.median(taken[1:] or taken)


_declared: list[object] = []  # torch drops an operator when its library object is collected
_lock = threading.RLock()  # several decoding threads may call this first at the same time


def fix_torchvision() -> bool:
    """Make ``import torchvision`` work with a CPU build of torch; returns whether that was needed.

    The default torchvision wheel is a CUDA build. With a CPU-only torch its compiled operators do not load, and importing
    it fails with ``operator torchvision::nms does not exist``, which also breaks timm. Declaring the two operators that
    torchvision needs at import is enough for transforms, models and timm; nothing in recollect calls them. Call it before
    torchvision or timm is imported. On a healthy install nothing is changed.
    """
    with _lock:
        if "torchvision" in sys.modules:
            return bool(_declared)
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _declared.append(library)
            for name in list(sys.modules):
                if name.split(".")[0] == "torchvision":
                    del sys.modules[name]
            importlib.import_module("torchvision")
        return bool(_declared)
