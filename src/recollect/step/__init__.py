"""The large-batch step: the exact gradient of any loss over a batch of any size. Usable without the rest of recollect.

Start with ``large_batch.py``; ``chunking.py`` finds how many images fit at once, ``team.py`` joins several processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.step.large_batch import StepInfo, check_trainable_in_chunks, find_chunk, large_batch_step

__all__ = ["StepInfo", "check_trainable_in_chunks", "find_chunk", "large_batch_step"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "StepInfo": "recollect.step.large_batch",
        "check_trainable_in_chunks": "recollect.step.large_batch",
        "find_chunk": "recollect.step.large_batch",
        "large_batch_step": "recollect.step.large_batch",
    },
)
