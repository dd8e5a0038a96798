"""Small losses and networks that the tests of the training room share, written as their equations."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class PlainRecall(nn.Module):
    """RS@k as its equation, with the part of one process: enough to test with, far too slow to use."""

    def __init__(self, k: tuple[int, ...] = (1, 2, 4), tau1: float = 1.0, tau2: float = 0.05) -> None:
        super().__init__()
        self.k, self.tau1, self.tau2 = k, tau1, tau2
        self.queries_seen = 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.share(embeddings, labels, 0, 1)

    def share(self, embeddings: Tensor, labels: Tensor, rank: int, world_size: int) -> Tensor:
        total = len(labels)
        rows = torch.arange(total)[rank * total // world_size : (rank + 1) * total // world_size]
        self.queries_seen = len(rows)
        S = embeddings @ embeddings.T
        value = S.new_zeros(())
        for q in rows.tolist():
            others = torch.arange(total) != q
            positives = (labels == labels[q]) & others
            steps = torch.sigmoid((S[q][None, others] - S[q][positives][:, None]) / self.tau2)
            ranks = 1 + steps.sum(dim=1) - 0.5  # z = x adds sigmoid(0)
            for k in self.k:
                hits = torch.sigmoid((k - ranks) / self.tau1).sum()
                value = value + 1 - hits.clamp(max=k) / min(k, int(positives.sum()))
        return value / (total * len(self.k))


class NPair(nn.Module):
    """Softmax over similarities; no part of its own per process."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        S = embeddings @ embeddings.T / 0.1
        S = S - 1e6 * torch.eye(len(S), dtype=S.dtype)
        same = (labels[:, None] == labels[None]).to(S.dtype) - torch.eye(len(S), dtype=S.dtype)
        return -(S.log_softmax(dim=1) * same).sum() / same.sum()


class Proxies(nn.Module):
    """A loss with parameters of its own: one proxy a class."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.linspace(-1, 1, classes * dim).view(classes, dim).sin())

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        logits = embeddings @ F.normalize(self.proxies, dim=1).to(embeddings.dtype).T / 0.1
        return F.cross_entropy(logits, labels)


class UnequalProxies(Proxies):
    """The same on processes that do not compute the same to the bit, as GPUs do not; the first one is exact."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        rank = dist.get_rank() if dist.is_initialized() else 0
        own = self.proxies.clone()
        own.register_hook(lambda gradient: gradient + 1e-3 * rank)
        return F.cross_entropy(embeddings @ F.normalize(own, dim=1).to(embeddings.dtype).T / 0.1, labels)


class SharedProxies(Proxies):
    """The same, each process computing its part, so that the proxies' gradients come in parts too."""

    def share(self, embeddings: Tensor, labels: Tensor, rank: int, world_size: int) -> Tensor:
        total = len(labels)
        rows = slice(rank * total // world_size, (rank + 1) * total // world_size)
        return self(embeddings[rows], labels[rows]) * len(labels[rows]) / total


class Noisy(nn.Module):
    """A loss that draws from the global generator."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return (embeddings * torch.randn(embeddings.shape, dtype=torch.float64).to(embeddings)).sum()


class DropPath(nn.Module):
    """Stochastic depth: a whole branch dropped for each image at random."""

    def __init__(self, branch: nn.Module, probability: float) -> None:
        super().__init__()
        self.branch, self.probability = branch, probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x + self.branch(x)
        keep = torch.rand(len(x), *[1] * (x.ndim - 1)) >= self.probability
        return x + self.branch(x) * keep.to(x.dtype) / (1 - self.probability)


class Unit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


def convnet(*, norm: nn.Module | None = None, dropout: float = 0.0, drop_path: float = 0.0) -> nn.Sequential:
    """3 × 8 × 8 images to unit vectors of 6 numbers."""
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1), norm or nn.GroupNorm(2, 8), nn.GELU()]
    if drop_path:
        layers.append(DropPath(nn.Conv2d(8, 8, 3, padding=1), drop_path))
    layers += [nn.Conv2d(8, 8, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(8, 6), Unit())


def batch(classes: int = 5, each: int = 4, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(classes * each, 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.arange(classes).repeat_interleave(each)


def gradients(*modules: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for module in modules for p in module.parameters()]


def difference(one: list[Tensor | None], other: list[Tensor | None]) -> float:
    """The largest difference anywhere; None must meet None."""
    assert [g is None for g in one] == [g is None for g in other]
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    assert pairs
    assert max(float(b.abs().max()) for _, b in pairs) > 1e-6, "all gradients vanish: nothing was tested"
    return max(float((a - b).abs().max()) for a, b in pairs)
