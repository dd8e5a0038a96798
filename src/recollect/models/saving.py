"""An embedder on disk: ``model.safetensors`` with its tensors and ``embedder.json`` with everything else.

``embedder.json`` states its architecture and preprocessing, the origin of its starting weights (name,
SHA-256, licence) and the SHA-256 of ``model.safetensors``, so that two files of different embedders are never mixed. For an
outside backbone it names the code (``models/backbones.py``), which runs only if the user gives or trusts it. Change the
format only together with ``FORMAT``; use it through ``Embedder.save`` and ``Embedder.load``.

``hub_folder`` turns ``hf://user/name``, an embedder on the Hugging Face Hub, into a folder on this machine. Only the same two
files are downloaded: safetensors contain no code. Sizes are bounded before anything is downloaded. Downloaded files are used
without the network. ``report/publishing.py`` writes such repositories.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from recollect._version import __version__
from recollect.common.errors import ConfigError, DataError, WeightsError, in_one_line, require
from recollect.common.files import atomic_write, new_folder, write_json
from recollect.common.images import Preprocessing
from recollect.common.reading import read_json, sha256
from recollect.models.backbones import CodeOrigin, build_backbone, rebuild
from recollect.models.weights import Provenance, fill_strictly, read_tensors, say_licence

Model = TypeVar("Model", bound=nn.Module)

FORMAT = 1
TENSORS, DESCRIPTION = "model.safetensors", "embedder.json"
MODEL = "model"
"""The folder of a run that contains its embedder."""


@dataclass(frozen=True)
class EmbedderConfig:
    """Everything needed to rebuild an embedder, except its tensors."""

    init: str
    architecture: str
    dim: int | None
    pooling: str
    layer_norm: bool
    l2_before_head: bool
    batch_norm: str
    p: float
    learn_p: bool
    preprocessing: Preprocessing
    provenance: Provenance
    code: CodeOrigin | None = None
    """Options of your own backbone."""
    added_head: bool = False
    """The last layer was added to a trained network, as a whitening of its descriptors."""
    stages: int = 0
    """How many of the last stages have features beside those of the last layer."""


def config_as_dict(config: EmbedderConfig) -> dict[str, Any]:
    """Plain values of a configuration."""
    values = asdict(config) | {"preprocessing": config.preprocessing.as_dict()}
    # What few models have is left out of the others, which earlier versions and existing indexes then know as before.
    return {name: value for name, value in values.items() if value or name not in ("code", "added_head", "stages")}


def save_embedder(embedder: Any, folder: Path, *, overwrite: bool = False) -> None:
    """Write both files: a new folder appears with both of them or not at all, in an existing one each is whole.

    Raises:
        DataError: the folder already contains an embedder and ``overwrite`` is not set.
    """
    from safetensors.torch import save

    refuse_saved(folder, overwrite)
    with nullcontext(folder) if folder.is_dir() else new_folder(folder) as target:
        tensors = {key: value.detach().cpu().contiguous() for key, value in embedder.state_dict().items()}
        with atomic_write(target / TENSORS) as file:
            file.write(save(tensors, metadata={"format": "pt"}))
        description = {
            "format": FORMAT,
            "recollect": __version__,
            "torch": torch.__version__,
            "dim": embedder.dim,
            "embedder": config_as_dict(embedder.config),
            "sha256": {TENSORS: sha256(target / TENSORS)},
        }
        write_json(target / DESCRIPTION, description)


def refuse_saved(folder: Path, overwrite: bool = False) -> None:
    """Refuse a folder that already holds an embedder: for a caller with long work before ``save_embedder``.

    Raises:
        DataError: it does, and ``overwrite`` is not set.
    """
    existing = [name for name in (TENSORS, DESCRIPTION) if (folder / name).exists()]
    if existing and not overwrite:
        raise DataError(
            f"{folder}: already contains {' and '.join(existing)}. Choose another folder, or overwrite them "
            "(--overwrite; in Python overwrite=True)."
        )


def load_embedder(
    make: Callable[[EmbedderConfig, nn.Module], Model], folder: Path, backbone: str | nn.Module | None = None
) -> Model:
    """Load an embedder written by ``save_embedder``, in evaluation mode on the CPU; for a run, its folder ``model``.

    Args:
        make: ``Embedder``.
        folder: folder of the embedder or the run.
        backbone: see ``models/backbones.py``; only for a backbone from outside the package.

    Raises:
        WeightsError: files are missing, damaged, of another format, or do not belong together.
        ConfigError: a backbone from outside the package that is neither given nor trusted, or that does not exist.
    """
    if not (folder / DESCRIPTION).is_file() and (folder / MODEL / DESCRIPTION).is_file():
        folder = folder / MODEL
    if not (folder / DESCRIPTION).is_file():
        unfinished = (folder / "checkpoints").is_dir()
        hint = " It is an unfinished run: open it with recollect.inference.open_model." if unfinished else ""
        raise WeightsError(f"{folder}: has no {DESCRIPTION}, so it is not a saved embedder.{hint}")
    try:
        description = read_json(folder / DESCRIPTION, dict)
    except DataError as error:
        raise WeightsError(str(error)) from error
    if description.get("format") != FORMAT:
        raise WeightsError(
            f"{folder / DESCRIPTION}: format {description.get('format')!r} cannot be read; this version of recollect "
            f"reads {FORMAT}."
        )
    try:
        values = description["embedder"]
        values["preprocessing"] = Preprocessing.from_dict(values["preprocessing"])
        values["provenance"] = Provenance(**values["provenance"])
        values["code"] = None if values.get("code") is None else CodeOrigin(**values["code"])
        config = EmbedderConfig(**values)
        expected = description["sha256"][TENSORS]
    except (KeyError, TypeError, AttributeError, ConfigError) as error:
        raise WeightsError(f"{folder / DESCRIPTION}: incomplete, or written by another version ({error}).") from error
    if not (folder / TENSORS).is_file():
        raise WeightsError(f"{folder}: {TENSORS} is missing; copy it from where the embedder was saved.")
    if sha256(folder / TENSORS) != expected:
        raise WeightsError(
            f"{folder / TENSORS}: not the file that {DESCRIPTION} was written with (its SHA-256 differs). Copy both "
            "files again from where they were saved."
        )
    outside = None if config.code is None else rebuild(config.code, config.preprocessing.size, folder, backbone)
    if outside is not None:
        config = replace(config, code=outside[1], architecture=outside[1].architecture)
    try:
        built = outside[0] if outside else build_backbone(config.architecture, config.preprocessing.size)
        embedder = make(config, built)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise WeightsError(
            f"{folder / DESCRIPTION}: this network cannot be built here: {in_one_line(error).rstrip('.')}. Copy the folder "
            f"again, or install the versions it was saved with (recollect {description.get('recollect')})."
        ) from error
    fill_strictly(embedder, read_tensors(folder / TENSORS), str(folder / TENSORS), config.init)
    say_licence(config.init, config.provenance.licence, config.provenance.non_commercial)
    return embedder.eval()


# The Hugging Face Hub ----------------------------------------------------------------------------------------------

PREFIX = "hf://"
LIMITS = {DESCRIPTION: 1 << 20, TENSORS: 16 << 30}
"""The files of an embedder, and the maximum size of each in bytes."""
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_ADDRESS = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{{0,200}}))?")


@dataclass(frozen=True)
class HubAddress:
    """A repository of the Hub and a revision: a branch, a tag or a commit."""

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + ("" if self.revision == "main" else f"@{self.revision}")


def is_hub_address(text: object) -> bool:
    """Whether ``text`` names a repository of the Hub rather than a folder."""
    return isinstance(text, str) and text.startswith(PREFIX)


def parse_address(text: str) -> HubAddress:
    """Parse ``hf://user/name`` or ``hf://user/name@revision``; the prefix may be missing.

    Example:
        >>> parse_address("hf://ada/birds@v2")
        HubAddress(repository='ada/birds', revision='v2')

    Raises:
        ConfigError: anything else.
    """
    match = _ADDRESS.fullmatch(text.removeprefix(PREFIX))
    if match is None or ".." in text:
        raise ConfigError(
            f"{text[:200]!r} is not an address of the Hub: write hf://user/name or hf://user/name@revision."
        )
    return HubAddress(match["repository"], match["revision"] or "main")


def endpoint() -> str | None:
    """The address of the Hub: ``HF_ENDPOINT``, or the library's default."""
    return os.environ.get("HF_ENDPOINT") or None


def hub_folder(address: str, *, download: bool | None) -> tuple[Path, str]:
    """The folder with an embedder's two files, and its address with their commit.

    Args:
        address: ``hf://user/name``, possibly with ``@revision``.
        download: download missing or newer files; if False, the network is not used; if None, only for missing files.

    Raises:
        WeightsError: it is not on this machine and ``download`` is False, cannot be reached, or is too large.
        MissingExtraError: ``huggingface_hub`` is not installed.
    """
    if download is None:
        try:
            return hub_folder(address, download=False)
        except WeightsError:
            return hub_folder(address, download=True)
    source = parse_address(address)
    hub = require("huggingface_hub", "hub", "a model of the Hugging Face Hub")
    try:
        paths: list[Path] = []
        revision = source.revision
        for name, limit in LIMITS.items():
            if download:
                url = hub.hf_hub_url(source.repository, name, revision=revision, endpoint=endpoint())
                size = hub.get_hf_file_metadata(url, endpoint=endpoint()).size
                if size is None or size > limit:
                    actual = "has an unknown size" if size is None else f"has {size:,} bytes"
                    raise WeightsError(f"{source}: {name} {actual}; the limit is {limit:,} bytes.")
            options = {"endpoint": endpoint(), "library_name": "recollect", "local_files_only": not download}
            paths.append(Path(hub.hf_hub_download(source.repository, name, revision=revision, **options)))
            if download:
                revision = paths[0].parent.name  # the commit, so that the second file belongs to the first
    except WeightsError:
        raise
    except Exception as error:  # a library that uses the network raises too many kinds to list
        if not download:
            raise WeightsError(
                f"{source} is not on this machine: download it with --download (in Python Embedder.load({str(source)!r}))."
            ) from error
        raise WeightsError(f"{source} cannot be downloaded: {in_one_line(error)}") from error
    folder = paths[0].parent
    if any(path.parent != folder for path in paths):
        raise WeightsError(
            f"{source}: its files on this machine are from two commits: download it again with --download."
        )
    return folder, str(HubAddress(source.repository, folder.name))
