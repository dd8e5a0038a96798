"""``unit_prefix``: the first numbers of vectors, normalized again. The one way to shorten an embedding.

Used by the Matryoshka loss, the evaluation and the index. ``Embedder.shortened`` returns the same vectors with a shorter
last layer.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from recollect.common.errors import ConfigError

_NOTHING = 1e-6  # a prefix this short has no direction; dividing by its length would make the gradient unbounded


def unit_prefix(vectors: Tensor, dim: int) -> Tensor:
    """N × d vectors → their first ``dim`` numbers, N × dim, normalized; with ``dim = d`` they are returned unchanged.

    A prefix without direction (shorter than 1e-6) becomes zero and has no gradient.

    Examples:
        >>> unit_prefix(torch.tensor([[3.0, 4.0, 12.0]]), 2)
        tensor([[0.6000, 0.8000]])
    """
    return vectors if dim == vectors.shape[1] else unit_rows(vectors[:, :dim])


def unit_rows(rows: Tensor) -> Tensor:
    """Normalized rows; a row without direction becomes zero and has no gradient."""
    length = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(length > _NOTHING, length, torch.inf)


def prefix_lengths(dims: Iterable[int], whole: int, what: str = "dims") -> tuple[int, ...]:
    """The lengths of ``dims`` and of the whole vector, in ascending order.

    Raises:
        ConfigError: a length that is not from 1 to ``whole``.
    """
    chosen = sorted({*dims, whole})
    if chosen[0] < 1 or chosen[-1] > whole:
        wrong = chosen[0] if chosen[0] < 1 else chosen[-1]
        raise ConfigError(f"{what}: {wrong} is not a length of a vector of {whole} numbers: choose from 1 to {whole}.")
    return tuple(chosen)
