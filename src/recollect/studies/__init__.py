"""Comparisons of losses, and the demonstration.

Read ``matrix.py`` (the runs of a comparison), ``matrix_runs.py`` (how they are executed and resumed), ``comparison.py`` (its
plan and results), ``compared_losses.py`` (from names of losses to a result) and ``compared_losses_page.py`` (the page).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.studies.compared_losses import compare_losses as compare_losses
    from recollect.studies.demonstration import run_demo as run_demo

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
