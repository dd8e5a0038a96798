"""A Hugging Face ``datasets.Dataset`` as an ``ImageSet``; this file does not import the package.

Any object that gives rows by number and columns by name works.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recollect.common.errors import DataError, ImageError, InputError
from recollect.common.images import ImageSource
from recollect.common.text import did_you_mean
from recollect.data.image_set import ImageSet


def from_hugging_face(
    dataset: Any,
    *,
    image: str = "image",
    label: str = "label",
    coarse: str | None = None,
    name: str = "hugging-face",
    split: str | None = None,
) -> ImageSet:
    """Images and labels of a Hugging Face data set; no image is decoded before it is needed.

    Args:
        dataset: a ``datasets.Dataset``, not a streamed one.
        image: the column of images: decoded ones, or files and bytes as ``Image(decode=False)`` gives them.
        label: the column of classes: numbers, with the names of a ``ClassLabel`` if it has them, or text.
        coarse: a column of coarser classes.
        name: its name in messages and manifests.
        split: which split it is; by default the data set's own, otherwise ``"all"``.

    Raises:
        InputError: there is no such column, or the data set is streamed.
        DataError: rows without a class.

    Examples:
        >>> class Rows(list):
        ...     column_names = ["image", "label"]
        ...
        ...     def __getitem__(self, key):
        ...         return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)
        >>> rows = Rows([{"image": np.zeros((2, 3), np.uint8), "label": "cat"}])
        >>> images = from_hugging_face(rows)
        >>> images.class_names, images.read(0).size
        (['cat'], (3, 2))
    """
    columns = getattr(dataset, "column_names", None)
    if not isinstance(columns, list | tuple) or not hasattr(dataset, "__len__"):
        raise InputError(
            "one split of a data set is needed, not a DatasetDict and not a stream: load_dataset(…, split='train')."
        )
    for column in (image, label, *([] if coarse is None else [coarse])):
        if column not in columns:
            raise InputError(
                f"the data set has no column {column!r}: it has {', '.join(columns)}.{did_you_mean(column, columns)}"
            )
    labels, class_names = _labels(dataset, label)
    coarse_labels, coarse_names = (None, []) if coarse is None else _labels(dataset, coarse)
    # Without files, names identify images; the data set's fingerprint makes them unique.
    prefix = f"{mark}/" if isinstance(mark := getattr(dataset, "_fingerprint", None), str) else ""
    part = split or (str(dataset.split) if getattr(dataset, "split", None) is not None else "all")
    return ImageSet(
        name,
        [f"{prefix}{number:08}" for number in range(len(dataset))],
        labels,
        class_names,
        items=_Rows(dataset, image),
        split=part,
        coarse_labels=coarse_labels,
        coarse_names=coarse_names,
    )


class _Rows(Sequence[ImageSource]):
    """The images of the rows, fetched one by one."""

    def __init__(self, dataset: Any, column: str) -> None:
        self._dataset, self._column = dataset, column

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        try:
            value = self._dataset[index][self._column]
        except OSError as error:  # the library decodes the image itself and raises PIL's errors
            raise ImageError(f"cannot be read ({error}).", name=f"row {index}") from error
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        if not isinstance(value, Image.Image | np.ndarray | bytes | str | Path):
            raise ImageError(f"contains a {type(value).__name__}, not an image.", "not an image", f"row {index}")
        return value


def _labels(dataset: Any, column: str) -> tuple[NDArray[np.int64], list[str]]:
    values = list(dataset[column])
    missing = next((row for row, value in enumerate(values) if value is None or value == -1), None)
    if missing is not None:
        raise DataError(f"row {missing} has no {column}: filter such rows out, or choose another column.")
    names = getattr((getattr(dataset, "features", None) or {}).get(column), "names", None)
    keys, labels = np.unique(np.asarray(values), return_inverse=True)
    return labels.astype(np.int64), [str(key if names is None else names[key]) for key in keys.tolist()]
