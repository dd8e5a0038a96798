"""Images with labels: where they come from, how they are split, sampled, decoded and augmented."""

from recollect.data.images import ImageSet
from recollect.data.registry import Counts, Source, available, load
from recollect.data.sources.revisited import RevisitedBenchmark, load_distractors, load_revisited
from recollect.data.splits import class_disjoint_split, class_folds

__all__ = [
    "Counts",
    "ImageSet",
    "RevisitedBenchmark",
    "Source",
    "available",
    "class_disjoint_split",
    "class_folds",
    "load",
    "load_distractors",
    "load_revisited",
]
