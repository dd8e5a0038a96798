"""``compare_losses``: several losses on the same images, each at its own best learning rate, with the same budget.

A comparison has one cell per loss on a bench made from the user's data. Search, seeds, resuming
and judgement are those of the paper's claims (``matrix.py``, ``matrix_runs.py``, ``summary.py``).
"""

from __future__ import annotations

import itertools
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recollect.common import doors
from recollect.common.errors import ConfigError
from recollect.common.words import in_decimals, in_words
from recollect.common.yaml_text import parse_yaml
from recollect.config.automatic import PAPER_BATCH, choose_device, is_pretrained, settle
from recollect.config.overrides import resolve, with_data
from recollect.config.schema import Config
from recollect.studies.benches import Bench, EqualImages, UntilValidation
from recollect.studies.claims import Cell, Claim, Contrast, Curve
from recollect.studies.claims_plan import runs_and_time
from recollect.studies.matrix import LADDER, Matrix, first_searches, pending
from recollect.studies.matrix_runs import run_matrix
from recollect.studies.summary import CellResult, Judged, collect, interval, judge

logger = logging.getLogger(__name__)
HEAD_STEPS = 1500
"""Maximum number of steps of a search on frozen features, where a step takes milliseconds."""
HEAD_IMAGES = 160_000
"""Maximum number of images that a run on frozen features sees, unless ten steps see more."""
_NO_STEP = {
    "run.steps": 0,
    "run.epochs": None,
    "run.head_steps": 0,
    "run.evaluate_first": True,
    "run.watch_test": True,
    "run.verdict": False,
    "data.validation": "none",
}
"""Settings of a run that only sets the last layer to its closed form, and measures it."""


@dataclass(frozen=True)
class PlannedComparison:
    """The plan of a comparison: a matrix of runs, and the claim that collects them."""

    matrix: Matrix
    claim: Claim
    config: Config
    """Resolved settings of the first loss."""
    train_images: int
    train_classes: int
    feature_seconds: float = 0.0
    """Approximate time to compute the features of the training images, which is done once."""

    @property
    def batches(self) -> str:
        """The batch sizes of the runs and of their search, in words."""
        bench = self.claim.bench
        searched = self.matrix.search_batch(bench, self.claim.cells()[0])
        smaller = f"; {searched:,} in the search, as half of the training classes fill no more"
        return f"{bench.batch:,} images{smaller if searched < bench.batch else ''}"

    def lines(self) -> list[str]:
        """The plan in words, one line each."""
        bench = self.claim.bench
        frozen = self.config.model.freeze
        network = self.config.model.init + (
            ", the whole network is trained" if frozen == "none" else f", frozen up to {frozen}, computed once"
        )
        return [
            f"data       {self.config.data.title}: {self.train_images:,} training images of {self.train_classes:,} classes",
            f"network    {network}",
            f"losses     {', '.join(cell.label for cell in self.claim.cells() if cell.trains)}",
            f"batch      {self.batches}",
            f"budget     {bench.budget.words('small')}",
            f"rates      {' and '.join(f'{rate:g}' for rate in bench.rates)} first; more while the best is at an end",
            *runs_and_time(self.matrix, [self.claim], "measured on a few images"),
            *(
                [f"features   about {in_words(self.feature_seconds)}, once before training"]
                if self.feature_seconds > 1
                else []
            ),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, e.g. for ``--json``."""
        bench, runs = self.claim.bench, pending(self.matrix, [self.claim])
        left = [run for run in runs if not run.done]
        return {
            "data": self.config.data.title,
            "train": {"classes": self.train_classes, "images": self.train_images},
            "init": self.config.model.init,
            "freeze": self.config.model.freeze,
            "losses": [cell.label for cell in self.claim.cells() if cell.trains],
            "batch": bench.batch,
            "budget": bench.budget.words("small"),
            "first_rates": list(bench.rates),
            "runs": len(runs),
            "runs_done": len(runs) - len(left),
            "seconds": sum(run.bench.seconds(self.matrix.budget) for run in left),
            "seconds_features": self.feature_seconds,
        }


@dataclass(frozen=True)
class PairOfLosses:
    """Two losses and their difference over the runs."""

    first: str
    second: str
    judged: Judged

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        a, b, found = self.first, self.second, self.judged.differences
        if not found:
            return f"{a} and {b} have no finished seeds in common yet."
        middle, half = interval(found)
        seeds = f"{len(found)} seed{'s' if len(found) > 1 else ''}"
        if math.isinf(half) or (self.judged.verdict == "undecided" and len(found) < 3):
            return f"{a} and {b} differ by {_points(middle)} points of r@1 over {seeds}: too few seeds to decide."
        low, high = middle - half, middle + half
        if self.judged.verdict == "undecided":
            return (
                f"{a} and {b} cannot be distinguished here: the difference is {_points(middle)} points of r@1, 90 % interval "
                f"{_points(low)} to {_points(high)}, {seeds}."
            )
        if middle < 0:
            a, b, low, high = b, a, -high, -low
        return (
            f"{a} finds more than {b}: {abs(middle):.1f} points of r@1, 90 % interval {low:.1f} to {high:.1f}, {seeds}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        found = self.judged.differences
        middle, half = interval(found) if found else (None, None)
        return {
            "first": self.first,
            "second": self.second,
            "difference": middle,
            "half_width_90": None if half is None or math.isinf(half) else half,
            "by_seed": list(found),
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class LossComparison:
    """The results of a comparison, as far as runs are finished.

    Attributes:
        planned: the plan. complete: whether every run is done.
        results: one per loss, one for the closed form if the last layer starts from it, and one for the network without
            training if it is pre-trained.
        pairs: every pair of losses, each loss and what it starts from, and the closed form and the network without training.
        page: the HTML page.
    """

    planned: PlannedComparison
    complete: bool
    results: Sequence[CellResult]
    pairs: Sequence[PairOfLosses]
    page: Path

    def as_dict(self) -> dict[str, Any]:
        """Plain values, e.g. for ``--json``."""
        return {
            "complete": self.complete,
            "page": str(self.page),
            "losses": [_plain(result) for result in self.results],
            "pairs": [pair.as_dict() for pair in self.pairs],
        }


def half_width(result: CellResult) -> float | None:
    """Half of the 90 % interval of r@1; None for a single value, and without a step if every seed has the same."""
    values = list(result.by_seed.values())
    if len(values) < 2 or not (result.cell.trains or len(set(values)) > 1):
        return None
    return interval(values)[1]


def _plain(result: CellResult) -> dict[str, Any]:
    choice = result.choice
    return {
        "loss": result.cell.label,
        "r@1": result.mean,
        "half_width_90": half_width(result),
        "by_seed": result.by_seed,
        "metrics": dict(result.metrics),
        "learning_rate": None if choice is None else choice.rate,
        "steps": result.steps,
        "batch": result.cell.batch,
        "search_batch": None if choice is None else choice.batch,
        "images": None if result.steps is None else result.steps * result.cell.batch,
        "processor_seconds": result.processor_seconds,
        "searched_processor_seconds": result.searched_seconds,
        "failures": list(result.failures),
    }


def compare_losses(
    losses: str | Sequence[str],
    recipe: str | Path | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    out: Path | str = "runs/compare",
    seeds: int = 3,
    steps: int | None = None,
    jobs: int | None = None,
    minutes: float | None = None,
) -> LossComparison:
    """Train each loss at its own best learning rate, several seeds each, and compare them on test classes.

    The learning rate of each loss (and on frozen features its number of steps) is chosen on validation classes; all see at
    most the same number of images. Runs that are finished are not repeated: the same call resumes an interrupted one.

    Args:
        losses: names, references such as ``my.py:MyLoss``, each possibly with options: ``recall_at_k(simix=true)``.
        recipe: everything except the loss, by default ``folder``. settings: changes to it. data, root: see ``resolve``.
        out: folder of the runs, of ``comparison.html`` and ``comparison.json``.
        seeds: runs per loss that are reported.
        steps: maximum number of steps of a run; by default 1,500 on frozen features, otherwise the recipe's.
        jobs: runs at a time; by default one per core, or one with a GPU.
        minutes: start no new run after this many minutes; 0 only writes the page.

    Raises:
        ConfigError: an unknown loss or option, or ``out`` contains something else.

    Example:
        With ``minutes=0`` nothing is trained yet; without it, this takes a few minutes.

        >>> settings = {"data.root": "photos", "model.init": "tiny", "run.epochs": 2}
        >>> found = compare_losses("recall_at_k,smooth_ap", settings=settings, minutes=0)
        >>> found.pairs[0].sentence
        'recall_at_k and smooth_ap have no finished seeds in common yet.'
    """
    from recollect.studies.compared_losses_page import check_page, write_comparison

    planned = plan_comparison(
        losses, recipe, settings, data=data, root=root, out=out, seeds=seeds, steps=steps, timed=minutes != 0
    )
    for line in planned.lines():
        logger.info(line)
    planned.matrix.open()
    check_page(planned)  # before the runs, not after
    if minutes != 0:
        _compute_features(planned)
    complete = run_matrix(planned.matrix, [planned.claim], jobs=jobs, minutes=minutes)
    if not complete:
        logger.info("left       some runs are not done: the same command resumes them")
    return write_comparison(planned, complete)


def plan_comparison(
    losses: str | Sequence[str],
    recipe: str | Path | None = None,
    settings: Mapping[str, Any] | Iterable[str] = (),
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    out: Path | str = "runs/compare",
    seeds: int = 3,
    steps: int | None = None,
    timed: bool = True,
) -> PlannedComparison:
    """The plan of ``compare_losses`` for these arguments; ``lines()`` returns it as text.

    Loads the list of training images and makes every loss once.

    Args:
        losses, recipe, settings, data, root, out, seeds, steps: as for ``compare_losses``.
        timed: measure a few images to tell how long it takes.

    Example:
        >>> planned = plan_comparison("recall_at_k,smooth_ap", data="photos", settings={"model.init": "tiny"}, timed=False)
        >>> [line for line in planned.lines() if line.startswith("losses")]
        ['losses     recall_at_k, smooth_ap']
    """
    from recollect.training.build import load_sets, make_loss

    recipe, chosen_settings = with_data(recipe, settings, data, root)
    recipe = recipe or "folder"
    if own := [key for key in chosen_settings if key.startswith(("loss.name", "loss.options", "run.seed"))]:
        raise ConfigError(f"{own[0]} would have no effect: a comparison takes it from --losses and --seeds. Remove it.")
    given = dict(chosen_settings)
    config = resolve(recipe, given)
    chosen = parse_losses(losses)
    train = load_sets(replace(config, run=replace(config.run, watch_test=False, verdict=False))).train
    device = choose_device(config.run.device)
    settled, _ = settle(config, train, device, is_pretrained(config.model))
    batch = _batch(settled, train.class_sizes)
    frozen = settled.model.freeze != "none"
    given |= {"model.freeze": settled.model.freeze, "loss.options": {}}
    if frozen:
        # Counted in batches of the runs that are reported; those of the search may be smaller.
        most = min(steps or HEAD_STEPS, max(HEAD_IMAGES // batch, 10))
        budget: EqualImages | UntilValidation = UntilValidation(most, most, most * batch)
    else:
        epochs = settled.run.epochs if isinstance(settled.run.epochs, int) else 0
        each = settled.batch.batches_per_epoch or max(1, len(train) // batch)
        images = (steps or settled.run.steps or epochs * each) * batch
        budget = EqualImages(images, images)
        given.setdefault("optimizer.warm_up", 0.1)
        given |= {"optimizer.milestones": []}
    cells = [_cell(name, options, batch) for name, options in chosen]
    if len({cell.name for cell in cells}) < len(cells):
        raise ConfigError("a loss is given twice: give each once, or with different options.")
    for cell in cells:
        # Report misspelt options now, not in the first run.
        make_loss(resolve(recipe, {**given, **cell.settings}), len(train.class_names), max((64, *config.loss.dims)))
    rate = settled.optimizer.lr if isinstance(settled.optimizer.lr, float) else 1e-4
    bench = Bench(
        name=_slug(f"{settled.data.name}-{settled.model.init}"),
        title=f"{settled.data.name}, {settled.model.init}",
        recipe=str(recipe),
        budget=budget,
        batch=batch,
        batches=(batch,),
        rates=_first_rates(rate),
        settings=given,
    )
    about = {"recipe": str(recipe), "settings": _json_ready(given), "steps": steps, "images": train.fingerprint}
    matrix = Matrix(Path(out), "small", None, tuple(range(1, seeds + 1)), about)
    starts = []  # each compared with the next, the losses with the first
    if settled.model.whitening:
        starts.append(Cell("start", "the closed form", batch, _NO_STEP, trains=False))
    if is_pretrained(settled.model):
        starts.append(Cell("init", "no training", batch, {"model.dim": None}, trains=False))
    pairs = [*itertools.combinations(cells, 2), *itertools.product(cells, starts[:1]), *itertools.pairwise(starts)]
    contrasts = [Contrast(f"{a.label} beats {b.label}", [(1, a), (-1, b)], claimed=False) for a, b in pairs]
    points = [(cell.label, cell) for cell in [*cells, *starts]]
    claim = Claim("losses", "Losses compared", "", bench, "loss", [Curve("r@1", points)], contrasts)
    planned = PlannedComparison(matrix, claim, settled, len(train), len(train.class_names))
    return _timed(planned) if timed and any(not run.done for run in pending(matrix, [claim])) else planned


def _timed(planned: PlannedComparison) -> PlannedComparison:
    """The plan with the cost of a run, the mean over the losses: for each the first run of its search is planned."""
    from recollect.data import only_splits
    from recollect.training.trainer import plan

    claim, times = planned.claim, []
    for task in first_searches(planned.matrix, claim):
        config = resolve(task.recipe, task.settings)
        with only_splits(config.data.train_split):
            times.append(plan(config)[0].time)
    cost = sum(time.seconds - time.seconds_features for time in times) / len(times)
    return replace(
        planned,
        claim=replace(claim, bench=replace(claim.bench, cost=cost)),
        feature_seconds=max(time.seconds_features for time in times),
    )


def parse_losses(losses: str | Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Parse losses as given by a user into names and options.

    Example:
        >>> parse_losses("recall_at_k(simix=true, k=[1, 2]),smooth_ap")
        [('recall_at_k', {'simix': True, 'k': [1, 2]}), ('smooth_ap', {})]

    Raises:
        ConfigError: no loss, or options that cannot be read.
    """
    listed = _split(losses) if isinstance(losses, str) else [part for text in losses for part in _split(text)]
    if not listed:
        raise ConfigError("give at least one loss, e.g. --losses recall_at_k,smooth_ap; recollect losses lists them.")
    found = []
    for text in listed:
        name, opened, rest = text.partition("(")
        if opened and not rest.endswith(")"):
            raise ConfigError(f"{text!r}: put options in parentheses, such as recall_at_k(simix=true,tau1=2).")
        options = {}
        for option in _split(rest[:-1]) if opened else []:
            key, equals, value = option.partition("=")
            if not equals:
                raise ConfigError(f"{text!r}: {option!r} is not an option: write name=value.")
            options[key.strip()] = parse_yaml(value, f"the option {option!r}")
        found.append((name.strip(), options))
    return found


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses and brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _cell(name: str, options: Mapping[str, Any], batch: int) -> Cell:
    """A loss as a cell; outside code is identified by its content, so that a changed file is trained again."""
    words = "" if not options else f"({', '.join(f'{key}={value}' for key, value in options.items())})"
    short = name
    if doors.is_reference(name):
        place, _, attribute = name.rpartition(":")
        short = f"{Path(place).name}:{attribute}"
        name_of_code = f"-{doors.load(name, 'loss').sha256[:8]}"
    else:
        name_of_code = ""
    return Cell(
        _slug(f"{short}{words}") + name_of_code,
        short + words,
        batch,
        {"loss.name": name, "loss.options": dict(options)},
    )


def _slug(text: str) -> str:
    """A folder name for a text; different texts get different names."""
    import hashlib

    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:60] or "loss"
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _batch(settled: Config, sizes: Any) -> int:
    if isinstance(settled.batch.size, int):
        return settled.batch.size
    each = settled.batch.samples_per_class
    usable = int((sizes >= (each if settled.batch.small_classes == "drop" else 1)).sum())
    return each * max(2, min(usable, PAPER_BATCH // each))


def _first_rates(rate: float) -> tuple[float, ...]:
    """The two learning rates that a search starts with: the usual one and the next lower."""
    place = min(range(len(LADDER)), key=lambda number: abs(math.log(LADDER[number] / rate)))
    return LADDER[max(0, place - 1) : max(0, place - 1) + 2]


def _json_ready(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _compute_features(planned: PlannedComparison) -> None:
    """Compute features of a frozen part once, with a progress line, before concurrent runs would each compute them."""
    if planned.config.model.freeze == "none" or all(run.done for run in pending(planned.matrix, [planned.claim])):
        return
    from recollect.training.build import built

    bench = planned.claim.bench
    cell = next(cell for cell in planned.claim.cells() if cell.trains)
    settings = planned.matrix.settings(bench, cell, seed=1, rate=bench.rates[0], steps=1)
    with built(resolve(bench.recipe, settings)) as training:
        training.prepare()


def _points(difference: float) -> str:
    return in_decimals(difference, 1, plus=True)


def summarise(planned: PlannedComparison) -> tuple[list[CellResult], list[PairOfLosses]]:
    """The results of a comparison so far."""
    found = collect(planned.matrix, planned.claim)
    pairs = [
        PairOfLosses(contrast.terms[0][1].label, contrast.terms[1][1].label, judge(contrast, found))
        for contrast in planned.claim.contrasts
    ]
    return list(found.values()), pairs


def spent(results: Iterable[CellResult]) -> str:
    """Processor time of everything, in words."""
    total = sum((r.processor_seconds or 0) * len(r.by_seed) + (r.searched_seconds or 0) for r in results)
    return in_words(total)
