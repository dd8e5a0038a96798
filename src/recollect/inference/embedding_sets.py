"""``embed_set``: vectors of a set of images. Only the validation during training has its own loop.

The output of the pooling is kept in the vector store, and the last layer is applied when it is read. So a photo that any
command has embedded with a network is not embedded again, not even after training, if the backbone was frozen. Vectors
averaged over several scales are stored after the last layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.images import BadImage
from recollect.common.text import some_names
from recollect.data import ImageSet, Pipeline, summary
from recollect.data.transforms import Transform, test_transform
from recollect.inference.content_keys import Keys, content_keys
from recollect.inference.features import BATCH, SetRows, part_about, part_rows, rows_in_order
from recollect.inference.vector_store import PART, Places, Rows, VectorStore, allocated, weights_digest
from recollect.models import Embedder

_AT_ONCE = 4096  # pooled rows per call of the last layer


@dataclass(frozen=True)
class Embedded:
    """Vectors of a set.

    Attributes:
        vectors: N × dim of length 1, in the set's order; NaN for images that were skipped.
        keys: digests of the images' contents, N × 16.
        skipped: images that could not be read.
    """

    vectors: NDArray[np.float32]
    keys: Keys
    skipped: list[BadImage] = field(default_factory=list)

    @property
    def read(self) -> NDArray[np.int64]:
        """Positions of the images that could be read."""
        return np.flatnonzero(np.isfinite(self.vectors[:, 0]))


def embed_set(
    embedder: Embedder,
    images: ImageSet,
    *,
    frozen: str | None = None,
    scales: Sequence[float] | None = None,
    transform: Transform | None = None,
    keys: Keys | None = None,
    batch_size: int = BATCH,
    device: str | torch.device | None = None,
    workers: int | None = None,
    on_bad_image: str = "error",
    keep: bool = True,
) -> Embedded:
    """Vectors of every image of a set, as from ``Embedder.embed``; stored ones are read instead of computed.

    Args:
        embedder: the network.
        images: the set.
        frozen: the stage up to which training froze the network (``model.freeze``), if known.
        scales: average over these scales; None for a single scale.
        transform: how pixels are computed; by default the embedder's preprocessing.
        keys: keys of the images, if already known.
        batch_size: images per batch at the network's own size; fewer for larger images.
        device: moves the embedder there first; None uses its current device.
        workers: threads that decode.
        on_bad_image: ``"error"`` raises the first unreadable image's ``ImageError``; ``"skip"`` sets its vector to NaN
            and lists it.
        keep: False reads the store but does not write to it, for a few images that are needed once.
    """
    if device is not None:
        embedder.to(device)
    if scales is not None:
        found = _at_scales(embedder, images, tuple(scales), transform, keys, batch_size, workers, on_bad_image, keep)
        return Embedded(found.rows, found.keys, found.skipped)
    found = part_rows(
        embedder,
        images,
        frozen=frozen,
        transform=transform,
        keys=keys,
        batch_size=batch_size,
        workers=workers,
        on_bad_image=on_bad_image,
        keep=keep,
    )
    return Embedded(_through_head(embedder, found.rows), found.keys, found.skipped)


def embed_files(embedder: Embedder, paths: Sequence[Path], **options: object) -> Embedded:
    """``embed_set`` of single files from any folders; a file may be given twice."""
    absolute = [path.absolute() for path in paths]
    distinct = list(dict.fromkeys(absolute))
    found = embed_set(embedder, files_as_set(distinct), **options)  # type: ignore[arg-type]
    order = np.array([distinct.index(path) for path in absolute])
    skipped = [replace(bad, name=str(distinct[bad.index])) for bad in found.skipped]
    return Embedded(found.vectors[order], found.keys[order], skipped)


def files_left_out(images: ImageSet, skipped: Sequence[BadImage]) -> dict[str, int]:
    """The number of unused files of a set, by reason: not listed, or ``skipped`` while embedding."""
    return dict(Counter(images.facts.get("left_out", {})) + Counter(bad.kind for bad in skipped))


def used_after_all(images: ImageSet, unread: Mapping[str, BadImage]) -> str | None:
    """How many images of a set are used without the ``unread`` ones, by name, and which classes are lost; None if all are."""
    bad = [unread[name] for name in images.names if name in unread]
    if not bad:
        return None
    left = {int(label) for name, label in zip(images.names, images.labels, strict=True) if name not in unread}
    lost = [images.class_names[label] for label in np.unique(images.labels).tolist() if label not in left]
    said = summary(len(images) - len(bad), files_left_out(images, bad))
    return f"{said}; no image of {some_names(lost)} can be read" if lost else said


def files_as_set(paths: Sequence[Path], name: str = "images") -> ImageSet:
    """Files of any folders as a set without classes."""
    absolute = [path.absolute() for path in paths]
    root = Path(absolute[0].anchor)
    # The user named these files one by one, so all of them may be read.
    names = [path.as_posix() for path in absolute]
    return ImageSet(name, names, np.zeros(len(names), np.int64), ["images"], root=root)


def _through_head(embedder: Embedder, pooled: Rows) -> Rows:
    """Apply the last layer and normalize, a part at a time: a million rows need not be in memory."""
    _, rest = embedder.split("pooling")
    rest.eval()
    vectors = allocated((len(pooled), embedder.dim))
    with torch.inference_mode():
        for start in range(0, len(pooled), _AT_ONCE):
            rows = torch.from_numpy(np.ascontiguousarray(pooled[start : start + _AT_ONCE])).to(embedder.device)
            vectors[start : start + _AT_ONCE] = rest(rows).float().cpu().numpy()
    rest.train(embedder.training)
    return vectors


def _at_scales(
    embedder: Embedder,
    images: ImageSet,
    scales: tuple[float, ...],
    transform: Transform | None,
    keys: Keys | None,
    batch_size: int,
    workers: int | None,
    on_bad_image: str,
    keep: bool,
) -> SetRows:
    keys = content_keys(images) if keys is None else keys
    transform = test_transform(embedder.preprocessing) if transform is None else transform
    about = part_about(embedder, transform) | {
        "upto": "vectors",
        "weights": weights_digest(embedder),
        "head": [embedder.config.pooling, embedder.config.layer_norm, embedder.config.l2_before_head],
        "scales": list(scales),
    }
    if embedder.head.linear is None or embedder.config.added_head:
        about["mean"] = "descriptors"
    skipped: list[BadImage] = []
    at_once = max(1, int(min(batch_size, embedder.images_at_once) / max(1.0, *(s * s for s in scales))))

    def compute(places: Places) -> Rows:
        found: dict[int, Rows] = {}
        with Pipeline(images.subset(places), transform, workers=workers, on_bad_image=on_bad_image) as pipeline:
            for batch in pipeline.sequential(at_once):
                pixels = batch.images
                rows = embedder.embed(pixels, batch_size=len(batch.indices), scales=scales, progress=False)
                found.update(zip(batch.indices.tolist(), rows.numpy(), strict=True))
            skipped.extend(replace(bad, index=int(places[bad.index])) for bad in pipeline.bad_images)
        return rows_in_order(found, len(places), (embedder.dim,))

    rows = VectorStore(about).rows(
        keys, compute, part=PART // 4, keep=keep, description=f"{images.name}/{images.split}"
    )
    return SetRows(rows, keys, sorted(skipped, key=lambda bad: bad.index))
