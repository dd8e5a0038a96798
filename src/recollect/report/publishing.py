"""A finished run as a repository of the Hugging Face Hub: the embedder's two files, its settings, and a model card.

``write_repository`` needs no network: it writes a folder and loads it again to check that it gives the run's vectors.
``publish`` uploads such a folder. Names in the card come from the user's data and are escaped. No path of this machine is
written.
"""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from recollect._version import __version__
from recollect.common.errors import DataError, InputError, RecollectError, in_one_line, require
from recollect.common.files import new_folder, write_text
from recollect.common.text import printable
from recollect.config.resolve import as_mapping, short_names
from recollect.config.schema import Config
from recollect.inference.opening import Opened, open_model
from recollect.models import Embedder
from recollect.models.backbones import CodeOrigin
from recollect.models.hub import LIMITS, endpoint, parse_address
from recollect.models.saving import DESCRIPTION, TENSORS, EmbedderConfig
from recollect.report.runs import Run, read_run

logger = logging.getLogger(__name__)
CARD, SETTINGS = "README.md", "training.yaml"
_LICENCES = {"Apache-2.0": "apache-2.0", "MIT": "mit", "BSD-3-Clause": "bsd-3-clause", "CC-BY-NC-4.0": "cc-by-nc-4.0"}
"""Licences by their names on the Hub; any other is ``other``, with its name next to it."""


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
    if address is not None and address.revision != "main":
        raise InputError(f"{to}: a repository is published to its main branch: remove @{address.revision}.")
    if address is not None:
        hub = require("huggingface_hub", "hub", "publishing")
    if folder is not None:
        written = write_repository(run, Path(folder), to=to, dim=dim, licence=licence)
        logger.info(f"written    {written}: {CARD}, {SETTINGS}, {DESCRIPTION}, {TENSORS}")
        if address is None:
            return PublishedModel(written)
        return PublishedModel(written, _upload(hub, written, address.repository, private))
    with tempfile.TemporaryDirectory(prefix="recollect-publish-") as temporary:
        written = write_repository(run, Path(temporary) / "model", to=to, dim=dim, licence=licence)
        return PublishedModel(written, _upload(hub, written, address.repository if address else "", private))


def write_repository(
    run: Path | str, folder: Path, *, to: str | None = None, dim: int | None = None, licence: str | None = None
) -> Path:
    """Write the files of a run's repository and check them; see ``publish``."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: choose another --folder.")
    opened = open_model(Path(run), dim=dim)
    if opened.run is None or opened.config is None:
        raise DataError(f"{run} is not a run of recollect train with its settings: only a finished run is published.")
    if opened.remark is not None:
        raise DataError(f"{opened.remark} Publish it when it is finished: recollect train --resume {run}.")
    backbone = None if opened.embedder.config.code is None else opened.config.model.init
    shown = short_names(opened.config)
    settings = yaml.safe_dump(_settings(shown), sort_keys=False, allow_unicode=True)
    card = model_card(replace(opened, config=shown), read_run(run), to=to, licence=licence)
    # Atomically, except for an existing folder, which may be a mount point and cannot be replaced.
    with contextlib.nullcontext(folder) if folder.is_dir() else new_folder(folder) as part:
        opened.embedder.save(part)
        write_text(part / SETTINGS, settings)
        write_text(part / CARD, card)
        _check(part, opened.embedder, backbone)
    return folder


def _settings(config: Config) -> dict[str, Any]:
    """A run's settings without places on this machine and without loggers, whose options may hold passwords."""
    values = as_mapping(config)
    values["data"] |= {"root": None, "validation_root": None}
    values["run"] |= {"loggers": [], "logger_options": {}}
    weights = values["model"]["weights"]
    values["model"]["weights"] = Path(weights).name if weights not in (None, "none") else weights
    for group, name in (
        ("data", "options"),
        ("data", "augmentation_options"),
        ("model", "options"),
        ("loss", "options"),
    ):
        values[group][name] = {key: value for key, value in values[group][name].items() if not _is_path(value)}
    return values


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and ("/" in value or "\\" in value)


def _check(folder: Path, embedder: Embedder, backbone: str | None) -> None:
    """Load what was written and compare the vectors of random images; ``backbone``: the reference to one from outside."""
    found = sorted(path.name for path in folder.iterdir())
    if found != sorted([*LIMITS, CARD, SETTINGS]):
        raise RecollectError(f"{folder} contains {', '.join(found)}: another process writes to it.")
    size = embedder.preprocessing.size
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        difference = float((Embedder.load(folder, backbone=backbone)(images) - embedder(images)).abs().max())
    if not difference <= 1e-6:
        raise RecollectError(
            f"{folder}: the written model differs from the run's by {difference:.1e}; please report it."
        )


def model_card(opened: Opened, read: Run, *, to: str | None = None, licence: str | None = None) -> str:
    """The card: data, recipe, results, licence, how to load it."""
    config, embedder = opened.config, opened.embedder
    if config is None:
        raise DataError(f"{opened.name}: its settings cannot be read.")
    name = to or "user/name"
    provenance = embedder.config.provenance
    licence = licence or provenance.licence
    front: dict[str, Any] = {
        "library_name": "recollect",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["recollect", "image-retrieval", "metric-learning"],
    }
    if licence:  # without one, the card says that none is stated
        front["license"] = _LICENCES.get(licence, "other")
        front |= {} if licence in _LICENCES else {"license_name": _plain(licence)}
    code = embedder.config.code
    given = "" if code is None else f', backbone="{_code(code.reference)}"'
    start = f"`{_code(config.model.init)}`" + (" with random weights" if not provenance.sha256 and code is None else "")
    facts = {
        "images": f"`{_code(config.data.name)}`, split `{_code(config.data.train_split)}`{_counts(read)}",
        "start": start + ("" if config.model.freeze == "none" else f", frozen up to `{_code(config.model.freeze)}`"),
        "loss": f"`{_code(config.loss.name)}`"
        + (f" `{_code(dict(config.loss.options))}`" if config.loss.options else ""),
        "batch": f"{config.batch.size} images, {config.batch.samples_per_class} per class",
        "optimizer": f"{config.optimizer.name}, learning rate {config.optimizer.lr}, {config.optimizer.schedule}",
        "length": _length(config, read),
        "recipe": f"`{_code(config.name)}`; every setting is in `{SETTINGS}`",
    }
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        f"# {_text(name)}",
        "",
        f"An embedder for image retrieval. It maps an image to a vector of {embedder.dim} numbers and length 1; images of the "
        f"same class have similar vectors. Trained with recollect {_text(__version__)}.",
        "",
        "## Use",
        "",
        'Install it with `pip install "recollect[hub]"`.',
        "",
        "```python",
        "from recollect import Embedder",
        "",
        f'embedder = Embedder.load("hf://{name}"{given})',
        'vectors = embedder.embed(["one.jpg", "two.jpg"])',
        "similarity = float(vectors[0] @ vectors[1])  # from -1 to 1",
        "```",
        "",
        f"On the command line: `recollect index photos.db photos/ --model hf://{name} --download`.",
        "",
        *_code_of_backbone(code),
        "## Training",
        "",
        *_table(("", ""), list(facts.items())),
        "",
        *_results(read),
        "## Licence",
        "",
        _licences(config, embedder.config, licence),
        "",
    ]
    return "\n".join(lines)


def _code_of_backbone(code: CodeOrigin | None) -> list[str]:
    if code is None:
        return []
    said = f"The backbone `{_code(code.reference)}` is code that is not part of this repository"
    return [f"{said} (SHA-256 of its file: `{_code(code.sha256)}`). Pass it as above, or your own copy of it.", ""]


def _licences(config: Config, made: EmbedderConfig, licence: str | None) -> str:
    """The licences of the model and of its starting weights, if known."""
    origin = made.provenance
    said = f"This model: {_text(licence)}. " if licence else "No licence is stated for this model. "
    if made.code is not None:
        return said + "It started from the weights of its backbone, whose licence is not known."
    if not origin.sha256:
        return said + "No pre-trained weights were used."
    terms = _text(origin.licence or "not stated") + (
        ", **for non-commercial use only**" if origin.non_commercial else ""
    )
    return f"{said}Starting weights: `{_code(config.model.init)}`, licence {terms}, SHA-256 `{_code(origin.sha256)}`."


def _counts(read: Run) -> str:
    plan = read.manifest.get("plan") or {}
    images, classes = plan.get("images"), plan.get("classes")
    return f": {images:,} images of {classes:,} classes" if isinstance(images, int) and isinstance(classes, int) else ""


def _length(config: Config, read: Run) -> str:
    outcome = read.folder.read_manifest().get("outcome") or {}
    steps = outcome.get("steps")
    return f"{steps:,} steps, seed {config.run.seed}" if isinstance(steps, int) else f"seed {config.run.seed}"


def _results(read: Run) -> list[str]:
    """Results of ``recollect eval``; without any, those logged during training."""
    found: dict[str, Mapping[str, float]] = dict(read.evaluated)
    if not found:
        outcome = (read.folder.read_manifest().get("outcome") or {}).get("metrics") or {}
        found = {
            f"{split} (watched in training)": metrics
            for split, metrics in outcome.items()
            if isinstance(metrics, Mapping)
        }
    if not found:
        return ["## Results", "", "Not evaluated. `recollect eval RUN` before publishing puts its results here.", ""]
    names = list(dict.fromkeys(name for metrics in found.values() for name in metrics if _is_shown(name)))[:8]
    rows = [
        (_text(test), *(f"{100 * metrics[name]:.1f}" if name in metrics else "–" for name in names))
        for test, metrics in found.items()
    ]
    return ["## Results", "", "Percent, on classes that were not trained on.", "", *_table(("test", *names), rows), ""]


def _is_shown(name: str) -> bool:
    return name.startswith(("r@", "map", "medium/map", "hard/map", "easy/map"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"

    return [line(head), f"|{'---|' * len(head)}", *map(line, rows)]


def _plain(text: object) -> str:
    return " ".join(printable(str(text)).split())[:300]


def _text(text: object) -> str:
    """Foreign text in Markdown, escaped so that it is shown literally."""
    shown = _plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+!~$])", r"\\\1", shown)


def _code(text: object) -> str:
    """Foreign text in or next to backticks."""
    return _plain(text).replace("`", "'").replace("<", "‹").replace(">", "›")


def _upload(hub: Any, folder: Path, repository: str, private: bool) -> str:
    """Upload the folder as one commit; the address with that commit."""
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
