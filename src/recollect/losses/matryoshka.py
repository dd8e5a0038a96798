"""Matryoshka: any loss, averaged over prefixes of the embedding (Kusupati et al. 2022, arXiv:2205.13147).

A prefix is normalized again before the loss, as it is for search: ``unit_prefix`` is the one way to shorten an embedding.
The gradient is exact: autograd goes through the normalization into the same embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from recollect.common.errors import ConfigError, InputError
from recollect.common.text import check_whole

Loss = Callable[..., Tensor]

_NOTHING = 1e-6  # a prefix this short has no direction; dividing by its length would make the gradient unbounded


class Matryoshka(nn.Module):
    """The mean of a loss over prefixes of the embedding and over the whole embedding.

    After training, the first ``dims`` numbers of a vector, normalized again, can be used alone for search.

    Args:
        loss: any loss, used for every length; or a sequence of losses, one for each of ``dims`` and a last one for the
            whole embedding. A loss with parameters or memory of a fixed dimension must be given once for each length.
        dims: lengths of the prefixes. The whole embedding is always added, even if it is not listed.

    Raises:
        ConfigError: ``dims`` that are not whole numbers of 1 or more, or longer than the embedding.

    Examples:
        >>> from recollect.losses import RecallAtK
        >>> loss = Matryoshka(RecallAtK(), dims=[4, 8])
        >>> embeddings = torch.nn.functional.normalize(torch.randn(8, 16), dim=1).requires_grad_()
        >>> loss(embeddings, torch.arange(8) // 4).backward()
    """

    def __init__(self, loss: Loss | Sequence[Loss], dims: Sequence[int]) -> None:
        super().__init__()
        if not isinstance(dims, list | tuple) or not dims:
            raise ConfigError(f"dims must be a list of lengths such as [64, 128, 256], but is {dims!r}.")
        self.dims = tuple(sorted({check_whole("dims", dim, 1, 10**6) for dim in dims}))
        self.losses: list[Loss] = [*loss] if isinstance(loss, Sequence) else [loss]
        for number, one in enumerate(self.losses):
            if isinstance(one, nn.Module):
                self.add_module(f"loss_{number}", one)  # so that parameters, state and device are this module's too

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        """The loss of M × d embeddings, within the batch or against N × d references."""

        def value(loss: Loss, dim: int) -> Tensor:
            short = unit_prefix(embeddings, dim)
            if ref_emb is None and ref_labels is None:
                return loss(short, labels)
            others = short if ref_emb is embeddings else None if ref_emb is None else unit_prefix(ref_emb, dim)
            return loss(short, labels, others, ref_labels)

        return self._mean(embeddings, value)

    def share(self, embeddings: Tensor, labels: Tensor, rank: int, world_size: int) -> Tensor:
        """One process's part of the loss; the parts add up to the loss, and their gradients to its gradient.

        A loss without ``share`` is computed completely by every process, and each process counts an equal part of it.
        """

        def value(loss: Loss, dim: int) -> Tensor:
            short = unit_prefix(embeddings, dim)
            if hasattr(loss, "share"):
                part: Tensor = loss.share(short, labels, rank, world_size)
                return part
            return loss(short, labels) / world_size

        return self._mean(embeddings, value)

    def _mean(self, embeddings: Tensor, value: Callable[[Loss, int], Tensor]) -> Tensor:
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
            raise InputError("embeddings must be a matrix (images × dimensions).")
        lengths = prefix_lengths(self.dims, embeddings.shape[1])
        losses = self.losses * len(lengths) if len(self.losses) == 1 else self.losses
        if len(losses) != len(lengths):
            raise ConfigError(
                f"Matryoshka has {len(losses)} losses for the lengths {', '.join(map(str, lengths))}: give one loss, "
                "or one for each length."
            )
        return torch.stack([value(loss, dim) for loss, dim in zip(losses, lengths, strict=True)]).mean()

    def extra_repr(self) -> str:
        """What ``print(loss)`` shows."""
        return f"dims={self.dims}"


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
    lengths = sorted({*dims, whole})
    for length in (lengths[0], lengths[-1]):
        if not 1 <= length <= whole:
            raise ConfigError(
                f"{what}: {length} is not a length of a vector of {whole} numbers: choose from 1 to {whole}."
            )
    return tuple(lengths)
