"""Reading ``.npz`` files of arrays, which may come from anywhere: no pickles, and a sentence when it is none."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from recollect.common.errors import DataError


def read_npz(path: Path | str) -> dict[str, NDArray[Any]]:
    """Every array of an ``.npz``, by name.

    Raises:
        DataError: no such file, not an ``.npz``, damaged, or holding Python objects, which are never unpickled.
    """
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file.")
    if not is_zipfile(path):
        raise DataError(f"{path}: not an .npz of arrays, or a damaged one.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not an .npz of plain arrays ({error}).") from error
