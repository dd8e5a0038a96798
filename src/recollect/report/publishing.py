"""A finished run as a repository of the Hugging Face Hub: the embedder's two files, its settings, and a model card.

``publish`` writes a folder, loads it again to check that it gives the run's vectors, and uploads it; without the upload it
needs no network. Names in the card come from the user's data and are escaped. No path of this machine is written.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from recollect._version import __version__
from recollect.common.errors import DataError, InputError, RecollectError, in_one_line, require
from recollect.common.files import new_folder, write_text
from recollect.config.resolve import as_mapping, short_names
from recollect.config.schema import Config
from recollect.inference.models import open_model
from recollect.models import Embedder
from recollect.models.saving import DESCRIPTION, TENSORS, endpoint, parse_address
from recollect.report.markup import Markup, one_line, render
from recollect.report.results import Run, read_run

logger = logging.getLogger(__name__)
CARD, SETTINGS = "README.md", "training.yaml"
_LICENCES = {"Apache-2.0": "apache-2.0", "MIT": "mit", "BSD-3-Clause": "bsd-3-clause", "CC-BY-NC-4.0": "cc-by-nc-4.0"}
"""Licences by their names on the Hub; any other is ``other``, with its name next to it."""
_METRICS = ("r@", "map", "medium/map", "hard/map", "easy/map")  # what the names of metrics in the card begin with


@dataclass(frozen=True)
class PublishedModel:
    """The written files, and the address of the upload, if any."""

    folder: Path
    address: str | None = None


def publish(
    run: Path | str,
    to: str | None = None,
    folder: Path | str | None = None,
    *,
    dim: int | None = None,
    private: bool = False,
    licence: str | None = None,
) -> PublishedModel:
    """Write a run's repository to ``folder``, and upload it if ``to`` is given.

    Args:
        run: a finished run.
        to: ``user/name`` on the Hub; None writes the folder only. The token is that of ``hf auth login`` or ``HF_TOKEN``.
        folder: where to write; it must be empty or new. By default a temporary one, for uploading.
        dim: shorten the vectors to this many numbers.
        private: make the repository private, if it is new.
        licence: licence of the model; by default that of its starting weights.

    Raises:
        InputError: neither ``to`` nor ``folder``, or a folder that is not empty.
        DataError: the run is not finished. RecollectError: the Hub refused.

    Example:
        >>> made = publish("run", folder="published")
        >>> sorted(path.name for path in made.folder.iterdir())
        ['README.md', 'embedder.json', 'model.safetensors', 'training.yaml']
    """
    if to is None and folder is None:
        raise InputError("give a destination: --to user/name, or --folder OUT to write the files only.")
    address = None if to is None else parse_address(to)
    if address is not None:
        if address.revision != "main":
            raise InputError(f"{to}: a repository is published to its main branch: remove @{address.revision}.")
        require("huggingface_hub", "hub", "publishing")
    with tempfile.TemporaryDirectory(prefix="recollect-publish-") as temporary:
        place = Path(temporary) / "model" if folder is None else Path(folder)
        _write(run, place, to, dim, licence)
        if folder is not None:
            logger.info(f"written    {place}: {CARD}, {SETTINGS}, {DESCRIPTION}, {TENSORS}")
        return PublishedModel(place, None if address is None else _upload(place, address.repository, private))


def _write(run: Path | str, folder: Path, to: str | None, dim: int | None, licence: str | None) -> None:
    """Write the files of a run's repository, load them and compare the vectors of random images."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: choose another --folder.")
    opened = open_model(Path(run), dim=dim)
    if opened.run is None or opened.config is None:
        raise DataError(f"{run} is not a run of recollect train with its settings: only a finished run is published.")
    if opened.remark is not None:
        raise DataError(f"{opened.remark} Publish it when it is finished: recollect train --resume {run}.")
    embedder, config = opened.embedder, short_names(opened.config)
    backbone = None if embedder.config.code is None else opened.config.model.init
    settings = yaml.safe_dump(_settings(config), sort_keys=False, allow_unicode=True)
    card = model_card(embedder, config, read_run(run), to=to, licence=licence)
    # Atomically, except for an existing folder, which may be a mount point and cannot be replaced.
    with contextlib.nullcontext(folder) if folder.is_dir() else new_folder(folder) as part:
        embedder.save(part)
        write_text(part / SETTINGS, settings)
        write_text(part / CARD, card)
        size = embedder.preprocessing.size
        seeded = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=seeded)
        with torch.inference_mode():
            difference = float((Embedder.load(part, backbone=backbone)(images) - embedder(images)).abs().max())
        if not difference <= 1e-6:
            raise RecollectError(f"{part}: the written model differs by {difference:.1e}; please report it.")


def _settings(config: Config) -> dict[str, Any]:
    """A run's settings without places on this machine and without loggers, whose options may hold passwords."""
    values = as_mapping(config)
    values["data"] |= {"root": None, "validation_root": None}
    values["run"] |= {"loggers": [], "logger_options": {}}
    weights = values["model"]["weights"]
    values["model"]["weights"] = Path(weights).name if weights not in (None, "none") else weights
    for group, key in (
        ("data", "options"),
        ("data", "augmentation_options"),
        ("model", "options"),
        ("loss", "options"),
    ):
        given = values[group][key].items()
        paths = {name for name, value in given if isinstance(value, str) and ("/" in value or "\\" in value)}
        values[group][key] = {name: value for name, value in given if name not in paths}
    return values


def model_card(
    embedder: Embedder, config: Config, read: Run, *, to: str | None = None, licence: str | None = None
) -> str:
    """The card: data, recipe, results, licence, how to load it."""
    licence = licence or embedder.config.provenance.licence
    front = {"license": _LICENCES.get(licence, "other")} if licence else {}  # without one, the card says so
    front |= {"license_name": one_line(licence)} if licence and licence not in _LICENCES else {}
    outcome, plan = read.recorded("outcome"), read.recorded("plan")
    # Results of recollect eval; without any, those logged during training.
    results: dict[str, Mapping[str, float]] = dict(read.evaluated)
    if not results and isinstance(outcome.get("metrics"), Mapping):
        watched = outcome["metrics"].items()
        results = {f"{split} (watched in training)": values for split, values in watched if isinstance(values, Mapping)}
    names = dict.fromkeys(name for metrics in results.values() for name in metrics if name.startswith(_METRICS))
    return render(
        "model_card.md",
        front=Markup(yaml.safe_dump(front, sort_keys=False, allow_unicode=True) if front else ""),
        name=to or "user/name",
        dim=embedder.dim,
        config=config,
        settings=SETTINGS,
        code=embedder.config.code,
        origin=embedder.config.provenance,
        licence=licence,
        counted=isinstance(plan.get("images"), int) and isinstance(plan.get("classes"), int),
        plan=plan,
        steps=read.steps_taken,
        results=results,
        metrics=list(names)[:8],
    )


def _upload(folder: Path, repository: str, private: bool) -> str:
    """Upload the folder as one commit; the address with that commit."""
    hub = require("huggingface_hub", "hub", "publishing")
    api = hub.HfApi(endpoint=endpoint(), library_name="recollect", library_version=__version__)
    try:
        api.create_repo(repository, private=private or None, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=str(folder), commit_message=f"Publish with recollect {__version__}"
        )
    except Exception as error:  # a library that uses the network raises too many kinds to list
        raise RecollectError(
            f"{repository} could not be published: {in_one_line(error)} Check the name and the token (hf auth login)."
        ) from error
    return f"hf://{repository}@{commit.oid}"
