"""Shared basics: every other package may import from here, and nothing here imports from another package.

errors          errors for users, with messages for those of the system
text            numbers, counts and names in sentences; suggestions; checks of options
files           atomic writing, hashes, locks
reading         reading files that may be damaged or of another kind
images          decoding any image to upright RGB; resizing and cropping for a network
console         ``--quiet`` and the progress line
machine         memory, threads, devices
plugins         losses, data sets, … from outside the package, by name
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A package's ``__getattr__``, ``__dir__`` and ``__all__``: its public names are those that its ``__init__.py`` imports
    under their own name (``as``), mostly under ``if TYPE_CHECKING``: they are imported when first used, so that ``--help``
    does not wait for torch.

    Args:
        package: its ``__name__``. file: its ``__file__``.
    """
    places: dict[str, tuple[str, str]] = {}
    for block in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        for node in block.body if isinstance(block, ast.If) else [block]:
            if isinstance(node, ast.ImportFrom):
                places |= {alias.asname: (str(node.module), alias.name) for alias in node.names if alias.asname}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = places[name]
        return getattr(importlib.import_module(module), attribute)

    return find, lambda: sorted({*vars(sys.modules[package]), *places}), sorted(places)
