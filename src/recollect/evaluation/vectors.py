"""Vectors in tiles from any source: a tensor, an array, a ``.npy`` file on disk, or several of them in sequence.

The streaming pass requests rows and gets a new or shared tensor of the type it computes in; files are
read one tile at a time. Values are checked when they are read, because NaN compares
as neither above nor below and would silently lower every rank. ``ranks.py`` depends on this file alone for its data.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recollect.common.errors import DataError, InputError
from recollect.common.reading import open_npy

ArrayLike: TypeAlias = "Tensor | NDArray[Any] | Path | str | Sequence[Sequence[float]]"
"""A source of N × d vectors: a tensor, an array or memory map, or the path of a ``.npy`` file (read in tiles)."""


class Vectors:
    """N × d vectors in one or more parts, read by rows.

    Args:
        parts: arrays one after the other, each N_i × d; rows are numbered through.
        what: the argument's name, for messages.
        device: where rows are put.
        cosine: divide every vector by its length, so that products are cosines; a zero vector stays zero.
    """

    def __init__(self, parts: Sequence[ArrayLike], what: str, device: torch.device, cosine: bool = False) -> None:
        self.what = what
        self.device = device
        self._parts = [_opened(part, what) for part in parts]
        self.dim = int(self._parts[0].shape[1])
        for part in self._parts:
            if part.shape[1] != self.dim:
                raise InputError(
                    f"{what}: vectors of {self.dim} and of {part.shape[1]} dimensions cannot be compared; "
                    "embed both with the same model."
                )
        self._starts = np.cumsum([0, *(len(part) for part in self._parts)])
        self._lengths: Tensor | None = None
        if cosine:
            self._lengths = self._measure()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def is_double(self) -> bool:
        """Whether any part is float64, so that the whole computation is."""
        return any(part.dtype in (torch.float64, np.dtype(np.float64)) for part in self._parts)

    def rows(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        """Rows ``start`` to ``stop`` (not included) as ``dtype``; a view when nothing has to be converted."""
        pieces = []
        for part, first in zip(self._parts, self._starts.tolist(), strict=False):
            low, high = max(start - first, 0), min(stop - first, len(part))
            if low < high:
                pieces.append(self._converted(part[low:high], dtype))
        tile = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        self._check(tile, lambda row: start + row)
        return tile if self._lengths is None else _divided(tile, self._lengths[start:stop])

    def take(self, indices: NDArray[np.int64], dtype: torch.dtype) -> Tensor:
        """The rows at ``indices``, in that order, as ``dtype``."""
        rows = torch.empty(len(indices), self.dim, dtype=dtype, device=self.device)
        which = np.searchsorted(self._starts, indices, side="right") - 1
        for number, part in enumerate(self._parts):
            here = np.flatnonzero(which == number)
            if here.size:
                local = indices[here] - self._starts[number]
                chosen = part[torch.from_numpy(local).to(part.device)] if isinstance(part, Tensor) else part[local]
                values = self._converted(chosen, dtype)
                if here.size == len(indices):
                    rows = values
                else:
                    rows[torch.from_numpy(here).to(self.device)] = values
        self._check(rows, lambda row: int(indices[row]))
        return rows if self._lengths is None else _divided(rows, self._lengths[torch.from_numpy(indices)])

    def _measure(self) -> Tensor:
        """The length of every vector, measured once: a vector must be divided by the very same number every time it
        is read, or it would no longer tie with its duplicate."""
        step = max(1, (1 << 20) // self.dim)
        pieces = [
            torch.linalg.vector_norm(self.rows(start, min(start + step, len(self)), torch.float64), dim=1)
            for start in range(0, len(self), step)
        ]
        return torch.cat(pieces).clamp_min_(torch.finfo(torch.float32).tiny)

    def _converted(self, part: Tensor | NDArray[Any], dtype: torch.dtype) -> Tensor:
        if isinstance(part, np.ndarray):
            wanted = np.float64 if dtype == torch.float64 else np.float32
            with warnings.catch_warnings():
                # Rows are only read here, so a read-only array needs no warning and no copy.
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                part = torch.from_numpy(np.ascontiguousarray(part, dtype=wanted))
        return part.detach().to(self.device, dtype)

    def _check(self, tile: Tensor, number: Any) -> None:
        # One sum finds any not-a-number or infinity at a fraction of the cost of looking at each value.
        if not bool(torch.isfinite(tile.sum())) and not bool(torch.isfinite(tile).all()):
            row = int((~torch.isfinite(tile).all(dim=1)).nonzero()[0, 0])
            raise InputError(
                f"{self.what}: row {number(row)} holds a value that is not finite (NaN or infinity); "
                "check the model that made it, or remove the row."
            )


def _divided(rows: Tensor, lengths: Tensor) -> Tensor:
    return (rows.double() / lengths.to(rows.device).unsqueeze(1)).to(rows.dtype)


def _opened(part: ArrayLike, what: str) -> Any:
    """A tensor or array of two dimensions; files are mapped, not read."""
    if isinstance(part, str | Path):
        try:
            part = open_npy(part)
        except DataError as error:
            raise DataError(f"{what}: {error}") from error
    if not isinstance(part, Tensor | np.ndarray):
        try:
            part = np.asarray(part, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"{what}: not an array of vectors ({error}).") from error
    if isinstance(part, Tensor) and (part.is_meta or part.layout != torch.strided):
        raise InputError(f"{what}: give an ordinary (dense) tensor that holds values, not a {part.layout} one.")
    if part.ndim != 2:
        raise InputError(f"{what}: give N × d vectors, one per row; the shape is {tuple(part.shape)}.")
    if part.shape[1] == 0:
        raise InputError(f"{what}: the vectors have no dimensions (shape {tuple(part.shape)}).")
    kind_is_number = (
        (part.dtype.is_floating_point or part.dtype in (torch.int32, torch.int64, torch.int16, torch.int8))
        if isinstance(part, Tensor)
        else part.dtype.kind in "fiu"
    )
    if not kind_is_number:
        raise InputError(f"{what}: vectors must be of real numbers, but the type is {part.dtype}.")
    return part
