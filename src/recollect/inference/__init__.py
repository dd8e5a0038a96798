"""From a model and images to vectors and metrics; shared by training, evaluation, reports and search.

``open_model`` opens the model that a user names, ``embed_set`` returns vectors of images (kept in the ``VectorStore``), and
``embed_test`` with ``evaluate_target`` evaluate a model on a test set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.inference.embedding_sets import embed_files, embed_set
    from recollect.inference.evaluating import evaluate_target
    from recollect.inference.opening import Opened, open_model, open_start
    from recollect.inference.target_vectors import embed_test, target_from_file
    from recollect.inference.test_sets import choose_test, load_test
    from recollect.inference.vector_store import VectorStore

__all__ = [
    "Opened",
    "VectorStore",
    "choose_test",
    "embed_files",
    "embed_set",
    "embed_test",
    "evaluate_target",
    "load_test",
    "open_model",
    "open_start",
    "target_from_file",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Opened": "recollect.inference.opening",
        "VectorStore": "recollect.inference.vector_store",
        "choose_test": "recollect.inference.test_sets",
        "embed_files": "recollect.inference.embedding_sets",
        "embed_set": "recollect.inference.embedding_sets",
        "embed_test": "recollect.inference.target_vectors",
        "evaluate_target": "recollect.inference.evaluating",
        "load_test": "recollect.inference.test_sets",
        "open_model": "recollect.inference.opening",
        "open_start": "recollect.inference.opening",
        "target_from_file": "recollect.inference.target_vectors",
    },
)
