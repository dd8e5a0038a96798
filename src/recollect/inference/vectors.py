"""Vectors of a set of images, and features of a part of a network: computed once per photo, and kept in the store.

The part is everything up to a stage of the embedder. Up to ``"pooling"`` most of the time is spent, and its output is
small, so rows are stored there and ``embed_set`` applies the last layer when it reads them: a photo that any command has
embedded with a network is not embedded again, not even after training, if the backbone was frozen. A training with
``model.freeze`` stores rows where it cuts the network, and vectors averaged over several scales are stored after the last
layer. Pixels come from the pipeline with the test transform: no augmentation.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL
import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, DataError
from recollect.common.images import BadImage
from recollect.common.machine import autocast_dtype, seconds_of, tf32
from recollect.common.text import some_names
from recollect.data import ImageSet, Pipeline, summary, test_transform
from recollect.data.transforms import Transform
from recollect.inference.store import PART, Keys, Places, Rows, VectorStore, allocated, content_keys
from recollect.models import Embedder
from recollect.models.backbones import NativePool, feature_size, refusing_narrow
from recollect.models.pooling import STAGES
from recollect.models.weights import weights_digest
from recollect.step.large_batch import take_rows

BATCH = 64
"""Images in the network at once on a CPU, at most (``Embedder.images_at_once``). Fixed, because rounding depends on it."""
_PROBE = 32  # images that tell how long all will take
_HEAD_ROWS = 4096  # pooled rows per call of the last layer
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class SetRows:
    """Vectors or features of a set's images.

    Attributes:
        rows: N × …, in the set's order; NaN for images that were skipped.
        keys: digests of the images' contents, N × 16.
        skipped: images that could not be read.
    """

    rows: Rows
    keys: Keys
    skipped: list[BadImage] = field(default_factory=list)

    @property
    def read(self) -> Places:
        """Positions of the images that could be read."""
        return np.flatnonzero(np.isfinite(self.rows[:, 0]))


def embed_set(
    embedder: Embedder,
    images: ImageSet,
    *,
    frozen: str | None = None,
    scales: Sequence[float] | None = None,
    device: str | torch.device | None = None,
    **options: Any,
) -> SetRows:
    """Vectors of every image of a set, N × dim of length 1, as from ``Embedder.embed``; stored ones are read.

    Args:
        embedder: the network.
        images: the set.
        frozen: the stage up to which training froze the network (``model.freeze``), if known.
        scales: average over these scales; None for a single scale.
        device: moves the embedder there first; None uses its current device.
        options: how images are read and rows stored, see ``_Pixels``.
    """
    if device is not None:
        embedder.to(device)
    if scales is not None:
        pixels = _Pixels(embedder, images, **options)
        provenance = _provenance(embedder, pixels.transform) | {
            "upto": "vectors",
            "weights": weights_digest(embedder),
            "head": [embedder.config.pooling, embedder.config.layer_norm, embedder.config.l2_before_head],
            "scales": list(scales),
        }
        if embedder.config.stages:
            provenance["stages"] = embedder.config.stages
        if embedder.head.linear is None or embedder.config.added_head:
            provenance["mean"] = "descriptors"
        pixels.at_once = max(1, int(pixels.at_once / max(1.0, *(s * s for s in scales))))
        network = _Scales(embedder, scales)
        return pixels.stored(VectorStore(provenance), lambda places: pixels.rows(network, places), PART // 4)
    pooled = part_rows(embedder, images, frozen=frozen, **options)
    vectors, (_, rest) = allocated((len(images), embedder.dim)), embedder.split("pooling")
    rest.eval()
    with torch.inference_mode():
        for start in range(0, len(images), _HEAD_ROWS):  # a million rows need not be in memory
            rows = np.ascontiguousarray(pooled.rows[start : start + _HEAD_ROWS])
            vectors[start : start + _HEAD_ROWS] = rest(torch.from_numpy(rows).to(embedder.device)).float().cpu().numpy()
    rest.train(embedder.training)
    return replace(pooled, rows=vectors)


def file_set(paths: Sequence[Path]) -> ImageSet:
    """Files of any folders, each once, as a set without classes; their names are absolute paths."""
    names = list(dict.fromkeys(str(path.absolute()) for path in paths))
    return ImageSet("images", names, np.zeros(len(names), np.int64), ["images"], root=Path())


def embed_files(embedder: Embedder, paths: Sequence[Path], **options: Any) -> SetRows:
    """``embed_set`` of single files from any folders; a file may be given twice."""
    images = file_set(paths)
    vectors = embed_set(embedder, images, **options)
    places = {name: place for place, name in enumerate(images.names)}
    order = np.array([places[str(path.absolute())] for path in paths], np.int64)
    return SetRows(vectors.rows[order], vectors.keys[order], vectors.skipped)


def part_rows(
    embedder: Embedder, images: ImageSet, upto: str = "pooling", *, frozen: str | None = None, **options: Any
) -> SetRows:
    """N × … float32 outputs of stage ``upto``; stored rows are read.

    Args:
        embedder: the network, on its device.
        images: the images to embed.
        upto: the name of the stage, as in ``Embedder.split``.
        frozen: the stage up to which training froze the network, if any. Rows stored there are used as a start, and for
            ``upto="pooling"`` rows of the backbone's own pooling, which the untrained network is evaluated with, are
            stored in the same pass.
        options: how images are read and rows stored, see ``_Pixels``.

    Raises:
        ConfigError: images of different sizes, whose rows do not fit in one array.
    """
    whole = embedder.preprocessing.resize is None
    if whole and upto != "pooling":
        raise ConfigError("a frozen part needs images of one size: set model.image_size, or model.freeze=none.")
    pixels = _Pixels(embedder, images, **options)
    if not whole and embedder.device.type != "cpu":
        pixels.at_once = options.get("batch_size") or 2 * embedder.images_at_once  # without a graph
    transform, keep = pixels.transform, pixels.keep
    provenance, network = _provenance(embedder, transform, upto), _fitted(embedder, embedder.split(upto)[0])
    earlier, others = None, list[tuple[VectorStore, slice]]()  # rows that the same pass gives besides
    if frozen not in (None, "none", "auto", upto) and not whole and embedder.can_split(str(frozen)):
        backbone = provenance["weights"] if frozen == "backbone" else None
        earlier = VectorStore(_provenance(embedder, transform, frozen, backbone))
    if keep and upto == "pooling" and frozen in ("backbone", "pooling") and embedder.pooling is not None:
        both = _BothPoolings(embedder)
        network, plain = _fitted(embedder, both), _without_stages(embedder, transform)
        digest = {"pooling": "native", "pooling_weights": weights_digest(both.native)}
        others.append((VectorStore(plain | digest), slice(embedder.pooled_dim, None)))
    if keep and upto == "pooling" and embedder.config.stages:
        base = feature_size(embedder.backbone, embedder.config.pooling)
        others.append((VectorStore(_without_stages(embedder, transform)), slice(base)))

    def compute(places: Places) -> Rows:
        stored = np.zeros(len(places), bool) if earlier is None else earlier.contains(pixels.keys[places])
        parts = []
        if earlier is not None and stored.any():
            stage, rest = embedder.split(str(frozen))[0], embedder.between(str(frozen), upto)
            cached = places[stored]
            below = earlier.rows(
                pixels.keys[cached], lambda lost: pixels.rows(_fitted(embedder, stage), cached[lost]), keep=False
            )
            batches = ((rows, np.arange(0)) for rows in torch.from_numpy(below).split(BATCH))
            dtype = autocast_dtype(embedder.precision)
            parts += [rows.cpu().numpy() for rows, _ in run_network(rest, batches, embedder.device, dtype)]
        if not stored.all():
            rows = pixels.rows(network, missing := places[~stored])
            read = np.isfinite(rows[:, 0]) if others else np.zeros(0, bool)
            for store, columns in others if read.any() else []:
                store.write(pixels.keys[missing[read]], rows[read, columns])
            parts.append(rows[:, : embedder.pooled_dim] if others else rows)
        return np.concatenate(parts)[np.argsort(np.argsort(~stored, kind="stable"))]  # stored ones came first

    return pixels.stored(VectorStore(provenance), compute, PART // 4 if whole else PART)


class _Pixels:
    """The images of a set on their way through a network, and those that cannot be read.

    Args:
        embedder: the network, on its device.
        images: the set.
        keys: keys of the images, if already known.
        transform: how pixels are computed; by default the embedder's preprocessing.
        batch_size: images per batch at the network's own size; fewer for larger images. By default 64, on a GPU more.
        workers: threads that decode.
        on_bad_image: ``"error"`` raises the first unreadable image's ``ImageError``; ``"skip"`` sets its row to NaN and
            lists it.
        keep: False reads the store but does not write to it, for a few images that are needed once.
    """

    def __init__(
        self,
        embedder: Embedder,
        images: ImageSet,
        *,
        keys: Keys | None = None,
        transform: Transform | None = None,
        batch_size: int | None = None,
        workers: int | None = None,
        on_bad_image: str = "error",
        keep: bool = True,
    ) -> None:
        self.embedder, self.images, self.keep = embedder, images, keep
        self.transform = test_transform(embedder.preprocessing) if transform is None else transform
        self.keys = content_keys(images) if keys is None else keys
        self.at_once = min(batch_size or BATCH, embedder.images_at_once)
        self.workers, self.on_bad_image = workers, on_bad_image
        self.skipped: dict[bytes, BadImage] = {}

    def rows(self, network: nn.Module, places: Places) -> Rows:
        """The outputs of ``network`` for the images at ``places``; NaN for those that cannot be read."""
        images, device = self.images.subset(places), self.embedder.device
        network.train(self.embedder.training)
        rows: Rows | None = None
        dtype, pin = autocast_dtype(self.embedder.precision), device.type == "cuda"
        with Pipeline(
            images, self.transform, workers=self.workers, on_bad_image=self.on_bad_image, pin=pin
        ) as pipeline:
            batches = ((batch.images, batch.indices) for batch in pipeline.sequential(self.at_once))
            for outputs, read in fetch_late(run_network(network, batches, device, dtype, images.names)):
                if rows is None:
                    rows = np.full((len(images), *outputs.shape[1:]), np.nan, np.float32)
                rows[read] = outputs.numpy()
            for bad in pipeline.bad_images:
                self.skipped[self.keys[places[bad.index]].tobytes()] = bad
        if rows is None:  # a blank image gives the shape of a row
            side = self.embedder.preprocessing.size
            blank = torch.zeros(1, 3, side, side, dtype=torch.uint8)
            ((row, _),) = run_network(network, [(blank, np.zeros(1, np.int64))], device)
            rows = np.full((len(images), *row.shape[1:]), np.nan, np.float32)
        return rows

    def stored(self, store: VectorStore, compute: Callable[[Places], Rows], part: int) -> SetRows:
        """All rows of the set; an image is skipped with all others of the same content, of which only one is tried."""
        name = f"{self.images.name}/{self.images.split}"
        rows = store.rows(self.keys, compute, part=part, keep=self.keep, description=name)
        skipped = []
        for place, name in enumerate(self.images.names if self.skipped else ()):
            if (bad := self.skipped.get(self.keys[place].tobytes())) is not None:
                skipped.append(replace(bad, index=place, name=name))
        return SetRows(rows, self.keys, skipped)


def _fitted(embedder: Embedder, network: nn.Module) -> nn.Module:
    """``network``, which is new, with an input of any size that the embedder takes."""
    network.register_forward_pre_hook(lambda module, inputs: (embedder.fitted(inputs[0]),))
    return network


def _without_stages(embedder: Embedder, transform: Transform) -> dict[str, Any]:
    """The provenance of the pooled features of the last layer alone."""
    plain = copy.copy(embedder)
    plain.config, plain._stage_features = replace(embedder.config, stages=0), ()
    return _provenance(plain, transform, "pooling")


class _BothPoolings(nn.Module):
    """Pixels to pooled features by the embedder's pooling, then by the backbone's own, side by side."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.backbone, self.pooling = embedder.split("backbone")[0], embedder.between("backbone", "pooling")
        self.native = NativePool(embedder.backbone)

    def forward(self, pixels: Tensor) -> Tensor:
        maps = self.backbone(pixels)
        return torch.cat([self.pooling(maps), self.native(maps[0] if isinstance(maps, tuple) else maps)], dim=1)


class _Scales(nn.Module):
    """Pixels to vectors, averaged over scales."""

    def __init__(self, embedder: Embedder, scales: Sequence[float]) -> None:
        super().__init__()
        self._embedder, self._scales = (embedder,), scales

    def forward(self, pixels: Tensor) -> Tensor:
        return self._embedder[0].embed(pixels, batch_size=len(pixels), scales=self._scales, progress=False)


def _provenance(
    embedder: Embedder, transform: Transform, upto: str | None = None, weights: str | None = None
) -> dict[str, Any]:
    """Everything a row of stage ``upto`` depends on besides the image. The device is left out: rows agree up to rounding.

    ``weights`` is their digest, if it is known.
    """
    provenance: dict[str, Any] = {
        "architecture": embedder.config.architecture,
        "preprocessing": embedder.preprocessing.as_dict(),
        "transform": transform.key,
        "pillow": PIL.__version__,  # decoders change in small ways
    }
    if embedder.precision != "fp32":
        provenance["precision"] = embedder.precision
    if upto is None:
        return provenance
    part = "backbone" if upto == "pooling" else upto
    provenance |= {"upto": upto, "weights": weights or weights_digest(embedder.split(part)[0])}
    if upto == "pooling":
        pooling = NativePool(embedder.backbone) if embedder.pooling is None else embedder.pooling
        provenance["pooling"] = "native" if embedder.pooling is None else embedder.config.pooling
        provenance["pooling_weights"] = weights_digest(pooling)
        if embedder.config.stages:
            provenance["stages"] = STAGES
    return provenance


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
        with torch.no_grad(), tf32(device), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            for taken, places in _copied_ahead(batches, device):
                name_of = None if names is None else [names[place] for place in places.tolist()].__getitem__
                with refusing_narrow(taken, name_of):
                    outputs = network(taken).float()
                yield outputs, places
    finally:
        network.train(was_training)


def _copied_ahead(batches: Iterable[tuple[Any, Places]], device: torch.device) -> Iterator[tuple[Any, Places]]:
    """Batches on ``device``; the copy of one to a GPU overlaps the work on the batch before it."""
    if device.type != "cuda":
        yield from ((take_rows(inputs, slice(None), device), places) for inputs, places in batches)
        return
    work, copies = torch.cuda.current_stream(device), torch.cuda.Stream(device)

    def started() -> Iterator[tuple[Any, Places, torch.cuda.Event]]:
        for inputs, places in batches:
            copies.wait_stream(work)  # its memory was perhaps that of a batch on which the work has not ended
            with torch.cuda.stream(copies):
                taken, copied = take_rows(inputs, slice(None), device), copies.record_event()
            yield taken, places, copied

    for taken, places, copied in _one_ahead(started()):
        work.wait_event(copied)
        yield taken, places


def _one_ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """Items, each after the next one was made."""
    for item, _ in pairwise(chain(items, [None])):
        yield item  # type: ignore[misc]


def fetch_late(results: Iterable[tuple[Tensor, Places]]) -> Iterator[tuple[Tensor, Places]]:
    """Results on the CPU, each after the next batch was started: a GPU never waits for them."""

    def started() -> Iterator[tuple[Tensor, Places, Callable[[], object]]]:
        for outputs, places in results:
            if outputs.device.type == "cuda":
                host, copied = outputs.to("cpu", non_blocking=True), torch.Event(device=outputs.device)
                copied.record()
                yield host, places, copied.synchronize
            else:
                yield outputs, places, lambda: None

    for outputs, places, wait in _one_ahead(started()):
        wait()
        yield outputs, places


def head_inputs(embedder: Embedder, images: ImageSet, **options: Any) -> Tensor:
    """The inputs of the last layer for every image, N × feature_dim; NaN for images that were skipped.

    Whitening is learned from these. ``options``: as for ``part_rows``.
    """
    rows = part_rows(embedder, images, **options).rows
    with torch.no_grad():
        inputs = embedder.head.inputs(torch.from_numpy(np.asarray(rows)).to(embedder.device))
    return inputs.float().cpu()


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
    missing = np.flatnonzero(~VectorStore(_provenance(embedder, transform, upto)).contains(content_keys(images)))
    if not len(missing):
        return 0.0
    device, at_once = embedder.device, embedder.images_at_once
    count = _PROBE if device.type == "cpu" else 2 * at_once  # on few images a GPU mostly waits for launches
    some = images.subset(missing[:: max(1, len(missing) // count)][:count])
    with Pipeline(some, transform, workers=workers, on_bad_image=on_bad_image) as pipeline:

        def work() -> None:
            batches = ((batch.images, batch.indices) for batch in pipeline.sequential(at_once))
            for rows, _ in run_network(frozen, batches, device, autocast_dtype(embedder.precision)):
                rows.cpu()

        return seconds_of(work) * len(missing) / len(some)


def first_feature(embedder: Embedder, frozen: nn.Module, images: ImageSet, *, on_bad_image: str = "error") -> Tensor:
    """The frozen part's output for the first readable image, 1 × …, on the CPU: enough for a plan.

    Raises:
        DataError: no image can be read.
    """
    transform = test_transform(embedder.preprocessing)
    with Pipeline(images, transform, workers=0, on_bad_image=on_bad_image) as pipeline:
        batches = ((batch.images, batch.indices) for batch in pipeline.sequential(1))
        for row, _ in run_network(frozen, batches, embedder.device, names=images.names):
            return row.cpu()
    raise DataError(f"{images.name}: none of the {len(images):,} images can be read: check the files.")


def skipped_files(images: ImageSet, skipped: Sequence[BadImage]) -> dict[str, int]:
    """Unused files by reason: left out by the source, or unreadable."""
    return dict(Counter(images.facts.get("left_out", {})) + Counter(bad.kind for bad in skipped))


def describe_unreadable(images: ImageSet, unread: Mapping[str, BadImage]) -> str | None:
    """How many images of a set are used without the ``unread`` ones, by name, and which classes are lost; None if all are."""
    bad = [unread[name] for name in images.names if name in unread]
    if not bad:
        return None
    readable = {int(label) for name, label in zip(images.names, images.labels, strict=True) if name not in unread}
    lost = [images.class_names[label] for label in np.unique(images.labels).tolist() if label not in readable]
    text = summary(len(images) - len(bad), skipped_files(images, bad))
    return f"{text}; no image of {some_names(lost)} can be read" if lost else text
