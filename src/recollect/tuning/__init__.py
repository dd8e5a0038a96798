"""Protocols around training: settings searched without test feedback, and the paper's claims as matrices of runs.

``tune`` (``search.py``) is the way in to the search. For the claims read ``benches.py`` and ``claims.py`` (what is
measured), ``matrix.py`` (which runs that is) and ``matrix_runs.py`` (how they are done once and resumed), ``summary.py``
(how differences are judged) and ``claims_page.py`` (what is written). Names are imported when first used, so that the
command line's ``--help`` does not wait for torch. Nothing but ``cli`` imports this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common.lazy import lazy_names

if TYPE_CHECKING:
    from recollect.tuning.claims_page import write_page
    from recollect.tuning.matrix import Matrix
    from recollect.tuning.matrix_runs import run_matrix
    from recollect.tuning.search import tune

__all__ = ["Matrix", "run_matrix", "tune", "write_page"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Matrix": "recollect.tuning.matrix",
        "run_matrix": "recollect.tuning.matrix_runs",
        "tune": "recollect.tuning.search",
        "write_page": "recollect.tuning.claims_page",
    },
)
