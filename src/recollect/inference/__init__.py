"""From a model and images to vectors and metrics; shared by training, evaluation, reports and search.

``open_model`` opens the model that a user names, ``embed_set`` returns vectors of images (kept in the ``VectorStore``), and
``load_test``, ``embed_test`` and ``evaluate_input`` evaluate a model on a test set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.inference.evaluate import (
        EvaluationInput as EvaluationInput,
        embed_test as embed_test,
        evaluate_input as evaluate_input,
    )
    from recollect.inference.models import (
        LoadedModel as LoadedModel,
        load_initial_model as load_initial_model,
        open_model as open_model,
    )
    from recollect.inference.store import VectorStore as VectorStore
    from recollect.inference.test_sets import load_test as load_test
    from recollect.inference.vectors import embed_files as embed_files, embed_set as embed_set

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
