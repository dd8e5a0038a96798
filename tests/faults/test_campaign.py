"""The fault campaign: kills, full disks, damaged files, hostile inputs and values, drawn from a seed and counted.

Every run of the tests does a sample. The whole, more than two thousand trials, with a table of what was found:

    pytest -m faults -n 2 tests/faults

``RECOLLECT_TRIALS`` and ``RECOLLECT_SEED`` choose how many and which. A trial depends only on the seed, its family and its
number, so it can be done again alone, as the list of defects names it:

    RECOLLECT_SEED=1 RECOLLECT_ONLY="killed 17, signalled 203" pytest -m faults tests/faults
"""

from __future__ import annotations

import inspect
import json
import os
import random
import sys
from collections.abc import Callable

import pytest

from faults.conftest import World
from faults.files_of_others import (
    damaged_cache,
    damaged_index,
    damaged_run,
    damaged_study,
    damaged_vectors,
    hostile_images,
    hostile_lists,
)
from faults.interruptions import MOMENTS, full_disk, killed, refused, signalled, two_at_once
from faults.trials import Tally
from faults.values import hostile_recipe, odd_call, odd_option, odd_setting
from faults.verbs import VERBS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks, signals and pipes of Unix")

Family = Callable[..., None]
PARTS = 24
"""The whole campaign is cut into so many parts, which several test processes share. Small ones, so that none waits long."""

FAMILIES: dict[Family, tuple[int, int]] = {
    damaged_run: (4, 400),
    damaged_vectors: (2, 120),
    damaged_index: (2, 100),
    damaged_cache: (1, 40),
    damaged_study: (1, 120),
    hostile_images: (3, 150),
    hostile_lists: (2, 60),
    hostile_recipe: (6, 200),
    odd_setting: (6, 300),
    odd_option: (4, 300),
    odd_call: (10, 400),
    killed: (2, 120),
    refused: (1, 70),
    signalled: (4, 2 * MOMENTS * len(VERBS)),
    full_disk: (1, 50),
    two_at_once: (1, 40),
}
"""Trials of each family: in the sample of every run, and in the whole. Some trials are counted twice: two commands."""


def _campaign(world: World, trials: list[tuple[Family, int]], seed: int) -> Tally:
    tally = Tally()
    for done, (family, number) in enumerate(trials, 1):
        tally.trial = f"{family.__name__} {number}"
        more = {"number": number} if "number" in inspect.signature(family).parameters else {}
        try:
            family(world, random.Random(f"{seed} {family.__name__} {number}"), tally, **more)
        except Exception as error:  # of the trial itself, e.g. a result that is not there
            tally.note(family.__name__, f"trial {number}", ("lost", f"{type(error).__name__}: {error}"), "done", 0)
        if done % 20 == 0 or done == len(trials):
            name = f"tally-{trials[0][0].__name__}-{trials[0][1]}.txt"
            (world.folder / name).write_text(f"after {done} of {len(trials)} trials\n{tally}\n")
    return tally


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_a_sample(world: World, family: Family) -> None:
    step = 7  # of signals: other verbs than the first
    tally = _campaign(world, [(family, step * number) for number in range(FAMILIES[family][0])], seed=0)
    assert not tally.defects, str(tally)


@pytest.mark.faults
@pytest.mark.parametrize("part", range(PARTS))
def test_the_whole_campaign(world: World, part: int, record_property: Callable[[str, object], None]) -> None:
    seed = int(os.environ.get("RECOLLECT_SEED", "1"))
    trials = _chosen(os.environ.get("RECOLLECT_ONLY", ""), os.environ.get("RECOLLECT_TRIALS"))
    # Mixed, so that a part of a campaign says something of each family.
    random.Random(seed).shuffle(trials)
    if not trials[part::PARTS]:
        pytest.skip("fewer trials than parts")
    tally = _campaign(world, trials[part::PARTS], seed)
    record_property("tally", json.dumps(tally.as_dict()))
    assert not tally.defects, str(tally)


def _chosen(only: str, count: str | None) -> list[tuple[Family, int]]:
    """Trials by family and number: those named by ``only`` (a family alone means all of it), or a share of all."""
    whole = sum(each for _, each in FAMILIES.values())
    share = int(count or whole) / whole
    every = [
        (family, number) for family, (_, each) in FAMILIES.items() for number in range(max(1, round(share * each)))
    ]
    if not only:
        return every
    names = {family.__name__: family for family in FAMILIES}
    found = []
    for name, _, number in (trial.strip().partition(" ") for trial in only.split(",")):
        chosen = names[name]
        found += [(chosen, int(number))] if number else [trial for trial in every if trial[0] is chosen]
    return found


def test_trials_are_found_by_name() -> None:
    assert _chosen("killed 17, damaged_run 3", None) == [(killed, 17), (damaged_run, 3)]
    assert {family for family, _ in _chosen("refused", "1000")} == {refused}
