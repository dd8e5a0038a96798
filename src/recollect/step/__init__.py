"""The large-batch step: the exact gradient of any loss over a batch of any size. Usable without the rest of recollect.

Start with ``large_batch.py``; ``distributed.py`` joins several processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.step.large_batch import (
        StepInfo as StepInfo,
        check_trainable_in_chunks as check_trainable_in_chunks,
        find_chunk as find_chunk,
        large_batch_step as large_batch_step,
    )

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
