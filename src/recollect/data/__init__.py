"""Images with labels: where they come from, how they are split, sampled, decoded and augmented."""

from typing import TYPE_CHECKING, Any

from recollect.data.images import ImageSet
from recollect.data.registry import Counts, Source, available, load
from recollect.data.sources.revisited import RevisitedBenchmark, load_distractors, load_revisited
from recollect.data.splits import class_disjoint_split, class_folds

if TYPE_CHECKING:
    from recollect.data.loading import Batch, Pipeline
    from recollect.data.sampling import ClassBalancedSampler, shard
    from recollect.data.transforms import glyph_transform, test_transform, train_transform, whole_transform

__all__ = [
    "Batch",
    "ClassBalancedSampler",
    "Counts",
    "ImageSet",
    "Pipeline",
    "RevisitedBenchmark",
    "Source",
    "available",
    "class_disjoint_split",
    "class_folds",
    "glyph_transform",
    "load",
    "load_distractors",
    "load_revisited",
    "shard",
    "test_transform",
    "train_transform",
    "whole_transform",
]

# Imported on first use: they bring torch, which the command line's --help must not wait for.
_LAZY = {
    "Batch": "loading",
    "Pipeline": "loading",
    "ClassBalancedSampler": "sampling",
    "shard": "sampling",
    "glyph_transform": "transforms",
    "test_transform": "transforms",
    "train_transform": "transforms",
    "whole_transform": "transforms",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
