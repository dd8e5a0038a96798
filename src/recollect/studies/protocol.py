"""Which trainings a study has: on which classes each trains, what it is measured on, and when the test set is used.

A search (``Protocol``) follows the paper: a trial trains on the first half of the training classes and validates on the
second; the chosen settings are trained once on all of them and tested once. All its configurations are made here, from the
training split only. ``read_protocol`` runs where ``only_splits`` refuses everything else, and ``trial_config`` never sets a
test set to watch.

A comparison (``Matrix``) has cells, each trained at several learning rates and with several seeds:

    OUT/study.json                            what this folder's runs have in common
    OUT/runs/BENCH/CELL/search/lr-RATE        seed 0, trained on half of the training classes, measured on the others
    OUT/runs/BENCH/CELL/lr-RATE-steps-N/seed-S    all training classes, as the search chose, measured on test once
    OUT/runs/BENCH/CELL/init/seed-S           a cell that takes no step

Its search starts with the bench's learning rates and continues, by factors of about three, while the best rate is the
lowest or the highest tried, so that no cell is judged by a rate that a lower or a higher one would have beaten. The folders
are the only record of progress: a run with an outcome in its manifest is finished, one that diverged has a ``failed.json``,
any other is started or resumed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataError, InputError
from recollect.common.files import write_json
from recollect.common.reading import read_json, sha256
from recollect.config.automatic import choose_device, is_pretrained, resolve_auto
from recollect.config.resolve import CHANGEABLE, as_mapping, differences, resolve, with_settings
from recollect.config.schema import BatchConfig, Config
from recollect.data import ImageSet, class_disjoint_split, load, only_splits
from recollect.data.registry import find_source
from recollect.data.sources.revisited import SFM_NAME
from recollect.evaluation.metrics import TRACKED_KS
from recollect.models.weight_files import obtain_weights
from recollect.models.zoo import find
from recollect.studies.space import Parameter, Space, as_settings, corners, default_space, read_space
from recollect.training.batches import make_sampler
from recollect.training.build import load_split, make_loss
from recollect.training.run import RunFolder

LOCAL = (
    "model.weights", "run.tensorboard", "run.loggers", "run.logger_options", "run.checkpoint_minutes",
    "run.checkpoint_steps",
)  # fmt: skip
"""Settings that may differ between machines that share a study, besides those of ``CHANGEABLE``: they affect where and how fast
a trial runs, not its result. The starting weights of the network are part of a study's identity by their content."""

MEASURED = (*(f"r@{k}" for k in TRACKED_KS), "map@r")
"""Possible values of ``run.select`` when validating on held-out classes."""
LADDER = tuple(float(f"{digit}e{power}") for power in range(-7, 1) for digit in (1, 3))
"""Learning rates that a search may try."""
MOST_RATES = 7
"""A search stops after this many rates and takes the best of them."""
_NO_STEP = {
    **{"run.steps": 0, "run.epochs": None, "run.head_steps": 0, "run.verdict": False, "data.validation": "none"},
    **{"run.evaluate_first": True, "run.watch_test": True},
}
"""Settings of a run that measures the model as it starts."""


def check_settings(folder: Path, study: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` if the ``study`` in a folder has other settings."""
    if mismatches := differences(study, settings):
        raise ConfigError(
            f"{folder} is a study with other settings: {'; '.join(mismatches[:3])}. Choose another --out, or use the same "
            "settings."
        )


# A search --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """A search with all settings resolved.

    Attributes:
        base: the settings that ``recollect train`` would use with the recipe, without any ``"auto"``.
        space: the search space.
        batch: images per batch of a trial; half of the classes may be too few for the recipe's batch.
        train, validation: classes and images of the two halves.
        fingerprints: of the two halves.
        weights: SHA-256 of the file of the starting weights, ``"none"`` for random weights.
        remarks: changes that the protocol makes to the recipe, one sentence each.
    """

    base: Config
    space: Space
    batch: int | str
    train: Mapping[str, int]
    validation: Mapping[str, int]
    fingerprints: Mapping[str, str]
    weights: str = "none"
    remarks: tuple[str, ...] = field(default=())

    def identity(self) -> dict[str, Any]:
        """The values that must be equal for two processes to work on one study."""
        base = as_mapping(self.base)
        for key in (*CHANGEABLE, *LOCAL):
            *groups, name = key.split(".")
            reduce(dict.__getitem__, groups, base).pop(name, None)
        base.pop("published")
        identity = {
            "recipe": self.base.name,
            "space": self.ranges,
            "settings": base,
            "images": dict(self.fingerprints),
            "weights": self.weights,
        }
        return dict(json.loads(json.dumps(identity)))

    @property
    def ranges(self) -> dict[str, str]:
        """The search space as text, by parameter."""
        return {name: str(parameter) for name, parameter in self.space.items()}


def read_protocol(config: Config, space: list[str] | None = None) -> Protocol:
    """Resolve a recipe for a search. Reads only the list of the training split.

    Args:
        config: recipe and user's settings.
        space: the search space, see ``read_space``; the default is around the recipe.

    Raises:
        ConfigError: settings that would let the search see test images, or that contradict each other.
        InputError: too few classes.
        WeightsError: the starting weights are missing.
    """
    _refuse(config)
    remarks: list[str] = []
    config = _validated_by_classes(config, remarks)
    with only_splits(config.data.train_split):
        images = load_split(config.data, config.data.train_split)
    if images.num_classes < 4:
        raise InputError(
            f"{images.name}: {images.num_classes} training classes are too few to tune with; at least four are needed, two "
            "for training and two for validation."
        )
    train, validation = class_disjoint_split(images, "paper")
    base = _without_auto(config, images, remarks)
    parameters = read_space(space or (), default_space(base, _epochs(base, images)))
    longest = _longest(parameters["epochs"])
    every = config.run.evaluate_every if isinstance(config.run.evaluate_every, int) else max(1, longest // 20)
    base = replace(base, run=replace(base.run, evaluate_every=every))
    batch = _search_batch(base, train, remarks)
    if base.optimizer.schedule != "milestones":
        remarks.append(
            f"The recipe's {base.optimizer.schedule} schedule is replaced by milestones: decay steps and size are searched."
        )
    first, second = ({"classes": half.num_classes, "images": len(half)} for half in (train, validation))
    fingerprints = {"train": train.fingerprint, "validation": validation.fingerprint}
    protocol = Protocol(base, parameters, batch, first, second, fingerprints, _weights(config), tuple(remarks))
    # The cheap parts of a trial, so that impossible settings are refused before a study.
    for values in corners(parameters):
        trial = trial_config(protocol, as_settings(values))
        find(trial.model.init)
        make_sampler(trial, train.labels)
        dim = trial.model.dim if isinstance(trial.model.dim, int) else 128
        make_loss(trial, train.num_classes, dim, train.coarse_of_classes)
    return protocol


def trial_config(protocol: Protocol, settings: Mapping[str, Any]) -> Config:
    """A trial: trains on the first half of the training classes, validates on the second; the test set is not used."""
    fixed = {"data.validation": "paper", "run.watch_test": False, "run.verdict": False, "batch.size": protocol.batch}
    return with_settings(protocol.base, {**fixed, **settings})


def final_run_config(protocol: Protocol, settings: Mapping[str, Any], epochs: int) -> Config:
    """The training on all training classes with the chosen settings, for the number of epochs found best.

    Later milestones are left out; the batch size is the recipe's.
    """
    epochs = max(1, epochs)
    milestones = [milestone for milestone in settings["optimizer.milestones"] if milestone < epochs]
    fixed = {"data.validation": "none", "run.watch_test": False, "run.verdict": False}
    warm_up = min(protocol.base.optimizer.warm_up, epochs - 1)
    length = {"run.epochs": epochs, "optimizer.milestones": milestones, "optimizer.warm_up": warm_up}
    return with_settings(protocol.base, {**settings, **fixed, **length})


def _refuse(config: Config) -> None:
    data, run = config.data, config.run
    if 0 in (run.epochs, run.steps):
        key = "run.epochs" if run.epochs == 0 else "run.steps"
        raise ConfigError(f"{key} 0 trains nothing, so there is nothing to tune: set another number.")
    if run.watch_test:
        raise ConfigError("run.watch_test: a search does not use the test set. Remove this setting.")
    if data.validation == "random":
        raise ConfigError(
            "data.validation=random: a search validates on the second half of the classes. Remove this setting."
        )
    if data.train_split in {data.test_split, "all", *find_source(data.name).test_splits}:
        raise ConfigError(
            f"data.train_split {data.train_split!r} contains test classes, which a search must not see: use 'train'."
        )


def _validated_by_classes(config: Config, remarks: list[str]) -> Config:
    """The recipe with validation on held-out classes and a metric that can be computed on them."""
    select = config.run.select
    if config.data.validation == SFM_NAME:
        remarks.append(
            "The search validates on the second half of the training classes instead of the queries of sfm120k."
        )
    if select == "map" or select.startswith("mp@"):
        remarks.append(f"The recipe's {select} needs queries with ground truth: the search selects by r@1.")
        select = "r@1"
    elif select not in MEASURED:
        raise ConfigError(
            f"run.select {select!r} is not computed on held-out classes: choose one of {', '.join(MEASURED)}."
        )
    data = replace(config.data, validation="none", validation_root=None)
    return replace(config, data=data, run=replace(config.run, select=select))


def _without_auto(config: Config, images: ImageSet, remarks: list[str]) -> Config:
    """The recipe without any ``"auto"``; with a remark if ``recollect train`` would take no step with so few images."""
    device, pretrained = choose_device(config.run.device), is_pretrained(config.model)
    base, choices = resolve_auto(config, images, device, pretrained)
    if base.run.steps != 0:
        return base
    # With a learning rate that is set, the length is that of a training.
    config = replace(config, optimizer=replace(config.optimizer, lr=base.optimizer.lr))
    reason = next(choice.reason for choice in choices if choice.name == "run.steps")
    remarks.append(
        f"recollect train would take no step here ({reason.partition(';')[0]}): compare the test with that of recollect "
        "train."
    )
    return resolve_auto(config, images, device, pretrained)[0]


def _weights(config: Config) -> str:
    """Hash of the starting weights, independent of their place on this machine."""
    model, row = config.model, find(config.model.init)
    if row.outside is not None:
        return f"{row.name} {row.outside.sha256}"
    return sha256(obtain_weights(row, model.weights, download=model.download)) if is_pretrained(model) else "none"


def _longest(epochs: Parameter) -> int:
    """The largest number of epochs that can be drawn."""
    values = epochs.choices or epochs.ends
    if not all(type(value) is int and value >= 1 for value in values):
        raise ConfigError(f"--space epochs={epochs}: epochs must be whole numbers, 1 or more.")
    return max(int(value) for value in values if value)


def _epochs(base: Config, images: ImageSet) -> int:
    """The recipe's length in epochs of all training classes."""
    if isinstance(base.run.epochs, int):
        return base.run.epochs
    sampler = make_sampler(base, images.labels)
    sampler.set_epoch(0)
    return max(1, round((base.run.steps or 1) / len(sampler)))


def _search_batch(base: Config, train: ImageSet, remarks: list[str]) -> int | str:
    """The batch of a trial, with a remark if it is not the recipe's."""
    size, each = base.batch.size, base.batch.samples_per_class
    if not isinstance(size, int):
        return size
    usable = usable_classes(base.batch, train.class_sizes)
    if usable < 2:
        raise InputError(
            f"{train.name}: {usable} of the {train.num_classes} training classes of the search have {each} images or "
            "more; at least two are needed. Set batch.small_classes=repeat or a smaller batch.samples_per_class."
        )
    if size <= usable * each:
        return size
    remarks.append(
        f"Batches of {size:,} images need {size // each:,} classes, but the search trains on {usable:,}: its batches "
        f"have {usable * each:,} images; the final training uses {size:,}."
    )
    return usable * each


def usable_classes(batch: BatchConfig, sizes: Any) -> int:
    """How many classes of these sizes have enough images for a batch."""
    return int((sizes >= (batch.samples_per_class if batch.small_classes == "drop" else 1)).sum())


# A comparison ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EqualImages:
    """Every cell sees the same number of training images, for any batch size; the learning rate follows a cosine.

    A run is a single epoch, so ``optimizer.warm_up`` is a share of the whole: 0.1 is its first tenth.
    """

    images: int

    def settings(self, batch: int, steps: int | None) -> dict[str, Any]:
        """Settings of a run of this batch size."""
        count = max(1, round(self.images / batch))
        return {"run.steps": count, "batch.batches_per_epoch": count, "optimizer.schedule": "cosine"}

    def __str__(self) -> str:
        return (
            f"equal images: every run sees {self.images:,} training images, so a large batch takes few steps. Between batch "
            "sizes it compares cost, not what they come to after convergence"
        )


@dataclass(frozen=True)
class UntilValidation:
    """Every cell trains as long as its validation classes improve, up to a limit; the learning rate is constant."""

    steps: int
    images: int
    evaluations: int = 10

    def settings(self, batch: int, steps: int | None) -> dict[str, Any]:
        """Settings of a run: up to the limit in a search (``steps`` None), then as many steps as it chose."""
        limit = min(self.steps, self.images // batch)
        every = max(1, limit // self.evaluations)
        return {
            "run.steps": every * min(limit, self.evaluations) if steps is None else steps,
            "batch.batches_per_epoch": every if steps is None else steps,
            "optimizer.schedule": "constant",
        }

    def __str__(self) -> str:
        return (
            f"until validation stops improving: the search takes at most {self.steps:,} steps or {self.images:,} images and "
            f"evaluates validation classes {min(self.steps, self.evaluations)} times; the best evaluation gives the number "
            "of steps"
        )


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the cells of a comparison share: data and network (a recipe with settings), a budget, the first rates."""

    name: str
    recipe: str
    budget: EqualImages | UntilValidation
    rates: tuple[float, ...]
    """Initial learning rates of each cell's search, neighbours on ``LADDER``."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def largest_search_batch(self) -> int:
        """As many images as half of the training classes can fill."""
        config = resolve(self.recipe, self.settings)
        train = load(config.data.name, config.data.root, config.data.train_split, **config.data.options)
        half, _ = class_disjoint_split(train, "paper", 0)
        return config.batch.samples_per_class * usable_classes(config.batch, half.class_sizes)


@dataclass(frozen=True)
class Cell:
    """One configuration to train, at several learning rates and seeds."""

    bench: Bench
    name: str
    label: str
    batch: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    trains: bool = True
    """False: no step is taken, so there is no rate to search; the model is measured as it starts. Without a last layer
    (``model.dim`` None) that is the network's features."""

    @property
    def search_batch(self) -> int:
        """The batch size of a search: the cell's, or the largest that half of the training classes can fill."""
        return min(self.batch, self.bench.largest_search_batch)


@dataclass(frozen=True)
class Run:
    """One run of a cell, done or not."""

    cell: Cell
    folder: Path
    seed: int = 0
    rate: float | None = None
    """None: no step is taken, or the search has not chosen yet."""
    steps: int | None = None
    """None: a run of the search, or no step is taken."""

    @property
    def done(self) -> bool:
        """Whether it is finished, or failed for good."""
        return outcome_of(self.folder) is not None or failure_of(self.folder) is not None

    @property
    def ready(self) -> bool:
        """Whether it can be started; seeds wait until their cell's search is finished."""
        return self.rate is not None or not self.cell.trains

    @property
    def searches(self) -> bool:
        """Whether it is one of the search."""
        return self.rate is not None and self.steps is None

    def settings(self) -> dict[str, Any]:
        """Changes to the bench's recipe."""
        cell, bench = self.cell, self.cell.bench
        if not cell.trains:
            return {**bench.settings, **cell.settings, **_NO_STEP, "batch.size": cell.batch, "run.seed": self.seed}
        batch = cell.search_batch if self.searches else cell.batch
        return {
            **bench.settings,
            **cell.settings,
            **bench.budget.settings(batch, self.steps),
            "batch.size": batch,
            "optimizer.lr": self.rate,
            "run.epochs": None,
            "run.seed": self.seed,
            "run.evaluate_every": 1,
            "run.evaluate_first": False,
            "data.validation": "paper" if self.searches else "none",
            "run.watch_test": not self.searches,
            "run.verdict": False,  # it would read test classes, and the study compares by itself
        }


@dataclass(frozen=True)
class Matrix:
    """The folder of the runs."""

    out: Path
    seeds: Sequence[int] = (1, 2, 3)
    """Seeds of the runs that are reported; the search uses 0."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Common properties of this folder's runs, as plain values: runs of other data must not be mixed with them."""

    def open(self) -> None:
        """Create the folder, or check that it belongs to this study.

        Raises:
            ConfigError: it contains something else.
        """
        file = self.out / "study.json"
        if file.exists():
            check_settings(self.out, read_json(file, dict).get("about", {}), self.provenance)
            return
        # A killed start may have left a hidden temporary file.
        if self.out.exists() and any(not entry.name.startswith(".") for entry in self.out.iterdir()):
            raise ConfigError(f"{self.out} is not empty and contains no study: choose another --out.")
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(file, {"about": dict(self.provenance)})

    def folder(self, cell: Cell) -> Path:
        """The folder of a cell's runs."""
        return self.out / "runs" / cell.bench.name / cell.name

    def searches(self, cell: Cell) -> dict[float, Path]:
        """The runs that choose a cell's learning rate: those done so far and those to do next."""
        rates = list(cell.bench.rates)
        while True:
            paths = {rate: self.folder(cell) / "search" / f"lr-{rate:g}" for rate in rates}
            choice = _best(paths, cell.bench.rates)
            further = None if choice is None or len(rates) >= MOST_RATES else beyond(rates, choice.rate)
            if further is None:
                return paths
            rates = sorted([*rates, further])

    def choice(self, cell: Cell) -> RateChoice | None:
        """The learning rate and the number of steps chosen on validation classes; None before the search is finished."""
        searches = self.searches(cell)
        choice = _best(searches, cell.bench.rates)
        if choice is None or min(searches) < choice.rate < max(searches):
            return choice
        return replace(choice, at_the_end=True)

    def reported(self, cell: Cell) -> list[Run]:
        """The runs that are reported, one per seed; none before the search has chosen their rate and steps.

        Folders are named after the choice, so another choice is another run.
        """
        if not cell.trains:  # random weights and the choice of a shrinkage differ by seed
            return [Run(cell, self.folder(cell) / "init" / f"seed-{seed}", seed) for seed in self.seeds]
        choice = self.choice(cell)
        if choice is None:
            return []
        folder = self.folder(cell) / f"lr-{choice.rate:g}-steps-{choice.steps}"
        return [Run(cell, folder / f"seed-{seed}", seed, choice.rate, choice.steps) for seed in self.seeds]

    def runs(self, cells: Iterable[Cell]) -> list[Run]:
        """Every run of the cells, once; how many rates a search tries is known only when it is finished."""
        return list({run.folder: run for cell in cells for run in self._runs_of(cell)}.values())

    def _runs_of(self, cell: Cell) -> Iterator[Run]:
        reported = self.reported(cell)
        if cell.trains:
            searches = self.searches(cell)
            yield from (Run(cell, path, rate=rate) for rate, path in searches.items())
            if not reported and len(searches) == len(cell.bench.rates):  # one end or the other will be tried
                yield Run(cell, self.folder(cell) / "search")
        yield from reported or (Run(cell, self.folder(cell) / f"seed-{seed}", seed) for seed in self.seeds)


@dataclass(frozen=True)
class RateChoice:
    """The best evaluation of a search run."""

    rate: float
    steps: int
    value: float
    batch: int
    """Batch size of the search; half of the classes may not fill the cell's own."""
    at_the_limit: bool = False
    """The last of several evaluations was the best: more steps might be better still."""
    at_the_end: bool = False
    """The best rate is the lowest or highest tried: one beyond it might be better still."""


def _best(searches: dict[float, Path], own: Sequence[float]) -> RateChoice | None:
    """The best of finished searches; if equal, the one nearest to the bench's ``own`` rates. None before all are finished."""
    choices = [choice for rate, path in searches.items() if (choice := best_of(path, rate))]
    if len(choices) < len(searches):
        return None
    starts = [LADDER.index(rate) for rate in own]
    return max(choices, key=lambda one: (one.value, -min(abs(LADDER.index(one.rate) - start) for start in starts)))


def beyond(rates: Sequence[float], best: float) -> float | None:
    """The next learning rate to try if the best is the lowest or highest so far; otherwise None.

    Examples:
        >>> beyond([1e-4, 3e-4], 3e-4), beyond([1e-4, 3e-4], 1e-4), beyond([1e-4, 3e-4, 1e-3], 3e-4)
        (0.001, 3e-05, None)
    """
    place = LADDER.index(best)
    if best == max(rates):
        return LADDER[place + 1] if place + 1 < len(LADDER) else None
    return LADDER[place - 1] if best == min(rates) and place else None


def best_of(run: Path, rate: float) -> RateChoice | None:
    """The best evaluation of a finished search run; None for one that is not finished. One that diverged counts 0."""
    outcome, folder = outcome_of(run), RunFolder(run)
    if outcome is None:
        return RateChoice(rate, 1, 0.0, 0) if failure_of(run) else None
    evaluations = [line for line in folder.read_metrics() if line.get("split") == "val" and "r@1" in line]
    if not evaluations:
        raise DataError(f"{folder.metrics_file}: no evaluation of a finished run. Remove {run} to train it again.")
    best = max(evaluations, key=lambda line: (line["r@1"], -line["step"]))
    last = len(evaluations) > 1 and best["step"] == outcome["steps"]
    batch = int(folder.read_manifest().get("plan", {}).get("batch", 0))
    return RateChoice(rate, int(best["step"]), float(best["r@1"]), batch, last)


def outcome_of(run: Path) -> dict[str, Any] | None:
    """The outcome in a finished run's manifest."""
    outcome = RunFolder(run).read_manifest().get("outcome")
    return {"steps": 0, **outcome} if outcome else None


def failure_of(run: Path) -> str | None:
    """Why a run failed for good: its loss became NaN or infinite."""
    file = run / "failed.json"
    return str(read_json(file, dict).get("why", "it diverged")) if file.exists() else None
