"""Whether this process shows progress and remarks: one switch, set by ``--quiet``, without importing anything."""

from __future__ import annotations

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Silence progress lines and remarks of this process (``--quiet``)."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether they are silenced."""
    return _quiet
