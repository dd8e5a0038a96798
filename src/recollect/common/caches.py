"""The size of a processor's second-level cache, so that tiles can be made to fit in it.

Memory is shared with all other processes; data in a core's own cache is not slowed down by them. Linux describes
its caches in files; elsewhere, and if a virtual machine hides them, a usual size is assumed.
"""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

UNKNOWN = 2**20
"""Bytes of second-level cache per core if the system does not report it: the usual size of server processors."""

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


@cache
def second_level_bytes(root: Path = Path("/")) -> int:
    """Bytes of second-level cache per core, ``UNKNOWN`` if the system does not report it.

    A cache that several cores share is divided by their number.

    Args:
        root: the root of the system's files.
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
    """The number of processors in a list such as ``0-3,8``. Two threads of one core count as two."""
    ends = [part.split("-") for part in cpus.split(",")]
    return max(1, sum(int(part[-1]) - int(part[0]) + 1 for part in ends))
