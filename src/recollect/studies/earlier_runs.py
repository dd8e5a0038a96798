"""Runs of an earlier study, imported from the ``runs.jsonl`` of its page instead of being run again.

A record counts only for the cell, seed and learning rate that it names, and only if that run would have the same settings
today: runs of a bench that has changed since (such as another image size) are left out. Settings that are found
automatically are compared as found. Imported runs are marked on the page if another version of the program made them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.common.errors import ConfigError, DataError
from recollect.common.files import make_folder_for, write_json
from recollect.common.reading import parse_json, read_bytes
from recollect.studies.claims import Claim
from recollect.studies.matrix import RECORD, Matrix, Pending, chosen_in, pending

if TYPE_CHECKING:
    from recollect.config.schema import Config
    from recollect.data import ImageSet

_ASIDE = {
    "data": ("root", "workers", "prefetch_mb"),
    "data.options": ("class_split",),  # a bench's folder has train and test, so no rule divides its classes
    "run": ("device", "checkpoint_minutes"),
}
"""Settings that affect where and how fast a run is done, not its result."""


def take_over(matrix: Matrix, claims: Sequence[Claim], file: Path) -> tuple[int, int]:
    """Copy the matching records into the study's folder; returns how many were imported and how many did not match.

    Args:
        matrix: the study.
        claims: the claims whose runs are imported.
        file: ``runs.jsonl`` of an earlier page.

    Raises:
        DataError: the file has another format.
    """
    records = {str(record["run"]): record for record in _read(file)}
    taken: set[str] = set()
    while True:  # a finished search determines further runs
        found = [run for run in pending(matrix, claims) if not run.done and _name(matrix, run) in records]
        new = [run for run in found if _fits(matrix, claims, run, records[_name(matrix, run)])]
        if not new:
            return len(taken), len(records) - len(taken)
        for run in new:
            make_folder_for(run.folder / RECORD)
            write_json(run.folder / RECORD, records[_name(matrix, run)])
            taken.add(_name(matrix, run))


def _read(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_bytes(file).decode("utf-8", "replace").splitlines(), 1):
        record = parse_json(line, f"{file}, line {number}", dict)
        if not {"run", "settings", "metrics", "chosen_step"} <= record.keys():
            raise DataError(f"{file}, line {number}: not a run of a study's page.")
        yield record


def _name(matrix: Matrix, run: Pending) -> str:
    return run.folder.relative_to(matrix.out / "runs").as_posix()


def _fits(matrix: Matrix, claims: Sequence[Claim], run: Pending, record: Mapping[str, Any]) -> bool:
    """Whether the run would have the record's settings today."""
    from recollect.config.overrides import from_mapping, resolve

    cell = next(
        (
            cell
            for claim in claims
            if claim.bench is run.bench
            for cell in claim.cells()
            if run.folder.is_relative_to(matrix.folder(run.bench, cell))
        ),
        None,
    )
    if cell is None:
        return False
    images = _training_images(run.bench.recipe, json.dumps(run.bench.settings_with(matrix.data)))
    try:
        before = from_mapping(record["settings"], "an earlier run")
        seed, steps = before.run.seed, before.run.steps
        searching = run.folder.parent.name == "search"
        if searching and chosen_in(record) is None:
            return False  # the search would go on from another rate than it did
        if cell.trains:
            rate = float(before.optimizer.lr)
            given = matrix.settings(run.bench, cell, seed=seed, rate=rate, steps=None if searching else steps)
        else:
            given = {**run.bench.settings, **cell.settings, "run.seed": seed}
        return _what(resolve(run.bench.recipe, given), images) == _what(before, images)
    except (ConfigError, KeyError, TypeError, ValueError):
        return False


@cache
def _training_images(recipe: str, settings: str) -> ImageSet:
    from recollect.config.overrides import resolve
    from recollect.data import load

    config = resolve(recipe, json.loads(settings))
    return load(config.data.name, config.data.root, config.data.train_split, **config.data.options)


def _what(config: Config, images: ImageSet) -> dict[str, Any]:
    """The settings of a run as plain values, automatic ones as found, without those that do not change its result."""
    from recollect.config.automatic import choose_device, is_pretrained, settle
    from recollect.config.overrides import as_mapping

    settled, _ = settle(config, images, choose_device(config.run.device), is_pretrained(config.model))
    groups = {name: dict(values) for name, values in as_mapping(settled).items() if isinstance(values, Mapping)}
    groups["data.options"] = groups["data"].pop("options")
    kept = {
        group: {name: value for name, value in values.items() if name not in _ASIDE.get(group, ())}
        for group, values in groups.items()
        if group != "published"
    }
    return dict(json.loads(json.dumps(kept, default=list)))
