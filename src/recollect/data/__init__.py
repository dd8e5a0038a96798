"""Images with labels: where they come from, how they are split, sampled, decoded and augmented."""

from typing import TYPE_CHECKING

from recollect.common import lazy_names
from recollect.data.hugging_face import from_hugging_face
from recollect.data.image_files import Listed, list_images, summary
from recollect.data.image_set import ImageSet
from recollect.data.registry import Counts, Source, available, load, only_splits
from recollect.data.sfm_pairs import MatchingPairs, load_sfm_pairs
from recollect.data.sources.revisited import RevisitedBenchmark, load_distractors, load_revisited
from recollect.data.splits import class_disjoint_split, class_folds

if TYPE_CHECKING:
    from recollect.data.pipeline import Batch, Pipeline
    from recollect.data.sampling import ClassBalancedSampler, shard
    from recollect.data.transforms import glyph_transform, test_transform, train_transform, whole_transform

__all__ = [
    "Batch",
    "ClassBalancedSampler",
    "Counts",
    "ImageSet",
    "Listed",
    "MatchingPairs",
    "Pipeline",
    "RevisitedBenchmark",
    "Source",
    "available",
    "class_disjoint_split",
    "class_folds",
    "from_hugging_face",
    "glyph_transform",
    "list_images",
    "load",
    "load_distractors",
    "load_revisited",
    "load_sfm_pairs",
    "only_splits",
    "shard",
    "summary",
    "test_transform",
    "train_transform",
    "whole_transform",
]

# Imported on first use: they bring torch, which the command line's --help must not wait for.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Batch": "recollect.data.pipeline",
        "Pipeline": "recollect.data.pipeline",
        "ClassBalancedSampler": "recollect.data.sampling",
        "shard": "recollect.data.sampling",
        "glyph_transform": "recollect.data.transforms",
        "test_transform": "recollect.data.transforms",
        "train_transform": "recollect.data.transforms",
        "whole_transform": "recollect.data.transforms",
    },
)
