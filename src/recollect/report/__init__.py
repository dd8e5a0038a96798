"""Reports of runs: a verdict, failures, data to check, maps, galleries, tables. Start with ``write_report``.

Names are imported when first used, so that the command line's ``--help`` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.report.page import write_report as write_report
    from recollect.report.search_page import write_search_page as write_search_page

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
