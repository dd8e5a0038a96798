"""recollect: train, evaluate and ship image-retrieval embeddings by optimising recall@k itself.

Public names are imported when first used, so that ``import recollect`` and ``recollect --help`` stay fast.
"""

from __future__ import annotations

import importlib
from typing import Any

from recollect._version import __version__

# name → module that defines it
_PUBLIC = {
    "RecallAtK": "recollect.losses",
    "SmoothAP": "recollect.losses",
    "SupAP": "recollect.losses",
    "Roadmap": "recollect.losses",
    "Embedder": "recollect.models",
    "evaluate": "recollect.evaluation",
    "large_batch_step": "recollect.training",
}

__all__ = [
    "Embedder",
    "RecallAtK",
    "Roadmap",
    "SmoothAP",
    "SupAP",
    "__version__",
    "evaluate",
    "large_batch_step",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'recollect' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
