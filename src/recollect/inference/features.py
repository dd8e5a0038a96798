"""Features of a part of a network: computed once per photo and kept in the vector store.

The part is everything up to a stage of the embedder. Up to ``"pooling"`` most of the time is spent, and its output is
small, so all vectors are computed from rows stored there (``embedding_sets.py``); a training with ``model.freeze`` stores
rows where it cuts the network. Pixels come from the pipeline with the test transform: no augmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import PIL
import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, DataError
from recollect.common.images import BadImage
from recollect.common.machine import seconds_of
from recollect.data import ImageSet, Pipeline, test_transform
from recollect.data.transforms import Transform
from recollect.inference.content_keys import Keys, content_keys
from recollect.inference.vector_store import PART, Places, Rows, VectorStore, weights_digest
from recollect.models import Embedder
from recollect.models.backbones import NativePool, refusing_narrow
from recollect.step.model_inputs import take_rows

BATCH = 64
"""Images in the network at once, at most (``Embedder.images_at_once``). Fixed, because rounding depends on it."""
_PROBE = 32  # images that tell how long all will take


@dataclass(frozen=True)
class SetRows:
    """Rows of a set's images, in order; NaN for those that were skipped."""

    rows: Rows
    keys: Keys
    skipped: list[BadImage] = field(default_factory=list)


def part_rows(
    embedder: Embedder,
    images: ImageSet,
    upto: str = "pooling",
    *,
    frozen: str | None = None,
    keys: Keys | None = None,
    transform: Transform | None = None,
    batch_size: int = BATCH,
    workers: int | None = None,
    on_bad_image: str = "error",
    keep: bool = True,
) -> SetRows:
    """N × … float32 outputs of stage ``upto``; stored rows are read.

    Args:
        embedder: the network, on its device.
        images: the images to embed.
        upto: the name of the stage, as in ``Embedder.split``.
        frozen: the stage up to which training froze the network, if any. Rows stored there are used as a start, and for
            ``upto="pooling"`` rows of the backbone's own pooling, which the untrained network is evaluated with, are
            stored in the same pass.
        keys: keys of the images, if already known.
        transform: how pixels are computed; by default the embedder's preprocessing.
        batch_size: images per batch, at most.
        workers: threads that decode.
        on_bad_image: ``"error"``, or ``"skip"``: rows of images that cannot be read are NaN.
        keep: False only reads the store.

    Raises:
        ConfigError: images of different sizes, whose rows do not fit in one array.
    """
    whole = embedder.preprocessing.resize is None
    if whole and upto != "pooling":
        raise ConfigError("a frozen part needs images of one size: set model.image_size, or model.freeze=none.")
    keys = content_keys(images) if keys is None else keys
    transform = test_transform(embedder.preprocessing) if transform is None else transform
    store = VectorStore(_about(embedder, upto, transform))
    skipped: list[BadImage] = []
    below = frozen not in (None, "none", "auto", upto) and not whole
    lower = _Lower(embedder, str(frozen), upto, transform) if below else None
    native = _native(embedder, transform) if keep and upto == "pooling" and frozen in ("backbone", "pooling") else None

    def compute(places: Places) -> Rows:
        known = np.zeros(len(places), bool) if lower is None else lower.store.known(keys[places])
        rows: dict[int, Rows] = {}
        if lower is not None and known.any():
            rows.update(zip(places[known].tolist(), lower.rows(keys[places[known]], embedder), strict=True))
        left = places[~known]
        if len(left):
            pipeline = Pipeline(images.subset(left), transform, workers=workers, on_bad_image=on_bad_image)
            found = _from_pixels(embedder, pipeline, upto, batch_size, native, keys[left])
            rows.update(zip(left.tolist(), found.rows, strict=True))
            skipped.extend(replace(bad, index=int(left[bad.index])) for bad in found.skipped)
        return np.stack([rows[place] for place in places.tolist()])

    rows = store.rows(
        keys,
        compute,
        part=PART // 4 if whole else PART,
        keep=keep,
        description=f"{images.name}/{images.split}",
    )
    return SetRows(rows, keys, _every_copy(skipped, keys, images))


def _every_copy(skipped: Sequence[BadImage], keys: Keys, images: ImageSet) -> list[BadImage]:
    """``skipped`` extended by all images with the same contents, of which only one was tried."""
    reasons = {keys[bad.index].tobytes(): bad for bad in skipped}
    if not reasons:
        return []
    found = ((place, images.names[place], reasons.get(key.tobytes())) for place, key in enumerate(keys))
    return [
        replace(bad, index=place, name=name, reason=bad.reason.replace(bad.name, name))
        for place, name, bad in found
        if bad is not None
    ]


def seconds_of_rows(
    embedder: Embedder,
    frozen: nn.Module,
    images: ImageSet,
    upto: str,
    *,
    workers: int | None = None,
    on_bad_image: str = "error",
) -> float:
    """How long ``part_rows`` will take, measured on a few images; 0 if all rows are stored."""
    if embedder.preprocessing.resize is None:
        return 0.0
    transform = test_transform(embedder.preprocessing)
    left = np.flatnonzero(~VectorStore(_about(embedder, upto, transform)).known(content_keys(images)))
    if not len(left):
        return 0.0
    some = images.subset(left[:: max(1, len(left) // _PROBE)][:_PROBE])
    was_training = frozen.training
    frozen.eval()
    with Pipeline(some, transform, workers=workers, on_bad_image=on_bad_image) as pipeline, torch.inference_mode():

        def work() -> None:
            for batch in pipeline.sequential(embedder.images_at_once):
                frozen(take_rows(batch.images, slice(None), embedder.device)).float().cpu()

        seconds = seconds_of(work)
    frozen.train(was_training)
    return seconds * len(left) / len(some)


def first_feature(embedder: Embedder, frozen: nn.Module, images: ImageSet, *, on_bad_image: str = "error") -> Tensor:
    """The frozen part's output for the first readable image, 1 × …, on the CPU: enough for a plan.

    Raises:
        DataError: no image can be read.
    """
    transform = test_transform(embedder.preprocessing)
    with Pipeline(images, transform, workers=0, on_bad_image=on_bad_image) as pipeline:
        for batch in pipeline.sequential(1):
            (row,) = (
                row
                for row, _ in run_network(frozen, [(batch.images, batch.indices)], embedder.device, names=images.names)
            )
            return row.cpu()
    raise DataError(f"{images.name}: none of the {len(images):,} images can be read: check the files.")


def run_network(
    network: nn.Module,
    batches: Iterable[tuple[Any, Places]],
    device: torch.device,
    dtype: torch.dtype | None = None,
    names: Sequence[str] | None = None,
) -> Iterator[tuple[Tensor, Places]]:
    """Float32 outputs of ``network`` for every batch, and their image numbers. Its mode is restored.

    Args:
        network: in evaluation mode while it is used here.
        batches: inputs, and the numbers of their images.
        device: where it is.
        dtype: of autocast; None for float32.
        names: names of all images, for errors.
    """
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            for inputs, places in batches:
                taken = take_rows(inputs, slice(None), device)
                with refusing_narrow(taken, None if names is None else _names_at(names, places)):
                    outputs = network(taken).float()
                yield outputs, places
    finally:
        network.train(was_training)


def _names_at(names: Sequence[str], places: Places) -> Callable[[int], str]:
    return lambda number: names[int(places[number])]


def _from_pixels(
    embedder: Embedder,
    pipeline: Pipeline,
    upto: str,
    batch_size: int,
    native: tuple[VectorStore, nn.Module] | None,
    keys: Keys,
) -> SetRows:
    """Rows of all images of a pipeline; those of ``native`` are written to their store at the same time."""
    part = _Fitted(embedder, embedder.split(upto)[0]) if native is None else _TwoPoolings(embedder, native[1])
    part.train(embedder.training)
    whole, count = pipeline.transform.size is None, len(pipeline.images)
    fits = not whole and embedder.device.type != "cpu"
    at_once = batch_size if fits else min(batch_size, embedder.images_at_once)
    found: dict[int, Rows] = {}
    with pipeline:
        batches = ((batch.images, batch.indices) for batch in pipeline.sequential(at_once))
        for outputs, places in run_network(part, batches, embedder.device, names=pipeline.images.names):
            found.update(zip(places.tolist(), outputs.cpu().numpy(), strict=True))
        skipped = pipeline.bad_images
    if native is not None and found:
        read = np.array(sorted(found), np.int64)
        native[0].keep(keys[read], np.stack([found[place][embedder.feature_dim :] for place in read.tolist()]))
        found = {place: row[: embedder.feature_dim] for place, row in found.items()}
    shape = next(iter(found.values())).shape if found else _row_shape(embedder, upto)
    return SetRows(rows_in_order(found, count, shape), keys, skipped)


def _row_shape(embedder: Embedder, upto: str) -> tuple[int, ...]:
    """The shape of a row, if no image could be read."""
    if upto == "pooling":
        return (embedder.feature_dim,)
    side = embedder.preprocessing.size
    blank = [(torch.zeros(1, 3, side, side, dtype=torch.uint8), np.zeros(1, np.int64))]
    (row,) = (row for row, _ in run_network(embedder.split(upto)[0], blank, embedder.device))
    return tuple(row.shape[1:])


def rows_in_order(found: Mapping[int, Rows], count: int, shape: tuple[int, ...]) -> Rows:
    """``count`` rows: those of ``found`` at their positions, the others NaN."""
    rows = np.full((count, *shape), np.nan, np.float32)
    for place, row in found.items():
        rows[place] = row
    return rows


class _Fitted(nn.Module):
    """A part of an embedder that takes pixels of any size the embedder takes."""

    def __init__(self, embedder: Embedder, part: nn.Module) -> None:
        super().__init__()
        self._embedder, self.part = (embedder,), part

    def forward(self, pixels: Tensor) -> Tensor:
        outputs: Tensor = self.part(self._embedder[0].fitted(pixels))
        return outputs


class _TwoPoolings(nn.Module):
    """Pixels to pooled features by the embedder's pooling, then by the backbone's own, side by side."""

    def __init__(self, embedder: Embedder, native: nn.Module) -> None:
        super().__init__()
        self._embedder, self.native = (embedder,), native
        self.backbone, self.pooling = embedder.split("backbone")[0], embedder.between("backbone", "pooling")

    def forward(self, pixels: Tensor) -> Tensor:
        maps = self.backbone(self._embedder[0].fitted(pixels))
        return torch.cat([self.pooling(maps), self.native(maps)], dim=1)


class _Lower:
    """Rows that a training stored at an earlier stage, and the layers from there to the requested one."""

    def __init__(self, embedder: Embedder, frozen: str, upto: str, transform: Transform) -> None:
        self.store = VectorStore(_about(embedder, frozen, transform))
        self.between = embedder.between(frozen, upto)

    def rows(self, keys: Keys, embedder: Embedder) -> Rows:
        features = self.store.rows(keys, _never, keep=False)
        starts = range(0, len(features), BATCH)
        batches = ((torch.from_numpy(features[start : start + BATCH]), np.arange(0)) for start in starts)
        return np.concatenate([rows.cpu().numpy() for rows, _ in run_network(self.between, batches, embedder.device)])


def _never(places: Places) -> Rows:
    raise AssertionError("rows that are known are not computed")


def _native(embedder: Embedder, transform: Transform) -> tuple[VectorStore, nn.Module] | None:
    """The store of rows of the backbone's own pooling, and that pooling; None if the embedder has no other."""
    if embedder.pooling is None:
        return None
    return VectorStore(_about(embedder, "pooling", transform, native=True)), NativePool(embedder.backbone)


def part_about(embedder: Embedder, transform: Transform) -> dict[str, Any]:
    """Everything a row of any part of ``embedder`` depends on, besides image and weights."""
    return {
        "architecture": embedder.config.architecture,
        "preprocessing": embedder.preprocessing.as_dict(),
        "transform": transform.key,
        "pillow": PIL.__version__,  # decoders change in small ways
    }


def _about(embedder: Embedder, upto: str, transform: Transform, native: bool = False) -> dict[str, Any]:
    """Everything a row depends on besides the image. The device is left out: rows agree up to rounding."""
    about = part_about(embedder, transform) | {"upto": upto}
    if upto != "pooling":
        return {**about, "weights": weights_digest(embedder.split(upto)[0])}
    own = native or embedder.pooling is None
    pooling = NativePool(embedder.backbone) if own else embedder.pooling
    return {
        **about,
        "weights": weights_digest(embedder.split("backbone")[0]),
        "pooling": "native" if own else embedder.config.pooling,
        "pooling_weights": weights_digest(pooling) if pooling is not None else "",
    }


def head_inputs(
    embedder: Embedder,
    images: ImageSet,
    *,
    frozen: str | None = None,
    on_bad_image: str = "error",
) -> Tensor:
    """The inputs of the last layer for every image, N × feature_dim; NaN for images that were skipped.

    Whitening is learned from these.
    """
    rows = part_rows(embedder, images, frozen=frozen, on_bad_image=on_bad_image).rows
    with torch.no_grad():
        inputs = embedder.head.inputs(torch.from_numpy(np.asarray(rows)).to(embedder.device))
    return inputs.float().cpu()
