"""One large-batch step, then many. Names are imported when first used: recipes are listed without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common.lazy import lazy_names

if TYPE_CHECKING:
    from recollect.training.large_batch import StepInfo, check_trainable_in_chunks, large_batch_step

__all__ = ["StepInfo", "check_trainable_in_chunks", "large_batch_step"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "recollect.training.large_batch"))
