"""Lazy imports: public names imported when first used, and helpful errors for missing optional packages.

A package's ``__init__.py`` lists its public names twice: once under ``TYPE_CHECKING`` for type checkers, once as the
table given to ``lazy_names``, so that listing or asking for help does not wait for torch.
``tests/common/test_imports.py`` checks that both agree with ``__all__``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from recollect.common.errors import MissingExtraError


def lazy_names(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's ``__getattr__`` and ``__dir__``.

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


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import ``module``, or raise an error that names the extra of recollect to install.

    Args:
        module: what to import, e.g. ``"faiss"``.
        extra: the extra in ``pyproject.toml`` that installs it, e.g. ``"index"``.
        purpose: what needs it, as the start of a sentence, e.g. ``"approximate search"``.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f'{purpose} needs the package {module!r}: install it with  pip install "recollect[{extra}]".'
        ) from error
