"""Images with labels: where they come from, how they are split, sampled, decoded and augmented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common import lazy_names

if TYPE_CHECKING:
    from recollect.data.folders import Listed as Listed, list_images as list_images, summary as summary
    from recollect.data.hugging_face import from_hugging_face as from_hugging_face
    from recollect.data.image_set import (
        ImageSet as ImageSet,
        class_disjoint_split as class_disjoint_split,
        class_folds as class_folds,
    )
    from recollect.data.pipeline import Batch as Batch, Pipeline as Pipeline
    from recollect.data.registry import (
        Counts as Counts,
        Source as Source,
        available as available,
        load as load,
        only_splits as only_splits,
    )
    from recollect.data.sampling import ClassBalancedSampler as ClassBalancedSampler, shard as shard
    from recollect.data.sources.revisited import (
        MatchingPairs as MatchingPairs,
        RevisitedBenchmark as RevisitedBenchmark,
        load_distractors as load_distractors,
        load_revisited as load_revisited,
        load_sfm_pairs as load_sfm_pairs,
    )
    from recollect.data.transforms import (
        glyph_transform as glyph_transform,
        test_transform as test_transform,
        train_transform as train_transform,
        whole_transform as whole_transform,
    )

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
