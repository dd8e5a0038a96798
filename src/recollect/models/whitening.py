"""Whitening of descriptors: from matching pairs, from labels, or by PCA; as a function and as values for a Linear layer.

Everything is float64: the inverse of a covariance amplifies rounding errors. Descriptors are rows (N×D); ``Embedder`` copies
the result to its last layer with ``set_whitening``. The equations are in ``docs/models.md``.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.models.pooling import retrieval_l2

_FIRST_LOADING = 1e-10
_SMALLEST_PIVOT = 1e-13  # relative; below it a pivot is rounding error, not variance


@dataclass(frozen=True)
class Whitening:
    """``x → P (x − m)``: rows of ``projection`` in descending order of variance.

    Args:
        mean: m, of length D.
        projection: P, K×D.
    """

    mean: Tensor
    projection: Tensor

    def __call__(self, descriptors: Tensor, dim: int | None = None) -> Tensor:
        """N×D → N×dim, normalized by ``x / (‖x‖ + 1e-6)``; in the descriptors' own precision."""
        weight, bias = self.linear(dim)
        projected = descriptors.to(weight.dtype) @ weight.T + bias
        return retrieval_l2(projected).to(descriptors.dtype)

    def linear(self, dim: int | None = None) -> tuple[Tensor, Tensor]:
        """Weight (dim×D) and bias of the equivalent Linear layer: P and −P m."""
        dim = len(self.projection) if dim is None else dim
        if not 1 <= dim <= len(self.projection):
            raise InputError(
                f"this whitening has {len(self.projection)} dimensions, so dim cannot be {dim}: choose a smaller one."
            )
        weight = self.projection[:dim]
        return weight, -weight @ self.mean

    def as_layer(self) -> Whitening:
        """The same embeddings up to their length, with weights as large as those of a new Linear layer, U(±1/√D).

        Embeddings are normalized anyway. An optimizer's steps are as large as its learning rate, regardless of the
        size of the weights.
        """
        weight = self.projection
        scale = 1 / math.sqrt(3 * weight.shape[1]) / float(weight.square().mean().sqrt())
        return Whitening(self.mean, weight * scale)


def whitening_from_pairs(descriptors: Tensor, queries: Tensor, positives: Tensor, shrinkage: float = 0.0) -> Whitening:
    """Supervised whitening: whitens differences within matching pairs, then orders directions by total variance.

    m is the mean over the queries' descriptors, S the mean of ``(x_q − x_p)(x_q − x_p)ᵀ``, W the inverse of its
    Cholesky factor, V the eigenvectors of ``W (X−m)(X−m)ᵀ Wᵀ`` over all descriptors; P = Vᵀ W.

    A direction without any difference within pairs (a feature that is always zero) makes S singular; then 1e-10 times
    the identity is added, ten times as much until S is positive definite.

    Args:
        descriptors: N×D, of length 1.
        queries, positives: row numbers of the matching pairs, of equal length.
        shrinkage: replaces S by ``(1−λ) S + λ·trace(S)/D·I``; needed with fewer pairs than dimensions.

    Raises:
        InputError: fewer pairs than dimensions without shrinkage (every unseen direction would be amplified without
            bound), no variance at all, or numbers that are not finite.
    """
    X = _checked(descriptors)
    q, p = (torch.as_tensor(rows, dtype=torch.int64, device=X.device) for rows in (queries, positives))
    if q.shape != p.shape or q.ndim != 1 or len(q) == 0:
        raise InputError(
            f"queries and positives must be two lists of equal length, not {tuple(q.shape)} and {tuple(p.shape)}."
        )
    difference = X[q] - X[p]
    factor = _factor(difference.T @ difference / len(q), shrinkage, len(q), "pairs")
    m = X[q].mean(0)
    whitened = torch.linalg.solve_triangular(factor, (X - m).T, upper=False)  # W (X−m)ᵀ, D×N
    return _by_variance(m, factor, whitened @ whitened.T)


@dataclass(frozen=True)
class ClassStatistics:
    """Statistics of labelled descriptors for whitening, in float64; the same for any shrinkage.

    Attributes:
        mean: m, of all descriptors, of length D.
        within: S_w = 1/N Σ_c Σ_{x in c} (x − m_c)(x − m_c)ᵀ, D×D: how images of one class differ.
        total: 1/N Σ (x − m)(x − m)ᵀ, D×D.
        spare: number of images beyond the first of each class, the largest possible rank of S_w.
    """

    mean: Tensor
    within: Tensor
    total: Tensor
    spare: int

    def whitening(self, shrinkage: float = 0.1) -> Whitening:
        """Whiten differences within classes, then order directions by total variance.

        With L Lᵀ = (1−λ) S_w + λ·trace(S_w)/D·I and V the eigenvectors of L⁻¹ S_total L⁻ᵀ, P = Vᵀ L⁻¹. Up to the order and
        the length of its rows this is linear discriminant analysis with a shrunk covariance.

        Raises:
            InputError: fewer images than dimensions without shrinkage, or no difference within any class.
        """
        factor = _factor(self.within, shrinkage, self.spare, "images beyond the first of their class")
        half = torch.linalg.solve_triangular(factor, self.total, upper=False)  # L⁻¹ S_total
        whitened = torch.linalg.solve_triangular(factor, half.T, upper=False)
        return _by_variance(self.mean, factor, (whitened + whitened.T) / 2)

    def leading(self, dim: int) -> ClassStatistics:
        """The statistics of the first ``dim`` values of the descriptors."""
        return ClassStatistics(self.mean[:dim], self.within[:dim, :dim], self.total[:dim, :dim], self.spare)


def class_statistics(descriptors: Tensor, labels: Tensor) -> ClassStatistics:
    """Means and covariances of labelled descriptors, N×D.

    Raises:
        InputError: no class has two images, or there are numbers that are not finite.
    """
    X = _checked(descriptors)
    _, place = torch.as_tensor(labels, device=X.device).unique(return_inverse=True)
    sizes = torch.bincount(place)
    spare = len(X) - len(sizes)
    if spare < 1:
        raise InputError("no class has two images, so there is nothing to learn a whitening from; use PCA whitening.")
    means = torch.zeros(len(sizes), X.shape[1], dtype=X.dtype, device=X.device).index_add_(0, place, X) / sizes[:, None]
    m = X.mean(0)
    inside, around = X - means[place], X - m
    return ClassStatistics(m, inside.T @ inside / len(X), around.T @ around / len(X), spare)


def whitening_from_classes(descriptors: Tensor, labels: Tensor, shrinkage: float = 0.1) -> Whitening:
    """``class_statistics(descriptors, labels).whitening(shrinkage)``: whitening from all images of all classes.

    Unlike in ``whitening_from_labels``, every image has the same weight, whereas pairs weight a class by the square of its
    size; and nothing is random.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 2.0]])
        >>> whitening = whitening_from_classes(x, torch.tensor([0, 0, 1, 1]), shrinkage=0.5)
        >>> whitening.projection.abs().argmax(dim=1).tolist()  # between the classes first, within them last
        [0, 1]
    """
    return class_statistics(descriptors, labels).whitening(shrinkage)


def _by_variance(m: Tensor, factor: Tensor, covariance: Tensor) -> Whitening:
    """P = Vᵀ L⁻¹, V being the eigenvectors of the ``covariance`` of L⁻¹ x, largest first."""
    _, V = torch.linalg.eigh(covariance)
    V = V.flip(-1)  # eigh sorts upwards
    return Whitening(m, torch.linalg.solve_triangular(factor.T, V, upper=True).T)


def whitening_from_labels(
    descriptors: Tensor, labels: Tensor, shrinkage: float = 0.0, max_pairs: int = 200_000, seed: int = 0
) -> Whitening:
    """As ``whitening_from_pairs``, with pairs of images of one class (see ``pairs_of_classes``)."""
    queries, positives = pairs_of_classes(labels, max_pairs, seed)
    return whitening_from_pairs(descriptors, queries, positives, shrinkage)


def whitening_from_pca(descriptors: Tensor, dim: int | None = None, shrinkage: float = 0.0) -> Whitening:
    """PCA whitening, for sets without pairs: P = Λ^(−1/2) Vᵀ of the covariance over N.

    Args:
        descriptors: N×D.
        dim: how many of the leading directions to keep; all by default.
        shrinkage: as in ``whitening_from_pairs``; needed to keep more directions than the set varies in.

    Raises:
        InputError: the descriptors vary in fewer than ``dim`` directions.
    """
    X = _checked(descriptors)
    m = X.mean(0)
    covariance = _shrunk((X - m).T @ (X - m) / len(X), shrinkage)
    values, V = torch.linalg.eigh((covariance + covariance.T) / 2)
    values, V = values.flip(0), V.flip(-1)
    dim = X.shape[1] if dim is None else dim
    if not 1 <= dim <= X.shape[1]:
        raise InputError(f"dim must be from 1 to {X.shape[1]}, not {dim}.")
    rank = int((values > values[0].clamp(min=0) * 1e-12).sum())
    if rank < dim:
        raise InputError(
            f"{len(X)} descriptors vary in only {rank} of {X.shape[1]} dimensions, so {dim} cannot be whitened. "
            f"Give more images, set dim={rank} or less, or set a shrinkage such as 0.1."
        )
    return Whitening(m, (V[:, :dim] / values[:dim].sqrt()).T)


def pairs_of_classes(labels: Tensor, max_pairs: int = 200_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Row numbers of pairs of images of one class: all of them, or ``max_pairs`` drawn at random without repetition.

    Examples:
        >>> pairs_of_classes(torch.tensor([7, 7, 8, 7]))
        (tensor([0, 0, 1]), tensor([1, 3, 3]))
    """
    labels = torch.as_tensor(labels).cpu()
    rows = labels.argsort(stable=True)
    _, sizes = labels[rows].unique_consecutive(return_counts=True)
    first = sizes.cumsum(0) - sizes  # where each class begins in rows
    pairs = sizes * (sizes - 1) // 2
    total = int(pairs.sum())
    if total == 0:
        raise InputError("no class has two images, so there are no pairs to learn whitening from; use PCA whitening.")
    # Pairs are numbered class by class and only the chosen numbers are turned into rows: a class of 10,000 images has
    # 50 million.
    sample = range(total) if total <= max_pairs else sorted(random.Random(seed).sample(range(total), max_pairs))
    numbers = torch.tensor(sample)
    ends = pairs.cumsum(0)
    which = torch.searchsorted(ends, numbers, right=True)
    k, m = numbers - (ends - pairs)[which], sizes[which]
    i = (((2 * m - 1) - ((2 * m - 1).double().square() - 8 * k.double()).sqrt()) / 2).floor().long()
    before = i * (2 * m - i - 1) // 2  # pairs whose first image comes before i
    return rows[first[which] + i], rows[first[which] + k - before + i + 1]


def _checked(descriptors: Tensor) -> Tensor:
    if descriptors.ndim != 2 or len(descriptors) < 2:
        raise InputError(f"whitening needs an N×D tensor of at least 2 descriptors, not {tuple(descriptors.shape)}.")
    X = descriptors.detach().to(torch.float64)
    if not bool(torch.isfinite(X).all()):
        raise InputError("the descriptors contain NaN or infinite values; leave out images that could not be read.")
    return X


def _shrunk(S: Tensor, shrinkage: float) -> Tensor:
    if not 0 <= shrinkage <= 1:
        raise InputError(f"shrinkage must be between 0 and 1, not {shrinkage}.")
    identity = torch.eye(len(S), dtype=S.dtype, device=S.device)
    shrunk: Tensor = (1 - shrinkage) * S + shrinkage * S.trace() / len(S) * identity
    return shrunk


def _factor(S: Tensor, shrinkage: float, count: int, of: str) -> Tensor:
    """The Cholesky factor of the shrunk S, adding multiples of the identity until it is positive definite.

    ``count`` samples, ``of`` which there must be as many as dimensions without shrinkage.
    """
    if count < len(S) and shrinkage <= 0:
        raise InputError(
            f"{count} {of} for {len(S)} dimensions: unseen directions would be amplified without bound. Give more, or a "
            "shrinkage such as 0.1."
        )
    S = _shrunk(S, shrinkage)
    scale = float(S.diagonal().max())
    if scale <= 0:
        raise InputError("the two images of every pair have the same descriptor: there is no difference to whiten.")
    identity = torch.eye(len(S), dtype=S.dtype, device=S.device)
    loading = 0.0
    while loading <= scale:
        factor: Tensor
        factor, failure = torch.linalg.cholesky_ex(S + loading * identity)
        # Because of rounding, a singular matrix often does not fail; its pivots reveal it.
        if int(failure) == 0 and float(factor.diagonal().square().min()) > _SMALLEST_PIVOT * scale:
            return factor
        loading = loading * 10 or _FIRST_LOADING
    raise InputError("the differences within pairs are too degenerate to whiten; set a shrinkage such as 0.1.")
