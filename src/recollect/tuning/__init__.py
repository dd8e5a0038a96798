"""Class-disjoint search for settings, and the paper's studies done again.

``tune`` (``search.py``) is the way in to the search. Names are imported when first used, so that the command line's
``--help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.tuning.search import tune

_PUBLIC = {"tune": "search"}

__all__ = ["tune"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"recollect.tuning.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'recollect.tuning' has no attribute {name!r}")
