"""Images to learn a whitening from, and the whitening as a last layer, before or after training.

Pairs of images that match come from the lists of SfM-120k or from labels, two images of one class being a pair.
``training/head.py`` starts a last layer that way; ``add_last_layer`` gives a trained network without one its
whitening afterwards, as in the rows that the paper marks with an asterisk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.errors import ConfigError, InputError
from recollect.common.files import make_folder_for
from recollect.common.text import number_of
from recollect.config.resolve import resolve
from recollect.data import ImageSet, load, load_sfm_pairs
from recollect.inference.models import open_model
from recollect.inference.training_record import carry_record
from recollect.inference.vectors import embed_set, head_inputs
from recollect.models import INSTANCE_SEARCH_SCALES, Embedder, Whitening, whitening_from_pairs
from recollect.models.saving import DESCRIPTION, refuse_saved
from recollect.models.whitening import pairs_of_classes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class WhiteningSet:
    """Images, and which of them match: numbers of the two images of each pair, or None for pairs of one class."""

    images: ImageSet
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @classmethod
    def from_sfm(cls, root: Path | str) -> WhiteningSet:
        """The pairs that the publishers of SfM-120k learn whitening from; images in no pair are left out."""
        pairs = load_sfm_pairs(root, "whiten")
        used, places = np.unique(np.concatenate([pairs.queries, pairs.positives]), return_inverse=True)
        queries, positives = np.split(places.astype(np.int64), 2)
        return cls(pairs.images.subset(used), (queries, positives))

    def learn(
        self, embedder: Embedder, seed: int = 0, *, scales: Sequence[float] | None = None, on_bad_image: str = "error"
    ) -> Whitening:
        """The whitening of what the embedder's last layer is given; with ``scales`` of the vectors of one without.

        ``on_bad_image="skip"`` leaves out images that cannot be read, and pairs with one of them.

        Raises:
            InputError: too few pairs for the number of dimensions.
        """
        # Not the chunk of the training: it may differ after resuming, and rounding depends on it.
        if scales is None:
            features = head_inputs(embedder, self.images, on_bad_image=on_bad_image)
        else:
            vectors = embed_set(embedder, self.images, scales=scales, on_bad_image=on_bad_image)
            features = torch.from_numpy(np.array(vectors.rows))
        readable = torch.isfinite(features[:, 0])
        if self.pairs is None:
            queries, positives = pairs_of_classes(torch.from_numpy(self.images.labels)[readable], seed=seed)
        else:
            both = [torch.from_numpy(rows) for rows in self.pairs]
            whole = readable[both[0]] & readable[both[1]]
            places = readable.cumsum(0) - 1  # of a readable image among the readable ones
            queries, positives = (places[rows[whole]] for rows in both)
        if len(queries) < features.shape[1]:
            raise InputError(
                f"{number_of(len(queries), 'pair/pairs')} of images for {features.shape[1]:,} features: a whitening needs at "
                "least as many pairs as features. Use more images of each class. With few images, start a last layer from "
                "all of them instead: recollect train --data FOLDER --freeze pooling --set model.whitening=all --steps 0."
            )
        return whitening_from_pairs(features[readable], queries, positives)


def add_last_layer(
    embedder: Embedder,
    whitening_set: WhiteningSet,
    dim: int | None = None,
    seed: int = 0,
    *,
    scales: Sequence[float] | None = None,
    on_bad_image: str = "error",
) -> Embedder:
    """The same network with L2, a whitening as its last layer, and L2.

    Args:
        embedder: without a last layer.
        whitening_set: the images to learn from.
        dim: leading dimensions to keep; all by default.
        seed: of the pairs, where labels give more than are used.
        scales: learn from descriptors averaged over these scales, for vectors that will be.
        on_bad_image: ``"error"``, or ``"skip"`` for images that cannot be read.

    Raises:
        ConfigError: it already has a last layer, or fewer dimensions than ``dim``.
    """
    if embedder.head.linear is not None:
        raise ConfigError("the network already has a last layer: only one without (model.dim=null) takes a whitening.")
    features = embedder.feature_dim
    if dim is not None and not 1 <= dim <= features:
        raise ConfigError(f"dim {dim}: the network has {features} features, so choose 1 to {features}.")
    config = replace(embedder.config, dim=dim or features, l2_before_head=True, layer_norm=False, added_head=True)
    whitened = Embedder(config, embedder.backbone)
    whitened.load_state_dict(embedder.state_dict(), strict=False)  # GeM's exponent; the last layer is new
    whitened.to(embedder.device).eval()
    source = whitened if scales is None else embedder
    whitened.set_whitening(whitening_set.learn(source, seed, scales=scales, on_bad_image=on_bad_image))
    return whitened


def whiten(
    model: str | Path,
    out: str | Path,
    *,
    pairs: str | Path | None = None,
    data: str | Path | None = None,
    root: str | Path | None = None,
    split: str = "train",
    dim: int | None = None,
    seed: int = 0,
    multiscale: bool = False,
    device: str | None = None,
    download: bool = False,
    on_bad_image: str = "error",
    overwrite: bool = False,
) -> Path:
    """Learn a whitening, add it to a network as its last layer, and save that.

    Args:
        model: a run, a saved embedder, or an initialisation, without a last layer.
        out: the folder of the embedder to write.
        pairs: learn from the whitening pairs of SfM-120k in this folder.
        data: learn from a data set or a folder instead: two images of one class are a pair. root, split: of it.
        dim: leading dimensions to keep; all by default.
        seed: of the pairs, where labels give more than are used.
        multiscale: learn from descriptors averaged over three scales, for ``write_evaluation(multiscale=True)``.
        device, download: see ``recollect.load``.
        on_bad_image: ``"error"`` stops at images that are missing or cannot be read, ``"skip"`` continues.
        overwrite: replace ``out``.

    Returns:
        ``out``.

    Raises:
        ConfigError: neither or both of ``pairs`` and ``data``, or a network with a last layer.

    Example:
        The last layer is added to a network without one::

            recollect.whiten("lite0-in1k", "whitened", data="photos", dim=256)
    """
    if (pairs is None) == (data is None):
        raise ConfigError("give the images to learn from: --pairs FOLDER (SfM-120k), or --data NAME.")
    out = Path(out)
    refuse_saved(out, overwrite)  # before the images are embedded, not after
    make_folder_for(out / DESCRIPTION if out.is_dir() else out)
    opened = open_model(model, download=download, device=device)
    if opened.remark is not None:
        logger.info(opened.remark)
    if pairs is not None:
        whitening_set = WhiteningSet.from_sfm(pairs)
    else:
        settings = resolve(data=data, root=root).data
        images = load(settings.name, settings.root, split, on_bad_image=on_bad_image)
        paired = np.flatnonzero(np.bincount(images.labels)[images.labels] >= 2)
        if not len(paired):
            raise ConfigError(f"{images.name}: no class has two images, so there is no pair to learn a whitening from.")
        whitening_set = WhiteningSet(images.subset(paired))
    logger.info(f"learning from {len(whitening_set.images):,} images")
    scales = INSTANCE_SEARCH_SCALES if multiscale else None
    whitened = add_last_layer(opened.embedder, whitening_set, dim, seed, scales=scales, on_bad_image=on_bad_image)
    whitened.save(out, overwrite=overwrite)
    if opened.folder is not None:
        carry_record(opened.folder, Path(out))
    return out
