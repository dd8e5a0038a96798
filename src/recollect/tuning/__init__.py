"""Hyper-parameter search on the training classes only, then one training run and one test (start with ``study.py``).

Names are imported when first used, so that the command line's ``--help`` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.tuning.study import tune as tune

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
