"""Transforms of decoded images: crops, affine maps, whole images, and their random numbers.

``transform.py`` defines what a transform is and makes the usual ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recollect.common.imports import lazy_names

if TYPE_CHECKING:
    from recollect.data.transforms.transform import (
        FromTorchvision,
        Transform,
        glyph_transform,
        test_transform,
        train_transform,
        whole_transform,
    )

__all__ = ["FromTorchvision", "Transform", "glyph_transform", "test_transform", "train_transform", "whole_transform"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "FromTorchvision": "recollect.data.transforms.transform",
        "Transform": "recollect.data.transforms.transform",
        "glyph_transform": "recollect.data.transforms.transform",
        "test_transform": "recollect.data.transforms.transform",
        "train_transform": "recollect.data.transforms.transform",
        "whole_transform": "recollect.data.transforms.transform",
    },
)
