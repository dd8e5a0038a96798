"""Reads a run folder for a report: missing or damaged files become remarks.

A report is most useful when something failed, so only a folder that is not a run is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recollect.common.errors import RecollectError
from recollect.common.reading import read_json, read_yaml
from recollect.common.text import number_of
from recollect.config.schema import Config
from recollect.training.run_folder import RunFolder


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

    @property
    def finished(self) -> bool:
        """Whether it finished."""
        return isinstance(self.manifest.get("outcome"), Mapping)

    @property
    def steps_taken(self) -> int | None:
        """The number of steps of a finished run; None if it is not known."""
        outcome = self.manifest.get("outcome")
        found = number(outcome.get("steps")) if isinstance(outcome, Mapping) else None
        return None if found is None else int(found)

    @property
    def trained_on(self) -> str:
        """Fingerprint of the training images: a folder may change between runs with equal settings. "" if not known."""
        data = self.manifest.get("data")
        found = data.get("fingerprints") if isinstance(data, Mapping) else None
        return str(found.get("train", "")) if isinstance(found, Mapping) else ""

    @property
    def status(self) -> str:
        """Its state in a few words."""
        if self.finished:
            return "finished"
        if self.folder.stopped.is_dir():
            return "stopped by a loss that was NaN or infinite"
        return f"not finished (step {self.steps[-1]['step']:,})" if self.steps else "no step taken"

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
    settings = _settings(folder, remarks)
    config = None
    try:
        config = folder.read_config()
    except RecollectError as error:
        remarks.append(f"This version of recollect cannot read the settings, so nothing can be embedded: {error}")
    manifest: Any = {}
    try:
        manifest = folder.read_manifest()
    except RecollectError as error:
        remarks.append(f"manifest.json cannot be read: {error}")
    steps, evaluations = _records(folder, remarks)
    return Run(
        name=folder.path.resolve().name,
        folder=folder,
        config=config,
        settings=settings,
        manifest=manifest,
        steps=steps,
        evaluations=evaluations,
        evaluated=_evaluated(folder, remarks),
        remarks=remarks,
    )


def distinct_names(runs: list[Run]) -> list[str]:
    """A name for each run that no other has: the folder's, or as much of the end of its path as it takes."""
    paths = [run.folder.path.resolve().parts for run in runs]
    for length in range(1, max(map(len, paths), default=0) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{run.name} ({number})" for number, run in enumerate(runs, 1)]


def _settings(folder: RunFolder, remarks: list[str]) -> Mapping[str, Any]:
    values = read_yaml(folder.config_file)
    if isinstance(values, Mapping):
        return values
    remarks.append("config.yaml contains no settings.")
    return {}


def _records(folder: RunFolder, remarks: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    steps: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    try:
        for record in folder.read_metrics(remarks.append):
            (steps if record["kind"] == "step" else evaluations).append(record)
    except RecollectError as error:
        remarks.append(f"metrics.jsonl cannot be read: {error}")
    return steps, evaluations


def _evaluated(folder: RunFolder, remarks: list[str]) -> dict[str, dict[str, float]]:
    found = {}
    for path in sorted((folder.path / "eval").glob("*/metrics.json")):
        try:
            values = read_json(path, dict)
            metrics, source = values["metrics"], values.get("source", {})
            seen = source.get("trained_classes") and not source.get("trained_classes_excluded")
            queries = number(values.get("queries"))
            notes = ["" if queries is None else number_of(int(queries), "query/queries")]
            notes += ["classes it was trained on"] if seen else []
            said = ", ".join(filter(None, notes))
            found[f"{path.parent.name} ({said})" if said else path.parent.name] = {
                str(name): float(value) for name, value in metrics.items() if number(value) is not None
            }
        except (RecollectError, KeyError, TypeError, AttributeError) as error:
            remarks.append(f"{path.name} of {path.parent.name} is not a result of recollect eval: {error}")
    return found


def number(value: Any) -> float | None:
    """``value`` if it is a finite number."""
    # Not math.isfinite, which fails for an integer too large for a float.
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_one else None
