"""The memory available to this process: that of the machine, within the limits of a container's control groups.

``total_memory`` always returns the same value, so settings may depend on it, in several processes alike;
``available_bytes`` is the memory that is free now, for caches. Control groups of both versions are read, with all their
parent groups, since the lowest limit applies. A missing file means no limit. ``keep_freed_memory`` is about the
allocator.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

resource: ModuleType | None
try:
    resource = import_module("resource")
except ImportError:  # Windows has none
    resource = None

UNKNOWN = 8 * 2**30
"""Assumed free memory if the system does not report it."""


class _Group(NamedTuple):
    """Limit of a control group in bytes, and the used part that cannot be reclaimed."""

    limit: int
    used: int


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
    decided = "malloc" in os.environ.get("LD_PRELOAD", "") or any(name.startswith("MALLOC_") for name in os.environ)
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
    sizes = [group.limit for group in _groups(root)]
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
    sizes = [max(0, group.limit - group.used) for group in _groups(root)]
    free = _field(root / "proc/meminfo", "MemAvailable:")
    if free is not None:
        sizes.append(free * 1024)
    return min(sizes, default=UNKNOWN) // _processes()


def resident_bytes(root: Path = Path("/")) -> int:
    """Memory that this process uses now, in bytes; 0 if the system does not report it."""
    held = _field(root / "proc/self/status", "VmRSS:")
    return 0 if held is None else held * 1024


def peak_memory_mb(device: torch.device) -> int | None:
    """Peak memory so far, of the GPU or of this process; None if the system does not report it."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device) >> 20)
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak >> 20 if sys.platform == "darwin" else peak >> 10)


def _processes() -> int:
    with contextlib.suppress(ValueError):
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return 1


def _groups(root: Path) -> Iterator[_Group]:
    """The control groups that limit this process's memory, from the innermost outwards."""
    lines = (_text(root / "proc/self/cgroup") or "").splitlines()
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        # A container may see its own group as the root group: then only the last of these exists.
        for folder in (mount / inner, *(mount / outer for outer in inner.parents)):
            if (group := _group(folder, *names)) is not None:
                yield group


def _group(folder: Path, limit: str, usage: str, reclaimable: str) -> _Group | None:
    with contextlib.suppress(TypeError, ValueError):  # a file is missing, or the limit is "max"
        # Cached pages of files that were not used recently count as used, but are freed when memory is needed.
        kept = _field(folder / "memory.stat", reclaimable) or 0
        return _Group(int(_text(folder / limit)), int(_text(folder / usage)) - kept)  # type: ignore[arg-type]
    return None


def _field(path: Path, name: str) -> int | None:
    """The number after a name, in a file with one name and number per line."""
    for line in (_text(path) or "").splitlines():
        if line.split()[:1] == [name]:
            with contextlib.suppress(IndexError, ValueError):
                return int(line.split()[1])
    return None


def _text(path: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return None
