"""One large-batch step, then many."""

from recollect.training.large_batch import StepInfo, check_trainable_in_chunks, large_batch_step

__all__ = ["StepInfo", "check_trainable_in_chunks", "large_batch_step"]
