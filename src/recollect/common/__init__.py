"""Shared basics: every other package may import from here, and nothing here imports from another package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``: public names are imported when first used, so that help does not wait
    for torch. The package lists them a second time under ``TYPE_CHECKING``, for type checkers.

    Args:
        package: its ``__name__``.
        places: public name → module that defines it, or ``module:attribute`` where it has another name there.

    Examples:
        >>> find, names = lazy_names("recollect.losses", {"RecallAtK": "recollect.losses.recall_at_k"})
        >>> find("RecallAtK").__name__
        'RecallAtK'
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return find, names
