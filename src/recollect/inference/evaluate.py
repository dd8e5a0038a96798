"""Evaluates a model on a test set: ``load_test`` → ``embed_test`` → ``evaluate_input``; all of it: ``write_evaluation``.

Vectors are evaluated by the appropriate protocol: retrieval, re-identification, or Revisited's. Used by ``recollect eval``,
the end of ``tune``, the validation during training and the studies; metrics come from ``evaluation``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.errors import ConfigError, DataError, DataWarning, InputError
from recollect.common.files import atomic_write, make_folder_for, write_json
from recollect.common.images import BadImage
from recollect.common.plugins import trusting
from recollect.common.reading import open_npy, parse_json, read_npz
from recollect.common.text import Remark, number_of, some_names
from recollect.config.resolve import resolve
from recollect.config.schema import Config, DataConfig
from recollect.data import ImageSet, RevisitedBenchmark, summary as census
from recollect.data.transforms import LongerSide
from recollect.evaluation import (
    Evaluation,
    ReidResult,
    RevisitedResult,
    changed_queries,
    evaluate,
    evaluate_reid,
    evaluate_revisited,
    paired_bootstrap,
)
from recollect.evaluation.metrics import GRADED, METRICS, TRACKED_KS, Metric, MetricLike, find_metric
from recollect.evaluation.retrieval import refuse_existing
from recollect.inference.models import LoadedModel, open_model
from recollect.inference.store import set_digest
from recollect.inference.test_sets import TestSet, as_test_set, evaluation_ks, load_test, name_of_test, published_row
from recollect.inference.training_record import read_trained_on
from recollect.inference.vectors import embed_set, skipped_files
from recollect.losses.matryoshka import prefix_lengths, unit_rows
from recollect.models import INSTANCE_SEARCH_SCALES, Embedder
from recollect.models.saving import is_hub_address

logger = logging.getLogger(__name__)

_LABELS = ("labels", "gallery", "gallery_labels", "coarse_labels", "gallery_coarse_labels")
_GRADED_ENTRIES = 10**9
"""Number of similarities up to which hierarchical AP is computed on a CPU by default: about four minutes on one core."""


@dataclass
class EvaluationInput:
    """Vectors to evaluate, with their description.

    Attributes:
        name: for titles.
        embeddings, labels, gallery, gallery_labels: as ``evaluate`` takes them; for instance search ``gallery`` is the
            database and ``gnd`` the ground truth.
        coarse_labels, gallery_coarse_labels: of a coarser level, for hierarchical AP and NDCG; None without.
        distractors: additions to the gallery, an array or a file, wrong for every query.
        ks: the default k; None for those of ``evaluate``.
        published: metric → percent, the recipe's row in the paper; ``published_without``: the same without distractors.
        provenance: what was embedded, for ``metrics.json``. identity: the values that ``--compare`` compares.
    """

    name: str
    embeddings: Any
    labels: Any = None
    gallery: Any = None
    gallery_labels: Any = None
    coarse_labels: Any = None
    gallery_coarse_labels: Any = None
    gnd: list[dict[str, Any]] | None = None
    distractors: Any = None
    ks: tuple[int, ...] | None = None
    published: dict[str, float] = field(default_factory=dict)
    published_without: dict[str, float] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, Any] = field(default_factory=dict)

    def save_vectors(self, path: Path) -> None:
        """Write the vectors as ``.npz``, as ``from_file`` reads them."""
        given = {name: getattr(self, name) for name in ("embeddings", *_LABELS)}
        arrays = {name: np.asarray(values) for name, values in given.items() if values is not None}
        if self.gnd is not None:
            arrays["gnd"] = np.array(json.dumps(self.gnd))
        with atomic_write(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def from_file(cls, path: Path) -> EvaluationInput:
        """Vectors from an ``.npz``: ``embeddings``, ``labels``, and possibly ``gallery``, ``gallery_labels``, ``gnd``;
        with ``coarse_labels`` (and ``gallery_coarse_labels``) hierarchical AP and NDCG are measured too.

        Raises:
            DataError: the file has another format.
        """
        arrays = read_npz(path)
        for name in ("embeddings", "gnd" if "gnd" in arrays else "labels"):
            if name not in arrays:
                raise DataError(f"{path}: has no array {name!r}; its arrays are {', '.join(arrays) or 'none'}.")
        note = parse_json(str(arrays.get("source", "{}")), f"{path}: its note about the model")
        target = cls(
            name=path.stem,
            embeddings=arrays["embeddings"],
            gnd=parse_json(str(arrays["gnd"]), f"{path}: its array 'gnd'", list) if "gnd" in arrays else None,
            ks=evaluation_ks("", {}, np.size(arrays.get("gallery", arrays["embeddings"]), 0)),
            provenance={"vectors": str(path), **({"model": note["model"]} if note.get("model") else {})},
        )
        for name in _LABELS:
            values = arrays.get(name)
            if values is not None and values.dtype.kind == "U":  # an image without a class gets a class of its own
                values = np.array([label or f"\0{name} {number}" for number, label in enumerate(values.tolist())])
            setattr(target, name, values)
        if "names" in arrays:
            names = "\n".join(str(name) for name in arrays["names"])
            target.identity["names"] = hashlib.sha256(names.encode("utf-8", "replace")).hexdigest()
        return target


def embed_test(
    model: LoadedModel,
    test: TestSet,
    *,
    recipe: Config | None = None,
    distractors: Path | None = None,
    multiscale: bool | None = None,
    batch_size: int | None = None,
) -> EvaluationInput:
    """The vectors of a test set. Images that cannot be read are skipped and listed if ``test.data`` says so.

    Args:
        model: the model.
        test: the images.
        recipe: provides scales and published numbers; by default the run's own settings do.
        distractors: a ``.npy`` of vectors for the gallery.
        multiscale: average each image over three scales; by default instance search does, as the recipe says.
        batch_size: images per batch.
    """
    data, settings, embedder = test.data, recipe or model.config, model.embedder
    published = None if settings is None else settings.published
    with_them = distractors is not None or test.distractors is not None
    target = EvaluationInput(
        name=model.name if model.folder is not None else model.weights,
        embeddings=None,
        distractors=distractors if test.distractors is None else None,
        published=published_row(published, name_of_test(data.name, data.test_split, with_them)),
        published_without=published_row(published, name_of_test(data.name, data.test_split)),
    )
    own = () if settings is None or test.benchmark is None else settings.model.scales
    scales = tuple(own or INSTANCE_SEARCH_SCALES) if multiscale or (multiscale is None and own) else None
    options: dict[str, Any] = {"scales": scales, "batch_size": batch_size}
    if test.benchmark is None:
        skipped = _embed_labelled(target, model, test, **options)
    else:
        skipped = _embed_benchmark(target, embedder, test, test.benchmark, **options)
    preprocessing = embedder.preprocessing
    init = str(model.provenance["model"]) if is_hub_address(model.provenance.get("model")) else f"init {model.name}"
    target.provenance = {
        "model": init if model.folder is None else str(model.folder),
        "weights": model.weights,
        "data": data.name,
        "root": data.root,
        "split": data.test_split,
        "fingerprint": test.images.fingerprint,
        "scales": [1.0] if scales is None else list(scales),
        "image_size": preprocessing.max_side if preprocessing.resize is None else preprocessing.size,
        **({} if embedder.precision == "fp32" else {"precision": embedder.precision}),
        "distractors": "revisitop1m" if test.distractors is not None else str(distractors) if distractors else 0,
        "skipped": [{"name": bad.name, "reason": bad.reason} for bad in skipped],
        "left_out": skipped_files(test.images, skipped),
        **({} if test.benchmark is not None else test.as_dict()),
    }
    target.identity |= {
        "init": embedder.config.init,
        "image size": target.provenance["image_size"],
        "dimensions": embedder.dim,
        "scales": target.provenance["scales"],
        "interpolation": preprocessing.interpolation,
        "precision": embedder.precision,
    }
    return target


def _embed_labelled(target: EvaluationInput, model: LoadedModel, test: TestSet, **options: Any) -> list[BadImage]:
    """Set the vectors of ``target``; returns the images that could not be read."""
    images, keys = test.images, test.keys
    embedded = embed_set(
        model.embedder, images, frozen=model.frozen, keys=keys, on_bad_image=test.data.on_bad_image, **options
    )
    places = embedded.read
    if not len(places):
        raise DataError(f"none of the {len(images):,} images can be read: check the files.")
    whole = len(places) == len(images)
    target.embeddings = embedded.rows if whole else embedded.rows[places]
    target.labels = images.labels[places]
    target.coarse_labels = None if images.coarse_labels is None else images.coarse_labels[places]
    target.identity["images"] = set_digest(images if whole else images.subset(places), keys[places])
    target.ks = evaluation_ks(test.data.name, target.published, len(places))
    return embedded.skipped


def _embed_benchmark(
    target: EvaluationInput, embedder: Embedder, test: TestSet, benchmark: RevisitedBenchmark, **options: Any
) -> list[BadImage]:
    # A query is a crop and keeps the scale that its whole image would have.
    if embedder.preprocessing.resize is None:
        options["transform"] = LongerSide(embedder.preprocessing.max_side or 1024)
    target.gnd = list(benchmark.ground_truth)
    target.gallery = embed_set(embedder, benchmark.database, keys=test.keys, **options).rows
    if benchmark.query_rows is not None:
        target.embeddings = target.gallery[benchmark.query_rows]
    else:
        target.embeddings = embed_set(embedder, benchmark.queries, keys=test.query_keys, **options).rows
    target.identity["images"] = test.name
    if test.distractors is None:
        return []
    more = embed_set(embedder, test.distractors, on_bad_image="skip", **options)
    target.distractors = more.rows if not more.skipped else more.rows[more.read]
    return more.skipped


def evaluate_input(
    target: EvaluationInput,
    ks: Sequence[int] | None = None,
    protocol: str = "all",
    *,
    hierarchical: bool | None = None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """Run the appropriate protocol; returns its result, and plain values for ``metrics.json``.

    Args:
        target: the vectors.
        ks: the k of r@k; the target's own by default.
        protocol: ``"all"``: everything against everything; ``"reid"``: a random gallery. Ignored if there is ground truth.
        hierarchical: compute ``h_ap`` and ``ndcg``, which rank everything of a query's coarser class. By default if there
            are coarse labels and, on a CPU, it takes a few minutes at most. ``"left_out"`` of the summary names the
            metrics that were skipped.
        options: options of ``evaluate``.

    Raises:
        ConfigError: ``hierarchical`` is set without coarse labels.
    """
    if hierarchical and target.coarse_labels is None:
        raise ConfigError("hierarchical AP needs images with coarser classes, as sop has them: remove --hierarchical.")
    ks = target.ks if ks is None else ks
    if "metrics" in options and (target.gnd is not None or protocol == "reid"):
        raise ConfigError("your own metrics work only with labelled images and the protocol all: remove them.")
    if target.gnd is not None:
        return _evaluate_benchmark(target, options)
    if protocol == "reid":
        drawn = evaluate_reid(target.embeddings, target.labels, **({} if ks is None else {"ks": ks}), **options)
        values = {"metrics": drawn.metrics, "deviations": drawn.deviations, "draws": len(drawn.draws)}
        return drawn, {**values, "protocol": "reid", "source": target.provenance}
    levels = bool(hierarchical)
    if target.coarse_labels is not None and hierarchical is None:
        # Unless every row of a large matrix would be sorted on a CPU.
        device = options.get("device") or getattr(target.embeddings, "device", "cpu")
        gallery = target.embeddings if target.gallery is None else target.gallery
        levels = not str(device).startswith("cpu") or len(target.embeddings) * len(gallery) <= _GRADED_ENTRIES
    if levels and "metrics" in options:
        options["metrics"] = [*options["metrics"], *GRADED]
    given = {name: getattr(target, name) for name in (*_LABELS, "distractors") if levels or "coarse" not in name}
    result = evaluate(target.embeddings, ks=ks, progress=True, **given, **options)
    result = replace(result, settings={**result.settings, "identity": target.identity})
    omissions = {"left_out": list(GRADED)} if target.coarse_labels is not None and not levels else {}
    return result, {**result.summary(), "protocol": "all", **omissions, "source": target.provenance}


def _evaluate_benchmark(target: EvaluationInput, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    # Without distractors too: that is a hundredth of the work, and shows their effect.
    galleries = {"metrics": target.distractors} | ({} if target.distractors is None else {"without_distractors": None})
    results = {
        name: evaluate_revisited(target.embeddings, target.gallery, target.gnd or [], more, progress=True, **options)
        for name, more in galleries.items()
    }
    # A setup without queries has no mean.
    means = {name: {key: mean for key, mean in each.metrics.items() if mean == mean} for name, each in results.items()}
    return results["metrics"], {**means, "protocol": "revisited", "source": target.provenance}


def evaluate_prefixes(
    target: EvaluationInput, dims: Sequence[int], ks: Sequence[int] | None = None, protocol: str = "all", **options: Any
) -> dict[int, dict[str, float]]:
    """Metrics of the first numbers of the vectors, normalized, by length; the whole vectors come last.

    For embeddings trained with ``loss.dims``.

    Args:
        target: the vectors. dims: the lengths. ks, protocol, options: as for ``evaluate_input``.
    """
    whole = int(target.embeddings.shape[1])
    if target.gnd is None and protocol == "all":
        options["metrics"] = ("r@k", "map@r")
    metrics = {}
    for dim in prefix_lengths(dims, whole):
        cut = {name: _prefix(getattr(target, name), dim, whole) for name in ("embeddings", "gallery", "distractors")}
        metrics[dim] = dict(evaluate_input(replace(target, **cut), ks, protocol, **options)[1]["metrics"])
    return metrics


def _prefix(vectors: Any, dim: int, whole: int) -> Any:
    if vectors is None or dim == whole:
        return vectors
    if isinstance(vectors, str | Path):
        vectors = open_npy(vectors)
    short = vectors[:, :dim]  # from a file on disk, only this part is read
    return unit_rows(short if isinstance(short, Tensor) else torch.from_numpy(np.array(short)))


def compare_evaluations(first: Evaluation, second: Evaluation) -> dict[str, Any]:
    """Compare ``second`` with ``first`` on the same queries: for each metric the difference with its 95 % interval, and
    how many queries improved and got worse; ``"differences"``: the settings that differ besides the model, in words.

    Raises:
        ConfigError: they are of different images, so their queries differ.
    """
    theirs, ours = (dict(result.settings.get("identity") or {}) for result in (first, second))
    recorded = [what for what in ("images", "names") if what in theirs and what in ours]
    if any(theirs[what] != ours[what] for what in recorded):
        raise ConfigError("the two results are of different images: evaluate both models on the same ones with --data.")
    differences = [
        f"{name}: {theirs[name]} there, {ours[name]} here"
        for name in ours
        if name in theirs and name not in recorded and theirs[name] != ours[name]
    ]
    if not recorded:
        differences.append("at least one result does not record its images; only labels were compared")
    comparison: dict[str, Any] = {"differences": differences}
    for metric in (name for name in second.per_query if name in first.per_query and name != "first_rank"):
        test, changes = paired_bootstrap(first, second, metric), changed_queries(first, second, metric)
        comparison[metric] = {**vars(test), "better": len(changes.better), "worse": len(changes.worse)}
    return comparison


def measure_and_keep(model: LoadedModel, test: TestSet) -> dict[str, float]:
    """Embed and evaluate a labelled test set and write both result files; returns its metrics."""
    result, summary = evaluate_input(embed_test(model, test))
    folder = model.results / test.name
    result.save(folder / "queries.npz", overwrite=True)
    write_json(folder / "metrics.json", summary)
    return dict(summary["metrics"])


def measure_labelled(
    vectors: Tensor | NDArray[np.float32],
    labels: Any,
    *,
    ks: Sequence[int] = TRACKED_KS,
    more: Sequence[Metric] = (),
    distributed: bool = False,
) -> dict[str, float]:
    """r@k and mAP@R of labelled vectors, everything against everything, and ``more`` metrics; used during training."""
    return evaluate(vectors, labels, ks=ks, metrics=("r@k", "map@r", *more), distributed=distributed).metrics


def measure_benchmark(database: Tensor, benchmark: RevisitedBenchmark, *, distributed: bool) -> dict[str, float]:
    """``map`` and ``mp@k`` of queries that are images of the database, as validation measures them."""
    queries = database[torch.from_numpy(benchmark.query_rows).to(database.device)]
    # Every positive of a validation query counts as easy.
    result = evaluate_revisited(
        queries, database, benchmark.ground_truth, setups=("easy",), device=database.device, distributed=distributed
    )
    return {name.removeprefix("easy/"): value for name, value in result.metrics.items()}


def evaluate_model(
    model: Embedder | str | Path,
    data: ImageSet | str | Path | None = None,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    ks: Sequence[int] | None = None,
    metrics: Sequence[MetricLike] = (),
    batch_size: int = 64,
    device: str | None = None,
    on_bad_image: str = "error",
    trust: bool = False,
) -> Evaluation:
    """Measure recall@k and more of a model on labelled images, everything against everything.

    Args:
        model: an embedder, or anything that ``recollect.load`` takes.
        data: an ``ImageSet``, a data set by name or reference, or a folder of images; None for the run's own test images.
        root: the folder of a data set. split: the split to use; the test split by default.
        ks: the k of r@k; by default those of the data set.
        metrics: further metrics: functions of (ranks, positives), ``Metric`` objects, or references.
        batch_size: images per batch while embedding. device: where to compute.
        on_bad_image: ``"error"``, or ``"skip"`` to leave out images that cannot be read; they are named by a warning.
        trust: run the code that a run or a saved embedder names (references).

    Returns:
        ``.metrics`` has the means as fractions, e.g. ``{"r@1": 0.81, …}``; ``.per_query`` the values of every query.

    Raises:
        ConfigError: no images are given, or they are a benchmark with ground truth (use ``recollect eval`` for those).

    Example:
        >>> result = evaluate_model("run", "photos", ks=[1, 5])
        >>> result.metrics["r@1"] <= result.metrics["r@5"]
        True
    """
    with trusting(trust):
        if isinstance(model, Embedder):
            init = model.config.init
            loaded = LoadedModel(
                model if device is None else model.to(device), init, "of the embedder", {"model": init}
            )
        else:
            loaded = open_model(model, device=device)
            if loaded.remark is not None:
                logger.warning(loaded.remark)
        if isinstance(data, ImageSet):
            policy: Any = on_bad_image
            settings = DataConfig(data.name, str(data.root), test_split=data.split, on_bad_image=policy)
            test = as_test_set(data, settings, loaded.folder)
        else:
            test = load_test(loaded.folder, data=data, root=root, split=split, on_bad_image=on_bad_image)
        if test.benchmark is not None:
            raise ConfigError(f"{test.data.name} has ground truth instead of labels: use recollect eval.")
        for note in test.remarks():
            warnings.warn(note.text, DataWarning, stacklevel=2)
        target = embed_test(loaded, test, batch_size=batch_size)
        for bad in target.provenance["skipped"]:
            warnings.warn(f"left out: {bad['name']}: {bad['reason']}", DataWarning, stacklevel=2)
        more: dict[str, Any] = {"metrics": [*METRICS, *metrics]} if metrics else {}
        result: Evaluation = evaluate_input(target, ks, **more)[0]
    return result


@dataclass(frozen=True)
class WrittenEvaluation:
    """The result of ``write_evaluation``.

    Attributes:
        input: the vectors that were evaluated, with the name of the model and published numbers.
        test: name of the test set; "" for vectors from a file.
        result: values per query and their means; for re-identification, the means over the draws.
        summary: the content of ``metrics.json``: ``metrics`` as fractions, ``source``, and further requested results
            (``dims``, ``compared_with``, ``without_distractors``).
        notes: remarks needed to understand the numbers.
        metrics_file: ``metrics.json``.
    """

    input: EvaluationInput
    test: str
    result: Evaluation | RevisitedResult | ReidResult
    summary: dict[str, Any]
    notes: Sequence[Remark]
    metrics_file: Path


def write_evaluation(
    model: str | Path | None = None,
    data: str | Path | None = None,
    *,
    recipe: str | Path | None = None,
    root: str | Path | None = None,
    split: str | None = None,
    trained_classes: str = "auto",
    ks: Sequence[int] | None = None,
    dims: Sequence[int] | None = None,
    metrics: Sequence[MetricLike] = (),
    protocol: str = "all",
    similarity: str = "dot",
    ties: str = "pessimistic",
    hierarchical: bool | None = None,
    multiscale: bool | None = None,
    distractors: Path | None = None,
    compare: Path | None = None,
    metrics_out: Path | None = None,
    queries_out: Path | None = None,
    vectors_out: Path | None = None,
    overwrite: bool = False,
    weights: str | None = None,
    download: bool = False,
    batch_size: int | None = None,
    memory: int = 512,
    device: str | None = None,
    precision: str | None = None,
    on_bad_image: str = "error",
    trust: bool = False,
) -> WrittenEvaluation:
    """Compute recall@k and more, and write ``metrics.json`` and ``queries.npz``.

    Everything is checked before the first image is embedded, and nothing is written until all metrics are computed.

    Args:
        model: a run, a saved embedder, an initialisation, or an ``.npz`` with embeddings and labels. None for the
            initialisation of a recipe that trains nothing.
        data: a data set by name or reference, or a folder of images; by default the recipe's, or the run's own.
        recipe: provides data set, k and published numbers.
        root: the folder of the data set. split: the split to use; by default the test split.
        trained_classes: classes the run was trained on: ``"auto"`` leaves them out of a test that has others too;
            ``"exclude"``, ``"keep"``.
        ks: the k of r@k; by default those of the recipe or the data set.
        dims: also evaluate vectors cut to these lengths; by default the run's ``loss.dims``.
        metrics: further metrics: functions of (ranks, positives), ``Metric`` objects, or references.
        protocol: ``"all"``: everything against everything; ``"reid"``: a random gallery.
        similarity: ``"dot"``, or ``"cosine"`` for vectors that are not of length 1.
        ties: tied negatives first (``"pessimistic"``) or last (``"optimistic"``).
        hierarchical: compute ``h_ap`` and ``ndcg``; by default if there are coarse labels and it does not take long.
        multiscale: average each image over three scales; by default instance search does as the recipe says.
        distractors: a ``.npy`` of vectors; for instance search also the folder that contains R1M.
        compare: ``queries.npz`` of another run on the same images, or the folder of a run that was evaluated once.
        metrics_out, queries_out: where to write; by default a folder of the run. vectors_out: also write the vectors.
        overwrite: replace existing results.
        weights, download: of an initialisation, see ``recollect.load``.
        batch_size: images per batch while embedding. memory: MiB for ranking. device: where to compute.
        precision: of the network: ``"fp32"`` by default, ``"bf16"``, ``"fp16"`` or ``"auto"``.
        on_bad_image: ``"error"``, or ``"skip"`` to leave out images that cannot be read, and list them.
        trust: run the code that a run or a saved embedder names (references).

    Raises:
        ConfigError, DataError, InputError, WeightsError: something cannot be opened, evaluated or written.

    Example:
        On the test images that a run never saw::

            written = recollect.write_evaluation("runs/mine", overwrite=True)
            written.summary["metrics"]["r@1"]
    """
    if protocol not in ("all", "reid"):
        raise ConfigError(f"--protocol {protocol} is unknown: choose all or reid.")
    target: EvaluationInput | None = None
    other = None if compare is None else Evaluation.load(_result_file(compare))
    more = [find_metric(metric) if isinstance(metric, str) else metric for metric in metrics]
    with trusting(trust):
        config = None if recipe is None else resolve(recipe)
        if model is None:
            if config is None:
                raise InputError("give one model to evaluate: a run, a saved embedder, an initialisation, or an .npz.")
            if config.run.epochs != 0:
                raise ConfigError(f"{recipe} is for training: name its run, recollect eval RUN --recipe {recipe}.")
            model = config.model.init
        if str(model).endswith(".npz"):
            target = EvaluationInput.from_file(Path(str(model)))
            target.distractors = distractors
            notes, place, name = _trained_classes_remark(target), Path(str(model).removesuffix(".npz") + "-eval"), ""
            labels = target.labels if target.gallery is None else None
        else:
            loaded = open_model(
                str(model), weights=weights, download=download, device=device, recipe=config, precision=precision
            )
            test = load_test(
                loaded.folder,
                data=data,
                root=root,
                split=split,
                recipe=config,
                distractors=distractors,
                trained_classes=trained_classes,
                on_bad_image=on_bad_image,
            )
            notes = [*([] if loaded.remark is None else [Remark(loaded.remark)]), *test.notes]
            place, name = loaded.results / test.name, test.name
            labels = test.images.labels if test.benchmark is None else None
            if dims is None and loaded.config is not None:
                dims = loaded.config.loss.dims
    if labels is not None and distractors is None and len(set(labels.tolist())) == 1:
        text = "all images are of one class, so every result is right and the numbers measure nothing"
        notes.append(Remark(f"{text}: add other classes"))
    for note in notes:
        logger.info(str(note), extra={"in_result": True})
    metrics_out = metrics_out or place / "metrics.json"
    queries_out = queries_out or place / "queries.npz"
    for path in (metrics_out, queries_out, vectors_out):
        if path is not None:
            refuse_existing(path, overwrite)
            make_folder_for(path)
    if target is None:
        target = embed_test(
            loaded, test, recipe=config, distractors=distractors, multiscale=multiscale, batch_size=batch_size
        )
    if (left_out := target.provenance.get("left_out")) and target.labels is not None:
        logger.info(census(len(target.labels), left_out))
    for bad in target.provenance.get("skipped", ())[:1]:  # the others are listed in metrics.json
        logger.info(f"could not be read: {bad['name']}: {bad['reason']}")
    if vectors_out is not None:
        target.save_vectors(vectors_out)
        logger.info(f"written: {vectors_out}")
    options: dict[str, Any] = {"similarity": similarity, "ties": ties, "memory": memory << 20, "device": device}
    if more:
        options["metrics"] = [*METRICS, *more]
    result, summary = evaluate_input(target, ks, protocol, hierarchical=hierarchical, **options)
    if (skipped_metrics := summary.get("left_out")) and hierarchical is None:
        text = f"{' and '.join(skipped_metrics)} would take minutes and are left out"
        logger.info(f"{text}; use --hierarchical to compute them")
    if dims:
        prefixes = evaluate_prefixes(target, dims, ks, protocol, **options)
        summary["dims"] = {str(length): values for length, values in prefixes.items()}
    if other is not None:
        if not isinstance(result, Evaluation):
            raise ConfigError("--compare needs values per query, which only labelled images have: remove it.")
        summary["compared_with"] = {"file": str(compare), **compare_evaluations(other, result)}
    if isinstance(result, Evaluation | RevisitedResult):
        result.save(queries_out, overwrite=overwrite)
        logger.info(f"written: {queries_out}")
    write_json(metrics_out, summary)
    logger.info(f"written: {metrics_out}")
    return WrittenEvaluation(target, name, result, summary, notes, metrics_out)


def _result_file(path: Path) -> Path:
    """The values per query that ``--compare`` means: the file, or that of a run with one evaluation."""
    if not path.is_dir():
        return path
    results = sorted(path.glob("queries.npz")) or sorted(path.glob("eval/*/queries.npz"))
    if len(results) == 1:
        return results[0]
    several = f"{number_of(len(results), 'result')}: {', '.join(map(str, results))}"
    content = several if results else "no result of recollect eval"
    raise InputError(f"--compare {path}: the folder contains {content}. Give one file, RUN/eval/TEST/queries.npz.")


def _trained_classes_remark(target: EvaluationInput) -> list[Remark]:
    """A remark if vectors of a file are of classes that their model was trained on, by name; it is recorded too."""
    model = target.provenance.get("model")
    record = read_trained_on(Path(model)) if isinstance(model, str) and Path(model).is_dir() else None
    if record is None or target.labels is None or target.labels.dtype.kind != "U":
        return []
    trained = sorted(set(target.labels.tolist()) & record.classes)
    if not trained:
        return []
    target.provenance |= {"trained_classes": len(trained), "trained_classes_excluded": False}
    count = number_of(len(trained), "class has the name of one/classes have the names of ones")
    text = f"{count} that {model} was trained on ({some_names(trained)}). The result does not show how well the model "
    return [Remark(f"{text}works on unseen classes: recollect eval {model} does.", warning=True)]
