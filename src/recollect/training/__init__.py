"""One large-batch step, then many. Names are imported when first used: recipes are listed without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recollect.training.large_batch import StepInfo, check_trainable_in_chunks, large_batch_step

__all__ = ["StepInfo", "check_trainable_in_chunks", "large_batch_step"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recollect.training import large_batch

    return getattr(large_batch, name)
