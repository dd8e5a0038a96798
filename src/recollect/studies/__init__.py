"""The paper's claims as matrices of runs, comparisons of losses, and the demonstration.

Read ``benches.py`` and ``claims.py`` (what is measured), ``matrix.py`` (the runs), ``matrix_runs.py`` (how they are
executed and resumed), ``summary.py`` (how differences are judged) and ``claims_page.py`` (the page).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common.imports import lazy_names

if TYPE_CHECKING:
    from recollect.studies.claims_page import write_page
    from recollect.studies.compared_losses import compare_losses
    from recollect.studies.demonstration import run_demo
    from recollect.studies.matrix import Matrix
    from recollect.studies.matrix_runs import run_matrix

__all__ = ["Matrix", "compare_losses", "run_demo", "run_matrix", "write_page"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Matrix": "recollect.studies.matrix",
        "compare_losses": "recollect.studies.compared_losses",
        "run_demo": "recollect.studies.demonstration",
        "run_matrix": "recollect.studies.matrix_runs",
        "write_page": "recollect.studies.claims_page",
    },
)
