"""The vectors to evaluate: of a model on a test set, or from a file.

``prepare_target`` opens and checks everything, ``target_vectors`` embeds, and ``evaluating.py`` evaluates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError
from recollect.common.files import atomic_write
from recollect.common.images import BadImage
from recollect.common.reading import parse_json, read_npz
from recollect.common.text import number_of, some_names
from recollect.config.schema import Config
from recollect.data.transforms import LongerSide, Transform
from recollect.inference.content_keys import set_digest
from recollect.inference.embedding_sets import embed_set, files_left_out
from recollect.inference.features import BATCH
from recollect.inference.opening import Opened, check_model, open_model
from recollect.inference.run_files import RunFiles
from recollect.inference.test_sets import TestSet, choose_test, default_ks, load_test, name_of_test, published_row
from recollect.inference.trained_on import read_trained_on
from recollect.models import INSTANCE_SEARCH_SCALES
from recollect.models.hub import is_hub_address

_LABELS = ("labels", "gallery", "gallery_labels", "coarse_labels", "gallery_coarse_labels")


@dataclass
class Target:
    """Vectors to evaluate, with their description.

    Attributes:
        name: for titles. place: default folder of the results.
        embeddings, labels, gallery, gallery_labels: as ``evaluate`` takes them; for instance search ``gallery`` is the
            database and ``gnd`` the ground truth.
        coarse_labels, gallery_coarse_labels: of a coarser level, for hierarchical AP and NDCG; None without.
        distractors: additions to the gallery, an array or a file, wrong for every query.
        ks: the default k.
        published: metric → percent, the recipe's row in the paper; ``published_without``: the same without distractors.
        source: what was embedded, for ``metrics.json``. identity: the values that ``--compare`` compares.
    """

    name: str
    place: Path
    embeddings: Any
    labels: Any = None
    gallery: Any = None
    gallery_labels: Any = None
    coarse_labels: Any = None
    gallery_coarse_labels: Any = None
    gnd: list[dict[str, Any]] | None = None
    distractors: Any = None
    ks: tuple[int, ...] = (1, 10, 100, 1000)
    published: dict[str, float] = field(default_factory=dict)
    published_without: dict[str, float] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)

    def save_vectors(self, path: Path) -> None:
        """Write the vectors as ``.npz``, as ``target_from_file`` reads them."""
        arrays = {
            name: np.asarray(getattr(self, name))
            for name in ("embeddings", *_LABELS)
            if getattr(self, name) is not None
        }
        if self.gnd is not None:
            arrays["gnd"] = np.array(json.dumps(self.gnd))
        with atomic_write(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]


def target_from_file(path: Path) -> Target:
    """Vectors from an ``.npz``: ``embeddings``, ``labels``, and possibly ``gallery``, ``gallery_labels``, ``gnd``;
    with ``coarse_labels`` (and ``gallery_coarse_labels``) hierarchical AP and NDCG are measured too.

    Raises:
        DataError: the file has another format.
    """
    arrays = read_npz(path)
    if "embeddings" not in arrays:
        raise DataError(f"{path}: has no array 'embeddings'; its arrays are {', '.join(arrays) or 'none'}.")
    gnd = None
    if "gnd" in arrays:
        gnd = parse_json(str(arrays["gnd"]), f"{path}: its array 'gnd'", list)
    elif "labels" not in arrays:
        raise DataError(
            f"{path}: has no array 'labels', which is needed with 'embeddings'; its arrays are {', '.join(arrays)}."
        )
    searched = arrays.get("gallery", arrays["embeddings"])
    names = arrays.get("names")
    made = parse_json(str(arrays["source"]), f"{path}: its note about the model", dict) if "source" in arrays else {}
    return Target(
        name=path.stem,
        place=path.with_name(f"{path.stem}-eval"),
        embeddings=arrays["embeddings"],
        labels=_labels(arrays, "labels"),
        gallery=arrays.get("gallery"),
        gallery_labels=_labels(arrays, "gallery_labels"),
        coarse_labels=_labels(arrays, "coarse_labels"),
        gallery_coarse_labels=_labels(arrays, "gallery_coarse_labels"),
        gnd=gnd,
        ks=default_ks("", {}, len(searched) if searched.ndim else 0),
        source={"vectors": str(path), **({"model": made["model"]} if made.get("model") else {})},
        identity={} if names is None else {"names": _digest_of(names)},
    )


def _trained_classes(target: Target) -> list[str]:
    """A remark if vectors of a file are of classes that their model was trained on, by name; it is recorded too."""
    model = target.source.get("model")
    known = read_trained_on(Path(model)) if isinstance(model, str) and Path(model).is_dir() else None
    if known is None or target.labels is None or target.labels.dtype.kind != "U":
        return []
    found = sorted(set(target.labels.tolist()) & known.classes)
    if not found:
        return []
    target.source |= {"trained_classes": len(found), "trained_classes_excluded": False}
    count = number_of(len(found), "class has the name of one/classes have the names of ones")
    return [
        f"WARNING: {count} that {model} was trained on ({some_names(found)}). The result does not show how well the model "
        f"works on unseen classes: recollect eval {model} does."
    ]


def _labels(arrays: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any] | None:
    """Labels of a file; an image without a class (label "") gets a class of its own."""
    labels = arrays.get(name)
    if labels is None or labels.dtype.kind != "U" or not (labels == "").any():
        return labels
    return np.array([label or f"\0{name} {number}" for number, label in enumerate(labels.tolist())])


@dataclass(frozen=True)
class Prepared:
    """The input of an evaluation, before anything is embedded.

    Attributes:
        place: default folder of the results. notes: remarks needed to understand the result.
        distractors: a ``.npy`` of vectors. recipe: see ``embed_test``.
        target: vectors from a file; else the model and the test set they come from.
    """

    place: Path
    notes: list[str]
    distractors: Path | None = None
    recipe: Config | None = None
    target: Target | None = None
    opened: Opened | None = None
    test: TestSet | None = None


def prepare_target(
    model: str,
    *,
    recipe: Config | None = None,
    data: str | None = None,
    root: Path | None = None,
    split: str | None = None,
    weights: str | None = None,
    download: bool = False,
    device: str | None = None,
    distractors: Path | None = None,
    trained_classes: str = "auto",
    skip_bad: bool = False,
) -> Prepared:
    """Open the input of an evaluation: an ``.npz`` of vectors, or a model (``open_model``) and a test set (``load_test``)."""
    if model.endswith(".npz"):
        target = target_from_file(Path(model))
        target.distractors = distractors
        return Prepared(target.place, _trained_classes(target), target=target)
    check_model(model)
    run = RunFiles(Path(model))
    choice = choose_test(run if run.is_run else None, data=data, root=root, split=split, recipe=recipe)
    opened = open_model(model, weights=weights, download=download, device=device, recipe=recipe)
    test = load_test(
        choice,
        opened.folder,
        distractors=distractors,
        trained_classes=trained_classes,
        skip_bad=skip_bad,
    )
    notes = [] if opened.remark is None else [opened.remark]
    notes += [] if test.screened is None else test.screened.remarks()
    vectors = distractors if test.distractors is None else None
    return Prepared(opened.results / test.name, notes, vectors, recipe, opened=opened, test=test)


def target_vectors(prepared: Prepared, **options: Any) -> Target:
    """The vectors of a prepared input; options as for ``embed_test``."""
    if prepared.target is not None:
        return prepared.target
    if prepared.opened is None or prepared.test is None:
        raise TypeError("a model comes with a test set")
    return embed_test(
        prepared.opened, prepared.test, recipe=prepared.recipe, distractors=prepared.distractors, **options
    )


def embed_test(
    opened: Opened,
    test: TestSet,
    *,
    recipe: Config | None = None,
    distractors: Path | None = None,
    multiscale: bool | None = None,
    batch_size: int = BATCH,
    skip_bad: bool = False,
) -> Target:
    """The vectors of a test set.

    Args:
        opened: the model.
        test: the images.
        recipe: provides scales and published numbers; by default the run's own settings do.
        distractors: a ``.npy`` of vectors for the gallery.
        multiscale: average each image over three scales; by default instance search does, as the recipe says.
        batch_size: images per batch.
        skip_bad: skip and list images that cannot be read. Not for a benchmark, whose ground truth refers to them by
            number.
    """
    choice, settings = test.choice, recipe or opened.config
    published = None if settings is None else settings.published
    with_them = distractors is not None or test.distractors is not None
    row = published_row(published, name_of_test(choice.data, choice.split, with_them))
    target = Target(
        name=opened.name if opened.folder is not None else opened.weights,
        place=opened.results / test.name,
        embeddings=None,
        distractors=distractors if test.distractors is None else None,
        published=row,
        published_without=published_row(published, name_of_test(choice.data, choice.split)),
    )
    if test.benchmark is not None:
        own = () if settings is None else settings.model.scales
        scales = tuple(own or INSTANCE_SEARCH_SCALES) if multiscale or (multiscale is None and own) else None
        skipped = _embed_benchmark(target, opened, test, scales, batch_size)
    else:
        scales = INSTANCE_SEARCH_SCALES if multiscale else None
        skipped = _embed_labelled(target, opened, test, scales, batch_size, skip_bad or choice.skip_bad)
        target.ks = default_ks(choice.data, row, len(target.labels))
    preprocessing, is_hub = opened.embedder.preprocessing, is_hub_address(opened.source.get("model"))
    facts = {
        "model": opened.source["model"]
        if opened.folder is None and is_hub
        else str(opened.folder or f"init {opened.name}"),
        "weights": opened.weights,
        "data": choice.data,
        "root": None if choice.root is None else str(choice.root),
        "split": choice.split,
        "fingerprint": test.images.fingerprint,
        "scales": [1.0] if scales is None else list(scales),
        "image_size": preprocessing.max_side if preprocessing.resize is None else preprocessing.size,
        "distractors": 0 if not with_them else str(distractors or "revisitop1m"),
        "skipped": [{"name": bad.name, "reason": bad.reason} for bad in skipped],
        "left_out": files_left_out(test.images, skipped),
    }
    if test.screened is not None:
        facts |= test.screened.as_dict()
    target.source = facts
    target.identity |= {
        "init": opened.embedder.config.init,
        "image size": facts["image_size"],
        "dimensions": opened.embedder.dim,
        "scales": facts["scales"],
        "interpolation": preprocessing.interpolation,
    }
    return target


def _embed_labelled(
    target: Target, opened: Opened, test: TestSet, scales: Sequence[float] | None, batch_size: int, skip_bad: bool
) -> list[BadImage]:
    if test.screened is None:
        raise TypeError("labelled images were screened")
    images, keys = test.screened.images, test.screened.keys
    found = embed_set(
        opened.embedder,
        images,
        frozen=opened.frozen,
        scales=scales,
        keys=keys,
        batch_size=batch_size,
        on_bad_image="skip" if skip_bad else "error",
    )
    places = found.read
    if not len(places):
        raise DataError(f"none of the {len(images):,} images can be read: check the files.")
    whole = len(places) == len(images)
    target.embeddings = found.vectors if whole else found.vectors[places]
    target.labels = images.labels[places]
    target.coarse_labels = None if images.coarse_labels is None else images.coarse_labels[places]
    target.identity["images"] = set_digest(images if whole else images.subset(places), keys[places])
    return found.skipped


def _embed_benchmark(
    target: Target, opened: Opened, test: TestSet, scales: Sequence[float] | None, batch_size: int
) -> list[BadImage]:
    benchmark, keys, model = test.benchmark, test.benchmark_keys, opened.embedder
    if benchmark is None or keys is None:
        raise TypeError("a benchmark has keys")
    # A query is a crop and keeps the scale that its whole image would have.
    whole = model.preprocessing.resize is None
    transform: Transform | None = LongerSide(model.preprocessing.max_side or 1024) if whole else None

    def embedded(number: int) -> NDArray[np.float32]:
        images = (benchmark.database, benchmark.queries)[number]
        return embed_set(
            model, images, scales=scales, transform=transform, keys=keys[number], batch_size=batch_size
        ).vectors

    target.gnd = list(benchmark.ground_truth)
    target.gallery = embedded(0)
    target.embeddings = embedded(1) if benchmark.query_rows is None else target.gallery[benchmark.query_rows]
    target.identity["images"] = test.name
    if test.distractors is None:
        return []
    more = embed_set(
        model, test.distractors, scales=scales, transform=transform, batch_size=batch_size, on_bad_image="skip"
    )
    target.distractors = more.vectors if not more.skipped else more.vectors[more.read]
    return more.skipped


def _digest_of(names: NDArray[Any]) -> str:
    return hashlib.sha256("\n".join(str(name) for name in names).encode("utf-8", "replace")).hexdigest()
