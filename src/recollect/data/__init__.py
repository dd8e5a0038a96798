"""Images with labels: where they come from, how they are split, sampled, decoded and augmented."""

from recollect.data.images import ImageSet

__all__ = ["ImageSet"]
