"""Pixels to unit vectors: embedders, the initialisations they start from, and whitening.

Names are imported when first used: the table of initialisations is read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.models.embedder import Embedder, EmbedderConfig
    from recollect.models.export import export_onnx
    from recollect.models.multiscale import INSTANCE_SEARCH_SCALES
    from recollect.models.pooling import GeM
    from recollect.models.whitening import (
        Whitening,
        whitening_from_labels,
        whitening_from_pairs,
        whitening_from_pca,
    )
    from recollect.models.zoo import ZOO, Initialisation

_PUBLIC = {
    "INSTANCE_SEARCH_SCALES": "multiscale",
    "ZOO": "zoo",
    "Embedder": "embedder",
    "EmbedderConfig": "embedder",
    "GeM": "pooling",
    "Initialisation": "zoo",
    "Whitening": "whitening",
    "export_onnx": "export",
    "whitening_from_labels": "whitening",
    "whitening_from_pairs": "whitening",
    "whitening_from_pca": "whitening",
}

__all__ = [
    "INSTANCE_SEARCH_SCALES",
    "ZOO",
    "Embedder",
    "EmbedderConfig",
    "GeM",
    "Initialisation",
    "Whitening",
    "export_onnx",
    "whitening_from_labels",
    "whitening_from_pairs",
    "whitening_from_pca",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"recollect.models.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'recollect.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
