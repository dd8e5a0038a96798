"""A run's vectors of its test images, before and after training, and what they are worth.

``recollect train`` keeps no vectors, so the report makes them: at most ``limit`` images, whole classes where that is
possible, the same images for every run on the same data. They are kept in ``RUN/report/vectors.npz``; a second report
embeds nothing, and one made where the images are not at hand still has everything but its pictures.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError, RecollectError
from recollect.common.files import atomic_write, sha256
from recollect.data import ImageSet, load
from recollect.evaluation import Evaluation, evaluate
from recollect.report.runs import Run, published_sets
from recollect.training.config import Config
from recollect.training.validation import KS

if TYPE_CHECKING:
    from recollect.models import Embedder

LIMIT = 4000
"""Images that a report embeds by default: a minute or two on two cores with a small network."""


@dataclass(frozen=True)
class Shown:
    """The images a report is about.

    Attributes:
        data, split: which set. names, labels, class_names: of the images shown. whole: images in the whole split.
        images: to read pictures from; None when they are not at hand.
    """

    data: str
    split: str
    names: list[str]
    labels: NDArray[np.int64]
    class_names: list[str]
    whole: int
    images: ImageSet | None = None

    @property
    def complete(self) -> bool:
        """Whether the whole split is shown, so that its numbers can stand beside published ones."""
        return len(self.names) == self.whole

    def same_as(self, other: Shown) -> bool:
        """Whether both are of the same images in the same order."""
        return self.names == other.names and bool(np.array_equal(self.labels, other.labels))


@dataclass(frozen=True)
class Contender:
    """One way to embed those images, and its results.

    Attributes:
        name: short. what: in a few words, which weights.
    """

    name: str
    what: str
    vectors: NDArray[np.float32]
    evaluation: Evaluation


@dataclass(frozen=True)
class Measured:
    """What a run's weights make of its test images."""

    shown: Shown
    init: Contender | None
    trained: Contender | None
    init_key: str
    remarks: list[str] = field(default_factory=list)


def measure(run: Run, *, limit: int | None = LIMIT, split: str | None = None, device: str | None = None) -> Measured:
    """Embed and evaluate a run's test images with what it started from and what came out.

    Args:
        run: the run.
        limit: how many images at most; None for all.
        split: which part of its data; the run's ``data.test_split`` by default.
        device: where to embed.

    Raises:
        RecollectError: neither images nor vectors kept from an earlier report are there.
    """
    if run.config is None:
        raise DataError("its settings cannot be read, so it is not known which images it is about.")
    config, path = run.config, run.folder.path / "report" / "vectors.npz"
    chosen = split or config.data.test_split
    remarks: list[str] = []
    try:
        whole = load(config.data.name, config.data.root, chosen, **config.data.options)
    except RecollectError as error:
        kept = _read(path, None)
        if kept is None or kept.shown.split != chosen:
            raise
        remarks.append(f"The images are not at hand, so the vectors of an earlier report were used. ({error})")
        return _evaluated(run, kept, remarks)
    images = whole.subset(choose(whole, limit))
    keys = {"images": f"{images.fingerprint} {len(whole)}", "init": _init_key(run), "trained": _trained_key(run)}
    kept = _read(path, images) or _Kept(Shown(*_described(images, chosen, len(whole))), {}, {})
    changed = False
    for name in ("init", "trained"):
        if kept.keys.get("images") == keys["images"] and kept.keys.get(name) == keys[name] and name in kept.vectors:
            continue
        kept.vectors.pop(name, None)
        try:
            embedder = _initial(config) if name == "init" else _trained(run)
        except RecollectError as error:
            remarks.append(f"There are no {'initial' if name == 'init' else 'trained'} weights to embed with: {error}")
            continue
        kept.vectors[name], changed = _embed(embedder, images, device), True
    kept = _Kept(Shown(*_described(images, chosen, len(whole)), images), kept.vectors, keys)
    if changed:
        _write(path, kept, remarks)
    return _evaluated(run, kept, remarks)


def choose(images: ImageSet, limit: int | None) -> NDArray[np.int64]:
    """Positions of at most ``limit`` images: random classes, whole unless one would fill a tenth of the limit.

    A query is judged by the images of its class, so a class is shown with all of them or, if it is very large, with
    enough. The choice depends on the set alone.
    """
    if limit is None or len(images) <= limit:
        return np.arange(len(images))
    random = np.random.default_rng(0)
    most = max(2, limit // 10)
    chosen: list[NDArray[np.int64]] = []
    room = limit
    for label in random.permutation(np.unique(images.labels)):
        members = random.permutation(np.flatnonzero(images.labels == label))[:most]
        if len(members) <= room:
            chosen.append(members)
            room -= len(members)
        if room < 2:
            break
    return np.sort(np.concatenate(chosen)) if chosen else np.arange(limit)


@dataclass(frozen=True)
class _Kept:
    """What ``vectors.npz`` holds."""

    shown: Shown
    vectors: dict[str, NDArray[np.float32]]
    keys: dict[str, str]


def _described(images: ImageSet, split: str, whole: int) -> tuple[str, str, list[str], Any, list[str], int]:
    return images.name, split, list(images.names), images.labels, list(images.class_names), whole


def _evaluated(run: Run, kept: _Kept, remarks: list[str]) -> Measured:
    """Results of what was embedded; images that one of the embedders could not read are left out for all."""
    shown, vectors = kept.shown, dict(kept.vectors)
    good = np.ones(len(shown.names), bool)
    for rows in vectors.values():
        good &= np.isfinite(rows).all(axis=1)
    if not good.all():
        remarks.append(f"{int((~good).sum()):,} images could not be read and are left out.")
        places = np.flatnonzero(good)
        labels, names = shown.labels[places], [shown.names[place] for place in places]
        images = None if shown.images is None else shown.images.subset(places)
        classes = shown.class_names
        if images is not None:
            labels, classes = images.labels, list(images.class_names)
        shown = dataclasses.replace(shown, names=names, labels=labels, class_names=classes, images=images)
        vectors = {name: rows[places] for name, rows in vectors.items()}
    asked = {int(key[2:]) for row in published_sets(run.setting("published")).values() for key in row if _is_r_at(key)}
    ks = sorted({*KS, *asked})

    def contender(name: str, what: str) -> Contender | None:
        if name not in vectors:
            return None
        metrics = ("r@k", "map@r", "first_rank", "map")
        result = evaluate(vectors[name], shown.labels, ks=ks, metrics=metrics, progress=True)
        return Contender(run.name if name == "trained" else "init", what, vectors[name], result)

    try:
        init, trained = contender("init", _initial_words(run)), contender("trained", _trained_words(run))
    except RecollectError as error:
        raise DataError(f"{shown.data} ({shown.split}) cannot be evaluated: {error}") from error
    return Measured(shown, init, trained, _init_key(run), remarks)


def _is_r_at(key: str) -> bool:
    return key.startswith("r@") and key[2:].isdigit() and int(key[2:]) > 0


# Weights ----------------------------------------------------------------------------------------------------------------


def _from_scratch(config: Config) -> bool:
    from recollect.training.parts import is_pretrained

    return not is_pretrained(config.model)


def _initial(config: Config) -> Embedder:
    """What training started from. Pre-trained networks are taken as they come, without the new, random last layer."""
    from recollect.models import Embedder
    from recollect.training.parts import make_embedder

    if _from_scratch(config):
        return make_embedder(config.model, config.run.seed)
    model = config.model
    return Embedder.create(
        model.init,
        weights=model.weights,
        dim=None,
        size=model.image_size,
        resize=model.resize,
        normalisation=model.normalisation,
    )


def _trained(run: Run) -> Embedder:
    """The run's model; of a run without one, the weights of its last checkpoint."""
    from recollect.models import Embedder
    from recollect.training.checkpoint import read_checkpoint
    from recollect.training.parts import make_embedder

    if (run.folder.model / "model.safetensors").is_file():
        return Embedder.load(run.folder.model)
    if not run.folder.last.is_file() or run.config is None:
        raise DataError("the run has neither a model nor a checkpoint.")
    # Without its pre-trained weights, which the checkpoint replaces anyway and which may not be here.
    embedder = make_embedder(dataclasses.replace(run.config.model, weights="none"), run.config.run.seed)
    try:
        embedder.load_state_dict(read_checkpoint(run.folder.last)["model"])
    except (RuntimeError, KeyError) as error:
        raise DataError(f"{run.folder.last}: not a checkpoint of this network ({error}).") from error
    return embedder


def _initial_words(run: Run) -> str:
    if run.config is not None and _from_scratch(run.config):
        return f"{run.config.model.init}, random weights"
    return f"{run.setting('model.init')} as it comes, without the new last layer"


def _trained_words(run: Run) -> str:
    if not (run.folder.model / "model.safetensors").is_file():
        return "last checkpoint of a run that is not finished"
    step = run.manifest.get("outcome", {}).get("chosen_step") if run.finished else None
    return "trained" if step is None else f"weights of step {step:,}"


def _init_key(run: Run) -> str:
    config = run.config
    if config is None:
        return ""
    seed = config.run.seed if _from_scratch(config) else None
    facts = [dataclasses.asdict(config.model), seed, run.manifest.get("weights")]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _trained_key(run: Run) -> str:
    for path in (run.folder.model / "model.safetensors", run.folder.last):
        if path.is_file():
            return sha256(path)
    return ""


# Vectors ----------------------------------------------------------------------------------------------------------------


class _Pictures:
    """The images of a set, one after the other: paths where possible, so that threads decode them."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[Any]:
        images = self._images
        as_files = images.arrays is None and images.boxes is None
        return (images.path(index) if as_files else images.read(index) for index in range(len(images)))


def _embed(embedder: Embedder, images: ImageSet, device: str | None) -> NDArray[np.float32]:
    rows = embedder.embed(_Pictures(images), device=device, on_bad_image=lambda index, error: None)
    vectors: NDArray[np.float32] = rows.numpy()
    return vectors


def _write(path: Path, kept: _Kept, remarks: list[str]) -> None:
    shown = kept.shown
    facts = {"data": shown.data, "split": shown.split, "whole": shown.whole, "keys": kept.keys}
    try:
        with atomic_write(path) as file:
            np.savez(
                file,
                facts=np.array(json.dumps(facts)),
                names=np.array(shown.names),
                labels=shown.labels,
                class_names=np.array(shown.class_names),
                **{f"vectors_{name}": rows for name, rows in kept.vectors.items()},  # type: ignore[arg-type]
            )
    except OSError as error:  # a run on a disk that cannot be written is still worth a report
        remarks.append(f"The vectors could not be kept in {path}: {error}")


def _read(path: Path, images: ImageSet | None) -> _Kept | None:
    """What an earlier report kept; None when there is nothing, or nothing whole."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            facts = json.loads(str(archive["facts"]))
            labels = archive["labels"].astype(np.int64)
            shown = Shown(
                facts["data"],
                facts["split"],
                [str(name) for name in archive["names"]],
                labels,
                [str(name) for name in archive["class_names"]],
                int(facts["whole"]),
                images,
            )
            vectors = {name[8:]: archive[name] for name in archive.files if name.startswith("vectors_")}
            keys = {str(name): str(value) for name, value in facts["keys"].items()}
    except (OSError, KeyError, ValueError, TypeError, AttributeError, EOFError, BadZipFile):
        return None
    sound = all(rows.ndim == 2 and len(rows) == len(shown.names) == len(labels) for rows in vectors.values())
    sound = sound and bool(len(labels)) and 0 <= labels.min() <= labels.max() < len(shown.class_names)
    return _Kept(shown, vectors, keys) if sound else None
