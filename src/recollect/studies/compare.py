"""``compare_losses``: several losses on the same images, each at its own best learning rate, with the same budget.

A comparison has one cell per loss on a bench made from the user's data. ``protocol.py`` says which runs there are,
``runner.py`` executes and resumes them, ``summary.py`` reads the results.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.common.reading import parse_yaml
from recollect.config.automatic import PAPER_BATCH, choose_device, is_pretrained, resolve_auto
from recollect.config.resolve import resolve, with_data
from recollect.data import only_splits
from recollect.report.page import check_target
from recollect.studies.pages import write_comparison
from recollect.studies.protocol import LADDER, Bench, Cell, EqualImages, Matrix, Run, UntilValidation, usable_classes
from recollect.studies.runner import run_matrix
from recollect.studies.summary import LossComparison, PlannedComparison
from recollect.training.build import build, load_sets, make_loss, prepared
from recollect.training.trainer import plan

logger = logging.getLogger(__name__)
HEAD_STEPS = 1500
"""Maximum number of steps of a search on frozen features, where a step takes milliseconds."""
HEAD_IMAGES = 160_000
"""Maximum number of images that a run on frozen features sees, unless ten steps see more."""
_FIXED = ("loss.name", "loss.options", "run.seed", "optimizer.schedule", "optimizer.milestones", "optimizer.gamma")
"""Settings that would have no effect: the schedule of every run follows from the budget."""


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
        >>> comparison = compare_losses("recall_at_k,smooth_ap", settings=settings, minutes=0)
        >>> comparison.pairs[0].sentence
        'recall_at_k and smooth_ap have no finished seeds in common yet.'
    """
    planned = plan_comparison(
        losses, recipe, settings, data=data, root=root, out=out, seeds=seeds, steps=steps, timed=minutes != 0
    )
    for line in planned.lines():
        logger.info(line)
    planned.matrix.open()
    check_target(planned.matrix.out / "comparison.html", False, "recollect compare")  # before the runs, not after
    if minutes != 0:
        _compute_features(planned)
    complete = run_matrix(planned.matrix, planned.cells, jobs=jobs, minutes=minutes)
    if not complete:
        logger.info("left       some runs are not done: the same command resumes them")
    comparison = LossComparison.of(planned, complete)
    write_comparison(comparison)
    return comparison


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
    recipe, settings = with_data(recipe, settings, data, root)
    recipe, shared = recipe or "folder", dict(settings)
    if own := [key for key in shared if key.startswith(_FIXED)]:
        raise ConfigError(
            f"{own[0]} would have no effect: a comparison takes losses and seeds from --losses and --seeds, and sets the "
            "schedule by its budget. Remove it."
        )
    config = resolve(recipe, shared)
    named_losses = parse_losses(losses)
    train = load_sets(replace(config, run=replace(config.run, watch_test=False, verdict=False))).train
    device = choose_device(config.run.device)
    resolved, _ = resolve_auto(config, train, device, is_pretrained(config.model))
    batch, each = resolved.batch.size, resolved.batch.samples_per_class
    if not isinstance(batch, int):
        batch = each * max(2, min(usable_classes(resolved.batch, train.class_sizes), PAPER_BATCH // each))
    shared |= {"model.freeze": resolved.model.freeze, "loss.options": {}, "optimizer.milestones": []}
    if resolved.trains_on_features:
        # Counted in batches of the runs that are reported; those of the search may be smaller.
        most = min(steps or HEAD_STEPS, max(HEAD_IMAGES // batch, 10))
        budget: EqualImages | UntilValidation = UntilValidation(most, most * batch)
    else:
        epochs = resolved.run.epochs if isinstance(resolved.run.epochs, int) else 0
        batches = resolved.batch.batches_per_epoch or max(1, len(train) // batch)
        budget = EqualImages((steps or resolved.run.steps or epochs * batches) * batch)
        shared.setdefault("optimizer.warm_up", 0.1)
    rate = resolved.optimizer.lr if isinstance(resolved.optimizer.lr, float) else 1e-4
    nearest = min(range(len(LADDER)), key=lambda number: abs(math.log(LADDER[number] / rate)))
    first = max(0, nearest - 1)
    bench = Bench(
        name=_slug(f"{resolved.data.name}-{resolved.model.init}"),
        recipe=str(recipe),
        budget=budget,
        rates=LADDER[first : first + 2],  # the usual one and the next lower
        settings=shared,
    )
    cells = [_cell(bench, name, options, batch) for name, options in named_losses]
    if len({cell.name for cell in cells}) < len(cells):
        raise ConfigError("a loss is given twice: give each once, or with different options.")
    for cell in cells:
        # Report misspelt options now, not in the first run.
        make_loss(resolve(recipe, {**shared, **cell.settings}), len(train.class_names), max((64, *config.loss.dims)))
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in shared.items()}
    provenance = {"recipe": str(recipe), "settings": plain, "steps": steps, "images": train.fingerprint}
    matrix = Matrix(Path(out), tuple(range(1, seeds + 1)), provenance)
    starts = []  # each compared with the next, the losses with the first
    if resolved.model.whitening:
        starts.append(Cell(bench, "start", "the closed form", batch, trains=False))
    if is_pretrained(resolved.model):
        features = {"model.dim": None, "model.freeze": "none"}
        starts.append(Cell(bench, "init", "no training", batch, features, trains=False))
    pairs = [*itertools.combinations(cells, 2), *itertools.product(cells, starts[:1]), *itertools.pairwise(starts)]
    planned = PlannedComparison(matrix, [*cells, *starts], pairs, resolved, len(train), len(train.class_names))
    return _timed(planned) if timed and not all(run.done for run in matrix.runs(planned.cells)) else planned


def _timed(planned: PlannedComparison) -> PlannedComparison:
    """The plan with the cost of a run, the mean over the losses: for each the first run of its search is planned."""
    times = []
    for cell in planned.cells:
        if cell.trains:
            config = resolve(cell.bench.recipe, Run(cell, Path(), rate=cell.bench.rates[0]).settings())
            with only_splits(config.data.train_split):
                times.append(plan(config))
    return replace(
        planned,
        run_seconds=sum(time.seconds - time.seconds_features for time in times) / len(times),
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
    parsed = []
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
        parsed.append((name.strip(), options))
    return parsed


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


def _cell(bench: Bench, name: str, options: Mapping[str, Any], batch: int) -> Cell:
    """A loss as a cell; outside code is identified by its content, so that a changed file is trained again."""
    words = "" if not options else f"({', '.join(f'{key}={value}' for key, value in options.items())})"
    short, name_of_code = name, ""
    if plugins.is_reference(name) and (loaded := plugins.load("loss", name)) is not None:
        place, _, attribute = name.rpartition(":")
        short = f"{Path(place).name}:{attribute}"
        name_of_code = f"-{loaded.sha256[:8]}"
    settings = {"loss.name": name, "loss.options": dict(options)}
    return Cell(bench, _slug(f"{short}{words}") + name_of_code, short + words, batch, settings)


def _slug(text: str) -> str:
    """A folder name for a text; different texts get different names."""
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:60] or "loss"
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _compute_features(planned: PlannedComparison) -> None:
    """Compute features of a frozen part once, with a progress line, before concurrent runs would each compute them."""
    if not planned.config.trains_on_features or all(run.done for run in planned.matrix.runs(planned.cells)):
        return
    cell = planned.cells[0]
    run = Run(cell, Path(), seed=1, rate=cell.bench.rates[0], steps=1)
    with prepared(resolve(cell.bench.recipe, run.settings())) as setup:
        build(setup).close()
