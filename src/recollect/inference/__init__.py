"""From a model and images to vectors and metrics; shared by training, evaluation, reports and search.

``open_model`` opens the model that a user names, ``embed_set`` returns vectors of images (kept in the ``VectorStore``), and
``embed_test`` with ``evaluate_target`` evaluate a model on a test set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.inference.embedding_sets import embed_files as embed_files, embed_set as embed_set
    from recollect.inference.evaluating import evaluate_target as evaluate_target
    from recollect.inference.opening import Opened as Opened, open_model as open_model, open_start as open_start
    from recollect.inference.target_vectors import embed_test as embed_test, target_from_file as target_from_file
    from recollect.inference.test_sets import choose_test as choose_test, load_test as load_test
    from recollect.inference.vector_store import VectorStore as VectorStore

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
