"""recollect: train, evaluate and ship image-retrieval embeddings by optimising recall@k itself.

Public names are imported when first used, so that ``import recollect`` and ``recollect --help`` stay fast.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from recollect._version import __version__
from recollect.common.imports import lazy_names

if TYPE_CHECKING:
    from recollect.evaluation import evaluate
    from recollect.losses import RecallAtK, Roadmap, SmoothAP, SupAP
    from recollect.models import Embedder
    from recollect.step import large_batch_step

# Silent until a program, or the command line, attaches a handler of its own.
logging.getLogger(__name__).addHandler(logging.NullHandler())

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "RecallAtK": "recollect.losses",
        "SmoothAP": "recollect.losses",
        "SupAP": "recollect.losses",
        "Roadmap": "recollect.losses",
        "Embedder": "recollect.models",
        "evaluate": "recollect.evaluation",
        "large_batch_step": "recollect.step",
    },
)
