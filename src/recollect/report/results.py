"""Runs of a report and their results: metrics and vectors of the test images before and after training.

``read_run`` reads a run folder, ``evaluate_run`` embeds and evaluates its test images, and ``settings_of`` and
``mean_over_seeds`` put runs together that differ only in the seed. A report is most useful after a failure, so only a
folder that is not a run is refused; other missing or damaged files become remarks.

Numbers are over the complete test set, as in ``recollect eval``, without classes that the run was trained on. Pictures and
pairwise checks use at most ``LIMIT`` images, the same for every run on the same data. Vectors come from ``inference``; a
copy is kept in ``RUN/report/vectors.npz``, so that a report can be written without the images; only the pictures are then
missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError, RecollectError, in_one_line
from recollect.common.files import atomic_write
from recollect.common.images import BadImage
from recollect.common.machine import available_bytes
from recollect.common.reading import parse_json, read_json, read_npz, read_yaml
from recollect.common.text import number_of
from recollect.config.recipes import published_tests
from recollect.config.resolve import relocated_root
from recollect.config.schema import Config, DataConfig
from recollect.data import ImageSet, summary
from recollect.evaluation import Evaluation, evaluate
from recollect.evaluation.metrics import TRACKED_KS
from recollect.evaluation.ranks import DEFAULT_MEMORY
from recollect.inference.models import load_initial_model, open_model
from recollect.inference.store import content_keys, set_digest
from recollect.inference.test_sets import published_ks
from recollect.inference.training_record import (
    TrainedOn,
    exclude_trained_classes,
    load_by_record,
    merge_records,
    read_trained_on,
)
from recollect.inference.vectors import embed_set, skipped_files
from recollect.search.encoder import fingerprint
from recollect.training.run import RunFolder

LIMIT = 4000
"""Images in galleries, the map and pairwise checks by default."""
_MOST_CACHED = 100_000  # images of which vectors are copied into the run: at 512 numbers, 200 MB per network
MOST_FOR_MAP = 20_000
"""Maximum number of images for mAP. It needs the rank of every positive: three times the time of all other metrics."""
BEFORE, AFTER = "before training", "after training"
"""Names on the page for the weights that training started from, and for those of its only run."""
_BY_TRIALS = ("model.shrinkage", "optimizer.lr", "run.epochs", "run.steps")
_LENGTH = {"run.epochs", "run.steps"}  # one replaces the other

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Times:
    """Seconds of a run: preparing (features of a frozen part, choosing settings), training, and judging at the end."""

    preparing: float
    training: float
    judging: float


@dataclass(frozen=True)
class Run:
    """The records of a training.

    Attributes:
        name: its name on the page. folder: its folder.
        config: its settings; None if this version cannot read them. settings: the same as plain values.
        manifest: versions, machine, plan, outcome.
        steps: records of ``metrics.jsonl``, one per step; evaluations: one per evaluation.
        evaluated: results of ``recollect eval`` kept in the run: name of the set, with the number of queries and a note if its
            classes were trained on → metric → fraction.
        remarks: messages about files that could not be read.
    """

    name: str
    folder: RunFolder
    config: Config | None
    settings: Mapping[str, Any]
    manifest: Mapping[str, Any]
    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    evaluated: dict[str, dict[str, float]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def recorded(self, key: str) -> Mapping[str, Any]:
        """A part of the manifest; empty if there is none."""
        part = self.manifest.get(key)
        return part if isinstance(part, Mapping) else {}

    @property
    def finished(self) -> bool:
        """Whether it finished."""
        return isinstance(self.manifest.get("outcome"), Mapping)

    @property
    def steps_taken(self) -> int | None:
        """The number of steps of a finished run; None if it is not known."""
        steps = finite(self.recorded("outcome").get("steps"))
        return None if steps is None else int(steps)

    @property
    def trained_on(self) -> str:
        """Fingerprint of the training images: a folder may change between runs with equal settings. "" if not known."""
        fingerprints = self.recorded("data").get("fingerprints")
        return str(fingerprints.get("train", "")) if isinstance(fingerprints, Mapping) else ""

    @property
    def status(self) -> str:
        """Its state in a few words."""
        if self.finished:
            return "finished"
        if self.folder.stopped.is_dir():
            return "stopped by a loss that was NaN or infinite"
        return f"not finished (step {self.steps[-1]['step']:,})" if self.steps else "no step taken"

    @property
    def times(self) -> Times | None:
        """How long it took; None if that is not known."""
        outcome = self.recorded("outcome")
        recorded = [outcome.get("seconds"), *(record.get("seconds") for record in reversed(self.steps))]
        training = next((value for value in map(finite, recorded) if value is not None), None)
        if training is None:
            return None
        preparing, judging = finite(self.manifest.get("preparation_seconds")), finite(outcome.get("judging_seconds"))
        return Times(preparing or 0.0, training, judging or 0.0)

    def setting(self, key: str, default: Any = None) -> Any:
        """A setting by its dotted name, from the plain values."""
        value: Any = self.settings
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value


def read_run(path: Path | str) -> Run:
    """Read a run folder.

    Raises:
        DataError: it is not a run folder.
    """
    folder = RunFolder.open(path)
    remarks: list[str] = []
    settings = read_yaml(folder.config_file)
    if not isinstance(settings, Mapping):
        remarks.append("config.yaml contains no settings.")
        settings = {}

    def attempt(read: Callable[[], Any], otherwise: Any, failure: str) -> Any:
        try:
            return read()
        except RecollectError as error:
            remarks.append(f"{failure}: {error}")
            return otherwise

    unread = "This version of recollect cannot read the settings, so nothing can be embedded"
    config = attempt(folder.read_config, None, unread)
    manifest = attempt(folder.read_manifest, {}, "manifest.json cannot be read")
    records = attempt(lambda: folder.read_metrics(remarks.append), [], "metrics.jsonl cannot be read")
    steps = [record for record in records if record["kind"] == "step"]
    evaluations = [record for record in records if record["kind"] != "step"]
    name, evaluated = folder.path.resolve().name, _evaluated(folder, remarks)
    return Run(name, folder, config, settings, manifest, steps, evaluations, evaluated, remarks)


def _evaluated(folder: RunFolder, remarks: list[str]) -> dict[str, dict[str, float]]:
    """Results of ``recollect eval`` in the run."""
    results = {}
    for path in sorted((folder.path / "eval").glob("*/metrics.json")):
        try:
            values = read_json(path, dict)
            metrics, source = values["metrics"], values.get("source", {})
            seen = source.get("trained_classes") and not source.get("trained_classes_excluded")
            queries = finite(values.get("queries"))
            notes = [] if queries is None else [number_of(int(queries), "query/queries")]
            notes += ["classes it was trained on"] if seen else []
            results[f"{path.parent.name} ({', '.join(notes)})" if notes else path.parent.name] = {
                str(name): float(value) for name, value in metrics.items() if finite(value) is not None
            }
        except (RecollectError, KeyError, TypeError, AttributeError) as error:
            remarks.append(f"{path.name} of {path.parent.name} is not a result of recollect eval: {error}")
    return results


def finite(value: Any) -> float | None:
    """``value`` if it is a finite number."""
    # Not math.isfinite, which fails for an integer too large for a float.
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_one else None


def distinct_names(runs: list[Run]) -> list[str]:
    """A name for each run that no other has: the folder's, or as much of the end of its path as it takes."""
    paths = [run.folder.path.resolve().parts for run in runs]
    for length in range(1, max(map(len, paths), default=0) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{run.name} ({number})" for number, run in enumerate(runs, 1)]


@dataclass(frozen=True)
class ReportImages:
    """The images a report is about.

    Attributes:
        data, split: which set. names, labels, class_names: of the images. whole: images in the split, readable or not.
        images: the image set, for pictures; None if it is not available.
    """

    data: str
    split: str
    names: list[str]
    labels: Labels
    class_names: list[str]
    whole: int
    images: ImageSet | None = None

    def subset(self, places: NDArray[np.int64]) -> ReportImages:
        """Some of the images, in the order of ``places``."""
        if len(places) == len(self.names):
            return self
        names = [self.names[place] for place in places.tolist()]
        images = None if self.images is None else self.images.subset(places)
        return replace(self, names=names, labels=self.labels[places], images=images)

    def class_of(self, image: int) -> str:
        """The name of an image's class."""
        return self.class_names[int(self.labels[image])]

    def same_as(self, other: ReportImages) -> bool:
        """Whether both are of the same images in the same order."""
        return self.names == other.names and bool(np.array_equal(self.labels, other.labels))


@dataclass(frozen=True)
class CachedVectors:
    """The content of ``vectors.npz``: images, vectors before and after training, and values that show if it is outdated.

    ``excluded``: what is not included, as sentences. ``copies``: names of images that were trained on.
    """

    images: ReportImages
    vectors: dict[str, NDArray[np.float32]]
    keys: dict[str, str]
    words: dict[str, str]
    excluded: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)

    def write(self, path: Path, remarks: list[str]) -> None:
        """Keep the vectors for the next report."""
        images = self.images
        facts = {"data": images.data, "split": images.split, "whole": images.whole, "keys": self.keys}
        facts |= {"words": self.words, "left_out": self.excluded, "copies": self.copies}
        try:
            with atomic_write(path) as file:
                np.savez(
                    file,
                    facts=np.array(json.dumps(facts)),
                    names=np.array(images.names),
                    labels=images.labels,
                    class_names=np.array(images.class_names),
                    **{f"vectors_{name}": rows for name, rows in self.vectors.items()},  # type: ignore[arg-type]
                )
        except (OSError, DataError) as error:  # a run on a read-only disk can still have a report
            remarks.append(f"The vectors could not be kept in {path}: {error}")

    @classmethod
    def read(cls, path: Path, remarks: list[str]) -> CachedVectors | None:
        """The vectors of an earlier report; None if there are none, or if they are damaged, which is added to ``remarks``."""
        if not path.exists():
            return None
        try:
            archive = read_npz(path)
            facts = parse_json(str(archive["facts"]), str(path), dict)
            labels = archive["labels"].astype(np.int64)
            names, class_names = ([str(name) for name in archive[key]] for key in ("names", "class_names"))
            images = ReportImages(facts["data"], facts["split"], names, labels, class_names, int(facts["whole"]))
            vectors = {name[8:]: rows for name, rows in archive.items() if name.startswith("vectors_")}
            keys, words = ({str(k): str(v) for k, v in facts.get(key, {}).items()} for key in ("keys", "words"))
            excluded, copies = ([str(value) for value in facts.get(key, [])] for key in ("left_out", "copies"))
            sound = all(rows.ndim == 2 and len(rows) == len(names) == len(labels) for rows in vectors.values())
            if sound and 0 <= labels.min() <= labels.max() < len(class_names):
                return cls(images, vectors, keys, words, excluded, copies)
        except (DataError, KeyError, ValueError, TypeError, AttributeError):
            pass
        remarks.append(f"The vectors kept in {path} are damaged and are not used.")
        return None


@dataclass(frozen=True)
class ModelResult:
    """One way to embed those images, and its results.

    Attributes:
        name: short. what: in a few words, which weights. trained: False for what training started from.
        spread: of a mean over seeds, the standard deviation of each metric.
        seen: whether it was trained on the classes that it is tested on. steps: that were taken; None if not known.
    """

    name: str
    what: str
    vectors: NDArray[np.float32]
    evaluation: Evaluation
    trained: bool = True
    spread: Mapping[str, float] | None = None
    seen: bool = False
    steps: int | None = None

    def among(self, places: NDArray[np.int64], labels: Labels) -> ModelResult:
        """Itself, evaluated among some of the images."""
        if len(places) == len(self.vectors):
            return self
        metrics = ("r@k", "map@r", "map", "first_rank")
        evaluation = evaluate(self.vectors[places], labels, ks=(1,), metrics=metrics, memory=_memory())
        return replace(self, vectors=self.vectors[places], evaluation=evaluation)


def primary_of(models: Sequence[ModelResult]) -> ModelResult:
    """The one whose results are shown in detail: the first trained one."""
    return next((one for one in models if one.trained), models[0])


def _memory() -> int:
    """Bytes for an evaluation. With a quarter of what is free, 100,000 images are compared once per pair, not twice."""
    return max(DEFAULT_MEMORY, available_bytes() // 4)


EvaluationCache = MutableMapping[tuple[str, ...], Evaluation]
"""Evaluations by images and weights: runs that started from the same weights are evaluated once."""


@dataclass(frozen=True)
class RunResults:
    """Results of a run's weights on its test images.

    Attributes:
        excluded: images not included in the numbers, and why, as sentences. copies: images that were trained on.
    """

    images: ReportImages
    init: ModelResult | None
    trained: ModelResult | None
    init_key: str
    remarks: list[str]
    excluded: list[str]
    copies: list[int]


def evaluate_run(
    run: Run,
    *,
    split: str | None = None,
    root: str | None = None,
    device: str | None = None,
    on_bad_image: str = "skip",
    cache: EvaluationCache | None = None,
    other_runs: Sequence[Run] = (),
) -> RunResults:
    """Embed and evaluate a run's test images with its starting weights and its final weights.

    Args:
        run: the run.
        split: the split to use; the run's ``data.test_split`` by default.
        root: new folder of its images; by default the recorded one.
        device: where to embed.
        on_bad_image: ``"error"`` stops at images that cannot be read, ``"skip"`` continues with a remark.
        cache: evaluations of other runs, which are reused and extended.
        other_runs: runs that it is compared with. Those on the same data are tested on classes that none was trained on.

    Raises:
        RecollectError: there are neither images nor vectors from an earlier report.
    """
    config = run.config
    if config is None:
        raise DataError("its settings cannot be read, so its test images are not known.")
    data = config.data
    split = split or data.test_split
    # Another split is cached separately, so that a report on training images keeps the vectors of the test.
    part = "" if split == data.test_split else "-" + re.sub(r"[^\w.+-]+", "_", split)[:80]
    path = run.folder.path / "report" / f"vectors{part}.npz"
    cache = {} if cache is None else cache
    try:
        record = read_trained_on(run.folder.path)
        whole, exclude = _test_images(data, record, other_runs, split, root, on_bad_image)
    except RecollectError as error:
        if root is not None:  # a mistake to be told, not a reason for older vectors
            raise
        remarks: list[str] = []
        earlier = CachedVectors.read(path, remarks)
        moved = [] if data.root is None else ["If the images moved, name their folder with --root."]
        if earlier is None or earlier.images.split != split:
            raise DataError(" ".join([str(error), *remarks, *moved])) from error
        words = "The images are not available, so the vectors of an earlier report were used."
        remark = " ".join([words, *moved, f"({in_one_line(error)})"])
        record = read_trained_on(run.folder.path)
        classes = {earlier.images.class_names[label] for label in earlier.images.labels.tolist()}
        seen = record is not None and classes <= record.classes
        return _evaluate(run, earlier, [remark], cache, seen)
    screened = exclude_trained_classes(whole, content_keys(whole), exclude)
    images, keys, remarks = screened.images, screened.keys, [remark.text for remark in screened.remarks()]
    # A set in folders has no name of its own: the folder tells it from others.
    title = replace(data, root=relocated_root(data.root, root)).title if images.name == "folder" else images.name
    about = ReportImages(title, split, list(images.names), images.labels, list(images.class_names), len(images), images)
    vectors = CachedVectors(about, {}, {"images": set_digest(images, keys)}, {})
    if screened.excluded:
        words = "class that was trained on/classes that were trained on"
        vectors.excluded.append(number_of(len(screened.trained_classes), words))
    seen = bool(screened.trained_classes) and not screened.excluded  # no class is new
    if record is not None and not seen:
        trained_keys = {key.tobytes() for key in record.keys}
        vectors.copies.extend(n for n, key in zip(images.names, keys, strict=True) if key.tobytes() in trained_keys)
    skipped: list[BadImage] = []
    for name in ("init", "trained"):
        try:
            opened = load_initial_model(config) if name == "init" else open_model(run.folder.path)
        except RecollectError as error:
            what = "initial" if name == "init" else "trained"
            remarks.append(f"There are no {what} weights to embed with: {error}")
            continue
        embedded = embed_set(
            opened.embedder, images, frozen=config.model.freeze, keys=keys, device=device, on_bad_image=on_bad_image
        )
        skipped = embedded.skipped
        remarks += [] if opened.remark is None else [opened.remark]
        remarks += [f"Cannot be read, and left out: {bad}" for bad in skipped[:20]]
        vectors.vectors[name], vectors.words[name] = embedded.rows, opened.weights
        vectors.keys[name] = fingerprint(opened.embedder)  # with the size of the images: results are reused by it
    if files := skipped_files(whole, skipped):
        remarks.append(f"{summary(len(images) - len(skipped), files)}.")
    earlier = CachedVectors.read(path, remarks)
    facts = (vectors.keys, vectors.excluded, vectors.copies)
    outdated = earlier is None or (earlier.keys, earlier.excluded, earlier.copies) != facts
    if outdated and len(images) <= _MOST_CACHED:
        vectors.write(path, remarks)
    return _evaluate(run, vectors, list(dict.fromkeys(remarks)), cache, seen)


def _test_images(
    data: DataConfig,
    record: TrainedOn | None,
    other_runs: Sequence[Run],
    split: str,
    root: str | None,
    on_bad_image: str,
) -> tuple[ImageSet, TrainedOn | None]:
    """The test images of a run, and what they must not contain: what it and the other runs were trained on.

    A folder that changed between two trainings has other test classes in each. Those that neither was trained on are a
    test of both. If fewer than two are left, each run has its own.
    """
    place = relocated_root(data.root, root)
    options = {**data.options, "on_bad_image": on_bad_image}
    own = load_by_record(data.name, place, split, record, options)
    if record is None or split != "test":
        return own, record
    records = [record]
    for other in other_runs:
        theirs = None if other.config is None else other.config.data
        if theirs is None or theirs.name != data.name or relocated_root(theirs.root, root) != place:
            continue
        their_record = read_trained_on(other.folder.path)
        # Runs trained on all classes are ignored: they would leave nothing to test on.
        if their_record is not None and their_record.data == record.data and theirs.train_split != "all":
            records.append(their_record)
    joint = merge_records(records)
    if joint is record:
        return own, record
    common = load_by_record(data.name, place, split, joint, options)
    new_classes = set(common.class_names) - joint.classes - joint.validation_classes
    return (common, joint) if len(new_classes) > 1 else (own, record)


def _evaluate(
    run: Run, cached: CachedVectors, remarks: list[str], cache: EvaluationCache, seen: bool = False
) -> RunResults:
    """Results for the embedded images; images that could not be read for one embedder are left out for all.

    ``seen``: the run was trained on all classes of the test, so that it is not a test.
    """
    images, vectors, excluded = cached.images, dict(cached.vectors), []
    readable = np.ones(len(images.names), bool)
    for rows in vectors.values():
        readable &= np.isfinite(rows).all(axis=1)
    if not readable.all():
        excluded.append(number_of(int((~readable).sum()), "image that cannot be read/images that cannot be read"))
        images = images.subset(np.flatnonzero(readable))
        vectors = {name: rows[readable] for name, rows in vectors.items()}
    published = {k for row in published_tests(run.setting("published")).values() for k in published_ks(row)}
    ks = sorted({*TRACKED_KS, *published})

    def result(name: str) -> ModelResult | None:
        if name not in vectors:
            return None
        # What decides a result: images, weights, which of the images could be read, and k.
        key = (cached.keys.get("images", ""), cached.keys.get(name, ""), str(int(readable.sum())), str(ks))
        if key not in cache or not all(key[:2]):
            metrics = ["r@k", "map@r", "first_rank"] + (["map"] if len(images.names) <= MOST_FOR_MAP else [])
            cache[key] = evaluate(vectors[name], images.labels, ks=ks, metrics=metrics, memory=_memory(), progress=True)
        what, outcome = cached.words.get(name, name), (vectors[name], cache[key])
        if name == "init":
            return ModelResult(BEFORE, what, *outcome, trained=False, steps=0)
        return ModelResult(run.name, what, *outcome, seen=seen, steps=run.steps_taken)

    try:
        before, after = result("init"), result("trained")
    except RecollectError as error:
        raise DataError(f"{images.data} ({images.split}) cannot be evaluated: {error}") from error
    one = after or before
    if one is not None and (singletons := len(images.names) - one.evaluation.counted):
        several = "queries without a positive: the only images of their classes"
        excluded.append(number_of(singletons, f"query without a positive: the only image of its class/{several}"))
    trained_on = set(cached.copies)
    copies = [place for place, name in enumerate(images.names) if name in trained_on]
    key = cached.keys.get("init", "")
    return RunResults(images, before, after, key, remarks, [*excluded, *cached.excluded], copies)


def training_images(run: Run, limit: int | None, root: str | None = None) -> tuple[ImageSet | None, int]:
    """At most ``limit`` of the images that a run was trained on, and how many there are; None if they are not at hand."""
    if run.config is None:
        return None, 0
    data = run.config.data
    try:
        record, options = read_trained_on(run.folder.path), {**data.options, "on_bad_image": "skip"}
        images = load_by_record(data.name, relocated_root(data.root, root), data.train_split, record, options)
    except RecollectError:
        return None, 0
    return images.subset(choose(images.labels, limit)), len(images)


def random_part(count: int, most: int, seed: int = 0) -> NDArray[np.int64]:
    """At most ``most`` of the numbers below ``count``, ascending."""
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False)) if count > most else np.arange(count)


def choose(labels: Labels, limit: int | None) -> NDArray[np.int64]:
    """Positions of at most ``limit`` images: random classes, whole unless one would fill a tenth of the limit.

    A query is evaluated with the images of its class, so a class is included with all of its images or, if it is very
    large, with enough of them. The choice depends only on the set.
    """
    classes = np.unique(labels)
    if limit is None or len(labels) <= limit:
        return np.arange(len(labels))
    random = np.random.default_rng(0)
    most = max(2, limit // min(10, len(classes)))
    parts: list[NDArray[np.int64]] = []
    room = limit
    for label in random.permutation(classes):
        members = random.permutation(np.flatnonzero(labels == label))[:most]
        if len(members) <= room:
            parts.append(members)
            room -= len(members)
        if room < 2:
            break
    return np.sort(np.concatenate(parts)) if parts else np.arange(limit)


def settings_of(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Runs by setting, in the order of their first run; the name of a setting is what the names of its runs begin with.

    Settings that a training chose by trials on validation classes may differ between seeds too. Such runs are of one
    setting: the choice is a part of what is compared.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(str(sorted(_user_settings(run).items())), []).append(run)
    named = [(_name([run.name for run in group]), group) for group in groups.values()]
    names = [name for name, _ in named]
    # If two settings would have the same name, the first run's tells them apart.
    return [(name if names.count(name) == 1 else f"{group[0].name}, …", group) for name, group in named]


def _user_settings(run: Run) -> dict[str, str]:
    """The settings as the user asked for them: what was chosen by trials is "auto"."""
    choices = run.manifest.get("choices") or ()
    auto = {str(choice["name"]) for choice in choices if isinstance(choice, dict) and "name" in choice}
    if auto & _LENGTH:
        auto |= _LENGTH
    auto &= {*_BY_TRIALS}
    settings = flat_settings(run.settings, without=("run.seed", "name", *auto)) | dict.fromkeys(auto, "auto")
    return settings | {"the training images": run.trained_on}


def flat_settings(values: Mapping[str, Any], above: str = "", without: Sequence[str] = ()) -> dict[str, str]:
    """Settings by their dotted names, as text."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(flat_settings(value, f"{above}{key}.", without))
        elif f"{above}{key}" not in without:
            flat[f"{above}{key}"] = str(value)
    return flat


def _name(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    shortest = min(names, key=len)
    length = next((n for n, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), len(shortest))
    common = re.sub(r"([-_./ ]*seeds?)?[-_./ ]*$", "", shortest[:length].rstrip("0123456789"))
    return common or f"{names[0]} and {len(names) - 1} more"


def mean_over_seeds(runs: Sequence[Run], models: Sequence[ModelResult]) -> list[ModelResult]:
    """``models`` with every setting that was run with several seeds as one: the mean of each query over its runs."""
    trained = {one.name: one for one in models if one.trained}
    means = [one for one in models if not one.trained]
    for name, group in settings_of(runs):
        members = [trained.pop(run.name) for run in group if run.name in trained]
        means += members if len(members) < 2 else [_mean(f"{name} ({len(members)} seeds)", members)]
    return [*means, *trained.values()]


def _mean(name: str, members: Sequence[ModelResult]) -> ModelResult:
    first = members[0]
    if all(np.array_equal(first.vectors, one.vectors) for one in members[1:]):
        what = "all with the same vectors: the seed has no effect with these settings"
        return replace(first, name=name, what=what)
    queries = [one.evaluation.per_query for one in members]
    common = [metric for metric in queries[0] if all(metric in values for values in queries)]
    values = {metric: np.stack([one[metric] for one in queries]).mean(axis=0) for metric in common}
    return replace(
        first,
        name=name,
        what="mean ± standard deviation over seeds",
        evaluation=replace(first.evaluation, per_query=values),
        steps=None if any(one.steps is None for one in members) else max(one.steps or 0 for one in members),
        spread={metric: stdev(one.evaluation.metrics[metric] for one in members) for metric in ("r@1", "map@r")},
    )


def one_per_setting(runs: Sequence[Run], models: Sequence[ModelResult]) -> list[ModelResult]:
    """``models`` without the second and later seeds of a setting, which would look alike in pictures."""
    again = {run.name for _, group in settings_of(runs) for run in group[1:]}
    return [one for one in models if not (one.trained and one.name in again)]
