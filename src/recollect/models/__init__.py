"""Embedders, which map pixels to unit vectors; the initialisations they start from; and whitening.

Names are imported when first used: the table of initialisations is read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.models.embedder import INSTANCE_SEARCH_SCALES as INSTANCE_SEARCH_SCALES, Embedder as Embedder
    from recollect.models.onnx_export import export_onnx as export_onnx
    from recollect.models.pooling import GeM as GeM
    from recollect.models.saving import EmbedderConfig as EmbedderConfig
    from recollect.models.whitening import (
        Whitening as Whitening,
        whitening_from_classes as whitening_from_classes,
        whitening_from_labels as whitening_from_labels,
        whitening_from_pairs as whitening_from_pairs,
        whitening_from_pca as whitening_from_pca,
    )
    from recollect.models.zoo import ZOO as ZOO, Initialization as Initialization

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
