"""Many trainings for one answer: ``tune`` searches settings, ``compare`` compares losses, ``demo`` shows the whole job.

``protocol.py`` says which trainings there are, ``runner.py`` executes and resumes them, ``summary.py`` reads their results
and ``pages.py`` shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.studies.compare import compare_losses as compare_losses
    from recollect.studies.demo import run_demo as run_demo

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
