"""Embedders on the Hugging Face Hub: ``hf://user/name`` to a folder on this machine.

Only the two files of ``saving.py`` are downloaded: tensors as safetensors, which contain no code, and their
description, whose SHA-256 of the tensors is checked when they are loaded. Sizes are bounded before anything is downloaded.
Downloaded files are used without the network. ``report/publishing.py`` writes such repositories.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recollect.common.errors import ConfigError, WeightsError, in_one_line, require

PREFIX = "hf://"
LIMITS = {"embedder.json": 1 << 20, "model.safetensors": 16 << 30}
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
    found = _ADDRESS.fullmatch(text.removeprefix(PREFIX))
    if found is None or ".." in text:
        raise ConfigError(
            f"{text[:200]!r} is not an address of the Hub: write hf://user/name or hf://user/name@revision."
        )
    return HubAddress(found["repository"], found["revision"] or "main")


def endpoint() -> str | None:
    """The address of the Hub: ``HF_ENDPOINT``, or the library's default."""
    return os.environ.get("HF_ENDPOINT") or None


def hub_folder(address: str, *, download: bool) -> tuple[Path, str]:
    """The folder with an embedder's two files, and its address with the commit that was found.

    Args:
        address: ``hf://user/name``, possibly with ``@revision``.
        download: download missing or newer files; if False, the network is not used.

    Raises:
        WeightsError: it is not on this machine and ``download`` is False, cannot be reached, or is too large.
        MissingExtraError: ``huggingface_hub`` is not installed.
    """
    wanted = parse_address(address)
    hub = require("huggingface_hub", "hub", "a model of the Hugging Face Hub")
    try:
        if download:
            places = _fetched(hub, wanted)
        else:
            places = [
                Path(hub.hf_hub_download(wanted.repository, name, revision=wanted.revision, local_files_only=True))
                for name in LIMITS
            ]
    except WeightsError:
        raise
    except Exception as error:  # a library that uses the network raises too many kinds to list
        if not download:
            raise WeightsError(
                f"{wanted} is not on this machine: download it with --download (in Python Embedder.load({str(wanted)!r}))."
            ) from error
        raise WeightsError(f"{wanted} cannot be downloaded: {in_one_line(error)}") from error
    folder = places[0].parent
    if any(place.parent != folder for place in places):
        raise WeightsError(
            f"{wanted}: its files on this machine are from two commits: download it again with --download."
        )
    return folder, str(HubAddress(wanted.repository, folder.name))


def fetched_once(address: str, download: bool | None) -> Path:
    """``hub_folder``; with ``download=None``, missing files are downloaded."""
    if download is not None:
        return hub_folder(address, download=download)[0]
    try:
        return hub_folder(address, download=False)[0]
    except WeightsError:
        return hub_folder(address, download=True)[0]


def _fetched(hub: Any, wanted: HubAddress) -> list[Path]:
    places: list[Path] = []
    revision = wanted.revision
    for name, limit in LIMITS.items():
        url = hub.hf_hub_url(wanted.repository, name, revision=revision, endpoint=endpoint())
        size = hub.get_hf_file_metadata(url, endpoint=endpoint()).size
        if size is None or size > limit:
            said = "has an unknown size" if size is None else f"has {size:,} bytes"
            raise WeightsError(f"{wanted}: {name} {said}; the limit is {limit:,} bytes.")
        places.append(
            Path(
                hub.hf_hub_download(
                    wanted.repository, name, revision=revision, endpoint=endpoint(), library_name="recollect"
                )
            )
        )
        revision = places[0].parent.name  # the commit, so that the second file belongs to the first
    return places
