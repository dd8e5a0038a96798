"""Matching pairs of SfM-120k, as listed by its publishers; whitening for instance search is learned from them.

``retrieval-SfM-120k.pkl`` has the parts ``train`` and ``val``, each a dict with ``cids`` (identities of images), ``cluster``
(the 3D model of each), ``qidxs`` and ``pidxs`` (numbers of the two images of a pair); ``retrieval-SfM-120k-whiten.pkl`` has
``cids``, ``qidxs`` and ``pidxs`` of the pairs that the publishers use for whitening. Read without running any code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, DataError
from recollect.data.image_set import ImageSet
from recollect.data.listing import make_set, need
from recollect.data.registry import refuse_if_sealed
from recollect.data.safe_pickle import read_plain_pickle
from recollect.data.sources.revisited import SFM, SFM120K, UNLABELLED, sfm_file_name, sfm_folder

PAIRS = ("whiten", "train", "val")


@dataclass(frozen=True, eq=False)
class MatchingPairs:
    """Images, and the pairs of them that show the same object.

    Attributes:
        images: the images; their classes are 3D models if the file has them.
        queries, positives: numbers of the images of each pair, of equal length, for ``whitening_from_pairs``.
    """

    images: ImageSet
    queries: NDArray[np.int64]
    positives: NDArray[np.int64]


def load_sfm_pairs(root: Path | str, part: str = "whiten", *, missing: str = "error") -> MatchingPairs:
    """Load the pairs of a part.

    Args:
        root: the folder that holds ``retrieval-SfM-120k``, or that folder itself.
        part: ``"whiten"``: the pairs the publishers learn whitening from; or ``"train"`` or ``"val"``.
        missing: what to do with missing images: ``"error"`` or ``"keep"``.

    Raises:
        DataError: the file is missing, damaged, or not a list of pairs.
    """
    refuse_if_sealed(f"sfm120k/{part}", "train" if part == "whiten" else part)
    if part not in PAIRS:
        raise ConfigError(f"SfM-120k has no pairs {part!r}: choose one of {', '.join(PAIRS)}.")
    if missing == "drop":
        raise ConfigError("missing='drop' would shift the numbers of pairs: use 'error' or 'keep'.")
    root, file = Path(root), f"{SFM}-whiten.pkl" if part == "whiten" else f"{SFM}.pkl"
    folder = sfm_folder(root, file)
    path = need(SFM120K, root / folder / file)
    content = read_plain_pickle(path)
    if part != "whiten":
        content = content.get(part) if isinstance(content, dict) else None
    if not isinstance(content, dict) or not {"cids", "qidxs", "pidxs"} <= content.keys():
        raise DataError(
            f"{path}: expected a dict with cids, qidxs and pidxs{'' if part == 'whiten' else f' under {part}'}."
        )
    identities = content["cids"]
    if not isinstance(identities, list) or not identities or not all(isinstance(i, str) for i in identities):
        raise DataError(f"{path}: cids must be a list of names.")
    queries, positives = (_numbers(content[key], key, len(identities), path) for key in ("qidxs", "pidxs"))
    if len(queries) != len(positives):
        raise DataError(f"{path}: {len(queries):,} qidxs but {len(positives):,} pidxs; each pair needs one of both.")
    clusters = content.get("cluster")
    if clusters is not None:
        clusters = _numbers(clusters, "cluster", None, path).tolist()
        if len(clusters) != len(identities):
            raise DataError(f"{path}: {len(identities):,} cids but {len(clusters):,} clusters.")
    images = make_set(
        SFM120K,
        root,
        part,
        [sfm_file_name(folder, identity) for identity in identities],
        clusters if clusters is not None else [UNLABELLED] * len(identities),
        missing=missing,
    )
    return MatchingPairs(images, queries, positives)


def _numbers(value: Any, key: str, count: int | None, path: Path) -> NDArray[np.int64]:
    whole = isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)
    if not whole or not all(0 <= i < (2**31 if count is None else count) for i in value):
        limit = "whole numbers" if count is None else f"numbers from 0 to {count - 1}"
        raise DataError(f"{path}: {key} must be a list of {limit}.")
    return np.array(value, dtype=np.int64)
