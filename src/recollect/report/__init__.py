"""Reports of runs: a verdict, failures, data to check, maps, galleries, tables. Start with ``write_report``.

Names are imported when first used, so that the command line's ``--help`` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.report.catalogue import embed_catalogue
    from recollect.report.page import write_report
    from recollect.search.exact_search import nearest

__all__ = ["embed_catalogue", "nearest", "write_report"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "embed_catalogue": "recollect.report.catalogue",
        "nearest": "recollect.search.exact_search",
        "write_report": "recollect.report.page",
    },
)
