"""Vectors of many images in a file, made part by part: a process that ends in the middle loses one part at most.

While vectors are made, ``x.npy.part`` has room for all of them and ``x.npy.part.json`` says how many rows are there and
what they are of; when all are, ``x.npy`` takes its name and ``x.npy.json`` stays to say what it holds. Parts are always
cut alike, so the file does not depend on how often the work was interrupted; one process makes them, others wait for
it. Used for the features that whitening is learned from and for the vectors of instance search, of which there may be a
million.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError, DataError
from recollect.common.files import write_json
from recollect.common.locks import exclusive
from recollect.common.reading import open_npy, read_json

PART = 1024
"""Images a part: some minutes of work at most, and large enough that images of equal size find each other."""


def stored_vectors(
    path: Path,
    embed: Callable[[range], Tensor],
    count: int,
    dim: int,
    about: Mapping[str, Any],
    *,
    overwrite: bool = False,
    description: str = "embedding",
) -> NDArray[np.float32]:
    """The ``count`` × ``dim`` vectors of ``path``, memory-mapped: made, completed or only opened, as far as they exist.

    Args:
        path: the ``.npy`` file.
        embed: vectors of the images of a range, in order.
        count: how many images there are.
        dim: length of a vector.
        about: what the vectors depend on (see ``weights_digest``), as plain values. A file of others is refused.
        overwrite: throw such a file away instead.
        description: for the progress line.

    Raises:
        ConfigError: the file holds vectors of something else.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp())
        >>> rows = stored_vectors(folder / "x.npy", lambda part: torch.ones(len(part), 2), 3, 2, {"model": "ones"})
        >>> rows.shape, rows.sum()
        ((3, 2), np.float32(6.0))
    """
    wanted = {**about, "images": count, "dim": dim, "part": PART}

    def made() -> bool:
        return path.exists() and _is_of(_notes_of(path), path, wanted, overwrite)

    if not made():
        with exclusive(path.with_name(f".{path.name}.lock")):
            if not made():  # by another process, which was waited for
                _make(path, embed, wanted, overwrite, description)
    return _opened(path, count, dim)


def _make(
    path: Path, embed: Callable[[range], Tensor], wanted: Mapping[str, Any], overwrite: bool, description: str
) -> None:
    part = path.with_name(path.name + ".part")
    notes, count, done = _notes_of(part), int(wanted["images"]), 0
    if part.exists() and notes.exists() and _is_of(notes, part, wanted, overwrite):
        done = int(read_json(notes, dict)["done"])
    rows = (
        np.lib.format.open_memmap(part, mode="r+")
        if done
        else np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=(count, wanted["dim"]))
    )
    with ProgressLine(description, count) as line:
        line.advance(done)
        while done < count:
            stop = min(done + PART, count)
            rows[done:stop] = embed(range(done, stop)).numpy()
            rows.flush()  # before it is said that they are there
            line.advance(stop - done)
            done = stop
            write_json(notes, {"done": done, "about": wanted})
    del rows
    write_json(_notes_of(path), {"about": wanted})
    part.replace(path)
    notes.unlink(missing_ok=True)


def _notes_of(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def weights_digest(model: nn.Module) -> str:
    """A SHA-256 over names, shapes and values of everything ``model`` would save."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).data)
    return digest.hexdigest()


def _is_of(notes: Path, path: Path, wanted: Mapping[str, Any], overwrite: bool) -> bool:
    """Whether ``path`` holds what is wanted; False means that it may be replaced."""
    known = read_json(notes, dict).get("about", {}) if notes.exists() else {}
    if known == wanted:
        return True
    if overwrite:
        return False
    other = ", ".join(key for key in wanted if known.get(key) != wanted[key])
    raise ConfigError(
        f"{path} holds vectors of something else (different: {other}). Remove it, write elsewhere, or pass --overwrite."
    )


def _opened(path: Path, count: int, dim: int) -> NDArray[np.float32]:
    try:
        rows: NDArray[np.float32] = open_npy(path)
    except DataError as error:
        raise DataError(f"{error} Remove it to make it again.") from error
    if rows.shape != (count, dim) or rows.dtype != np.float32:
        raise DataError(
            f"{path}: {rows.dtype} {rows.shape} instead of float32 {(count, dim)}. Remove it to make it again."
        )
    return rows
