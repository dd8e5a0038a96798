"""Runs to pages: curves, galleries, tables beside the paper's. Start with ``write_report``.

Names are imported when first used, so that the command line's ``--help`` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.report.demo import run_demo
    from recollect.report.exact_search import nearest
    from recollect.report.method import draw_method
    from recollect.report.page import write_report

_PUBLIC = {"draw_method": "method", "nearest": "exact_search", "run_demo": "demo", "write_report": "page"}

__all__ = ["draw_method", "nearest", "run_demo", "write_report"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"recollect.report.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'recollect.report' has no attribute {name!r}")
