"""Embedders, which map pixels to unit vectors; the initialisations they start from; and whitening.

Names are imported when first used: the table of initialisations is read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.models.embedder import INSTANCE_SEARCH_SCALES, Embedder
    from recollect.models.onnx_export import export_onnx
    from recollect.models.pooling import GeM
    from recollect.models.saving import EmbedderConfig
    from recollect.models.whitening import (
        Whitening,
        whitening_from_classes,
        whitening_from_labels,
        whitening_from_pairs,
        whitening_from_pca,
    )
    from recollect.models.zoo import ZOO, Initialization

__all__ = [
    "INSTANCE_SEARCH_SCALES",
    "ZOO",
    "Embedder",
    "EmbedderConfig",
    "GeM",
    "Initialization",
    "Whitening",
    "export_onnx",
    "whitening_from_classes",
    "whitening_from_labels",
    "whitening_from_pairs",
    "whitening_from_pca",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "INSTANCE_SEARCH_SCALES": "recollect.models.embedder",
        "ZOO": "recollect.models.zoo",
        "Embedder": "recollect.models.embedder",
        "EmbedderConfig": "recollect.models.saving",
        "GeM": "recollect.models.pooling",
        "Initialization": "recollect.models.zoo",
        "Whitening": "recollect.models.whitening",
        "export_onnx": "recollect.models.onnx_export",
        "whitening_from_classes": "recollect.models.whitening",
        "whitening_from_labels": "recollect.models.whitening",
        "whitening_from_pairs": "recollect.models.whitening",
        "whitening_from_pca": "recollect.models.whitening",
    },
)
