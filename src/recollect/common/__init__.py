"""Shared basics: every other package may import from here, and nothing here imports from another package."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A package's ``__getattr__``, ``__dir__`` and ``__all__``: its public names are those that its ``__init__.py`` imports
    under ``if TYPE_CHECKING``. They are imported when first used, so that ``--help`` does not wait for torch.

    Args:
        package: its ``__name__``. file: its ``__file__``.
    """
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    places = {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        return getattr(importlib.import_module(module), attribute)

    return find, lambda: sorted({*vars(sys.modules[package]), *places}), sorted(places)
