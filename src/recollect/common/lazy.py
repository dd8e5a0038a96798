"""Packages whose names are imported when first used, so that listing or asking for help does not wait for torch.

A package's ``__init__.py`` names its public things twice: once under ``TYPE_CHECKING`` for type checkers, once as the
table given to ``lazy_names``. ``tests/common/test_lazy.py`` holds the two and ``__all__`` together.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``.

    Args:
        package: its ``__name__``.
        places: public name → module that defines it.

    Example:
        >>> find, names = lazy_names("recollect.losses", {"RecallAtK": "recollect.losses.recall_at_k"})
        >>> find("RecallAtK").__name__
        'RecallAtK'
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(places[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return find, names
