"""Runs that differ only in the seed, taken together: what is compared is a setting, not one of its runs.

Settings that a training chose by trials on validation classes may differ between seeds too. Such runs are of one setting: the
choice is a part of what is compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import stdev

import numpy as np

from recollect.report.measured import Contender
from recollect.report.outcome_tables import flat_settings
from recollect.report.runs import Run

_SPREAD = ("r@1", "map@r")
_BY_TRIALS = ("model.shrinkage", "optimizer.lr", "run.epochs", "run.steps")
_LENGTH = {"run.epochs", "run.steps"}  # one replaces the other


def settings_of(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Runs by setting, in the order of their first run; the name of a setting is what the names of its runs begin with."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(str(sorted(_asked(run).items())), []).append(run)
    named = [(_name([run.name for run in group]), group) for group in groups.values()]
    names = [name for name, _ in named]
    # If two settings would have the same name, the first run's tells them apart.
    return [(name if names.count(name) == 1 else f"{group[0].name}, …", group) for name, group in named]


def _asked(run: Run) -> dict[str, str]:
    """The settings as the user asked for them: what was chosen by trials is "auto"."""
    made = run.manifest.get("choices")
    chosen = {str(choice).split(" = ")[0] for choice in made} if isinstance(made, list) else set[str]()
    if chosen & _LENGTH:
        chosen |= _LENGTH
    chosen &= {*_BY_TRIALS}
    asked = flat_settings(run.settings, without=("run.seed", "name", *chosen)) | dict.fromkeys(chosen, "auto")
    return asked | {"the training images": run.trained_on}


def mean_over_seeds(runs: Sequence[Run], contenders: Sequence[Contender]) -> list[Contender]:
    """``contenders`` with every setting that was run with several seeds as one: the mean of each query over its runs."""
    trained = {one.name: one for one in contenders if one.trained}
    found = [one for one in contenders if not one.trained]
    for name, group in settings_of(runs):
        members = [trained.pop(run.name) for run in group if run.name in trained]
        found += members if len(members) < 2 else [_mean(name, members)]
    return [*found, *trained.values()]


def one_per_setting(runs: Sequence[Run], contenders: Sequence[Contender]) -> list[Contender]:
    """``contenders`` without the second and later seeds of a setting, which would look alike in pictures."""
    again = {run.name for _, group in settings_of(runs) for run in group[1:]}
    return [one for one in contenders if not (one.trained and one.name in again)]


def _mean(name: str, members: Sequence[Contender]) -> Contender:
    first = members[0]
    common = [
        metric for metric in first.evaluation.per_query if all(metric in one.evaluation.per_query for one in members)
    ]
    if all(np.array_equal(first.vectors, one.vectors) for one in members[1:]):
        what = "all with the same vectors: the seed has no effect with these settings"
        return replace(first, name=f"{name} ({len(members)} seeds)", what=what)
    values = {metric: np.stack([one.evaluation.per_query[metric] for one in members]).mean(axis=0) for metric in common}
    return replace(
        first,
        name=f"{name} ({len(members)} seeds)",
        what="mean ± standard deviation over seeds",
        evaluation=replace(first.evaluation, per_query=values),
        steps=None if any(one.steps is None for one in members) else max(one.steps or 0 for one in members),
        spread={metric: stdev(one.evaluation.metrics[metric] for one in members) for metric in _SPREAD},
    )


def _name(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    shortest = min(names, key=len)
    length = next((n for n, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), len(shortest))
    common = re.sub(r"([-_./ ]*seeds?)?[-_./ ]*$", "", shortest[:length].rstrip("0123456789"))
    return common or f"{names[0]} and {len(names) - 1} more"
