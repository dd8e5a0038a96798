"""How much a processor's second-level cache holds: tiles that fit it are read there and not in memory.

Memory is shared with every other process; what stays in a core's own cache is not slowed down by them. Linux describes
its caches as files; elsewhere, and where a virtual machine hides them, a usual size is taken.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

UNKNOWN = 2**20
"""Bytes of second-level cache per core where the system does not tell: the usual size of server processors."""

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@cache
def second_level_bytes(root: Path = Path("/")) -> int:
    """Bytes of second-level cache that one core has to itself, ``UNKNOWN`` where the system does not tell.

    A cache that several cores share is divided by their number.

    Args:
        root: what the system's files lie below.
    """
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            if (index / "level").read_text().strip() == "2":
                size = (index / "size").read_text().strip()
                bytes_ = int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
                if bytes_ > 0:
                    return bytes_ // _cores((index / "shared_cpu_list").read_text().strip())
    return UNKNOWN


def _cores(cpus: str) -> int:
    """How many processors a list such as ``0-3,8`` names. Two threads of one core count as two."""
    ends = [part.split("-") for part in cpus.split(",")]
    return max(1, sum(int(part[-1]) - int(part[0]) + 1 for part in ends))
