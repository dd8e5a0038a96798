"""Optional packages, imported where they are used and named when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from recollect.common.errors import MissingExtraError


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import ``module``, or say which extra of recollect brings it.

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
