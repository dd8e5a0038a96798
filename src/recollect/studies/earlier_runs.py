"""Runs of an earlier study, imported from the ``runs.jsonl`` of its page instead of being run again.

A record counts only for the cell, seed and learning rate that it names, and only if that run would have the same settings
today: runs of a bench that has changed since (such as another image size) are left out. Imported runs are marked on the
page, because an earlier version of the program made it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, DataError
from recollect.common.files import make_folder_for, write_json
from recollect.common.reading import parse_json, read_bytes
from recollect.studies.claims import Claim
from recollect.studies.matrix import RECORD, Matrix, Pending, pending

_ASIDE = {"data": ("root", "workers", "prefetch_mb"), "run": ("device", "checkpoint_minutes")}
"""Settings that say where and how fast, not what."""


def take_over(matrix: Matrix, claims: Sequence[Claim], file: Path) -> tuple[int, int]:
    """Copy the matching records into the study's folder; returns how many were imported and how many did not match.

    Args:
        matrix: the study.
        claims: whose runs to look for.
        file: ``runs.jsonl`` of an earlier page.

    Raises:
        DataError: not such a file.
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
    from recollect.config.overrides import as_mapping, from_mapping, resolve

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
    try:
        before = as_mapping(from_mapping(record["settings"], "an earlier run"))
        batch, seed, steps = before["batch"]["size"], before["run"]["seed"], before["run"]["steps"]
        searching = run.folder.parent.name == "search"
        if cell.trains:
            # A search may have a smaller batch than its cell: half of the classes may not fill it.
            given = matrix.settings(
                run.bench,
                cell if not searching else replace(cell, batch=batch),
                seed=seed,
                rate=before["optimizer"]["lr"],
                steps=None if searching else steps,
            )
        else:
            given = {**run.bench.settings, **cell.settings, "model.dim": None, "run.seed": seed}
        return _what(as_mapping(resolve(run.bench.recipe, given))) == _what(before)
    except (ConfigError, KeyError, TypeError):
        return False


def _what(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run as plain values, without those that do not change its result."""
    kept = {
        group: {name: value for name, value in values.items() if name not in _ASIDE.get(group, ())}
        for group, values in settings.items()
        if isinstance(values, Mapping) and group != "published"
    }
    return dict(json.loads(json.dumps(kept, default=list)))
