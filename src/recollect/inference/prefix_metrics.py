"""What the first numbers of vectors are worth: the metrics of every prefix, for embeddings trained with ``loss.dims``.

Behind ``recollect eval --dims``; the protocol is that of ``evaluating.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.common.reading import open_npy
from recollect.common.unit_prefix import prefix_lengths, unit_rows
from recollect.inference.evaluating import Target, evaluate_target


def evaluate_prefixes(
    target: Target, dims: Sequence[int], ks: Sequence[int] | None = None, protocol: str = "all", **options: Any
) -> dict[int, dict[str, float]]:
    """Metrics of the first numbers of the vectors, at length 1, by length; the whole vectors come last.

    Args:
        target: the vectors. dims: the lengths. ks, protocol, options: as for ``evaluate_target``.
    """
    whole = int(target.embeddings.shape[1])
    if target.gnd is None and protocol == "all":
        options["metrics"] = ("r@k", "map@r")
    found = {}
    for dim in prefix_lengths(dims, whole):
        cut = {name: _prefix(getattr(target, name), dim, whole) for name in ("embeddings", "gallery", "distractors")}
        found[dim] = dict(evaluate_target(replace(target, **cut), ks, protocol, **options)[1]["metrics"])
    return found


def _prefix(vectors: Any, dim: int, whole: int) -> Any:
    if vectors is None or dim == whole:
        return vectors
    if isinstance(vectors, str | Path):
        vectors = open_npy(vectors)
    short = vectors[:, :dim]  # of a file on disk only this is read
    return unit_rows(short if isinstance(short, Tensor) else torch.from_numpy(np.array(short)))
