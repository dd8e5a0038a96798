"""The paper's explanatory figures, computed by the losses themselves rather than drawn by hand.

``pulls`` is its first figure: what a loss on pairs and RS@k do to the same similarities. ``compared`` is its second:
rs@k beside recall@k on ranked lists. ``mixed_similarities`` is the illustration of SiMix. Each returns numbers;
``method.py`` draws them for the documentation, ``studies/paper_illustrations.py`` shows them on a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.evaluation.metrics import recall_at_k as exact_recall
from recollect.losses import RecallAtK, reference
from recollect.losses.engine.simix import draw_mixing


@dataclass(frozen=True)
class RankedList:
    """A query's database: similarities, and which items are positives."""

    title: str
    similarities: tuple[float, ...]
    positive: tuple[bool, ...]

    @property
    def order(self) -> list[int]:
        """Items from the most to the least similar."""
        return sorted(range(len(self.similarities)), key=lambda item: -self.similarities[item])


MOTIVATION = (
    RankedList("positives first, but not yet similar", (0.70, 0.65, 0.55, 0.50), (True, True, False, False)),
    RankedList("a negative between the positives", (0.86, 0.80, 0.83, 0.40), (True, True, False, False)),
    RankedList("a negative just ahead of both positives", (0.93, 0.92, 0.94, 0.30), (True, True, False, False)),
)
"""Batches of a query, two positives and two negatives, on which a loss on pairs and RS@k disagree."""

COMPARED = (
    RankedList("one positive first, one fourth", (0.90, 0.79, 0.85, 0.82, 0.70), (True, True, False, False, False)),
    RankedList(
        "the second closer to those before it", (0.90, 0.815, 0.85, 0.82, 0.70), (True, True, False, False, False)
    ),
    RankedList("the second third", (0.90, 0.835, 0.85, 0.82, 0.70), (True, True, False, False, False)),
    RankedList("the second second", (0.90, 0.88, 0.85, 0.82, 0.70), (True, True, False, False, False)),
)
"""One list while the similarity of its second positive rises; negatives are unchanged."""


@dataclass(frozen=True)
class Pull:
    """Effect of two losses on one item: minus the gradient with respect to its similarity; above 0 is towards the query."""

    similarity: float
    positive: bool
    pairs: float
    recall: float


def pulls(scenes: Sequence[RankedList] = MOTIVATION, k: Sequence[int] = (1, 2)) -> list[list[Pull]]:
    """Minus the gradients of a loss on pairs and of RS@k with respect to each similarity, for each scene.

    Each loss is scaled so that its strongest pull over all scenes is 1.
    """
    of_losses = []
    for loss in (reference.calibration, RecallAtK(k=list(k))):
        of_scenes = []
        for listed in scenes:
            query, items, labels = _batch(listed)
            leaf = items.clone().requires_grad_()
            value = loss(query, torch.ones(1, dtype=torch.int64), leaf, labels)
            (gradient,) = torch.autograd.grad(value, leaf)
            # The query is the first axis: an item's similarity is its component there.
            of_scenes.append(-gradient[:, 0])
        strongest = max(float(pull.abs().max()) for pull in of_scenes)
        of_losses.append([(pull / strongest).tolist() for pull in of_scenes])
    return [
        [Pull(*item) for item in zip(listed.similarities, listed.positive, pairs, recall, strict=True)]
        for listed, pairs, recall in zip(scenes, *of_losses, strict=True)
    ]


def compared(listed: RankedList, ks: Sequence[int] = (1, 2, 3)) -> list[tuple[int, float, float]]:
    """For each k: recall@k as evaluation counts it, and rs@k as the loss has it."""
    query, items, labels = _batch(listed)
    ranks = torch.tensor([[listed.order.index(item) + 1 for item, is_one in enumerate(listed.positive) if is_one]])
    positives = torch.tensor([sum(listed.positive)])
    found = []
    for k in ks:
        loss = RecallAtK(k=[k])(query, torch.ones(1, dtype=torch.int64), items, labels)
        exact = float(exact_recall(ranks.sort(dim=1).values, positives, k)[0]) * int(positives) / min(k, int(positives))
        found.append((k, exact, 1 - float(loss)))
    return found


@dataclass(frozen=True)
class Mixed:
    """Similarities of a batch and its virtual examples: one row and column each, originals first."""

    similarities: Tensor
    labels: list[int]
    virtual: list[bool]


def mixed_similarities(classes: int = 3, each: int = 2, seed: int = 2) -> Mixed:
    """SiMix on a toy batch: all similarities come from those of the originals, no virtual embedding is made."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(each)
    centres = torch.nn.functional.normalize(torch.randn(classes, 8, generator=generator, dtype=torch.float64), dim=1)
    noise = torch.randn(len(labels), 8, generator=generator, dtype=torch.float64)
    embeddings = torch.nn.functional.normalize(centres[labels] + 0.25 * noise, dim=1)
    mixing = draw_mixing(labels, generator=generator)
    rows = mixing.mix_rows(embeddings @ embeddings.T)
    whole = mixing.mix_rows(rows.T.contiguous())
    virtual = [row >= len(labels) for row in range(len(mixing))]
    return Mixed(whole, labels[mixing.first].tolist(), virtual)


def _batch(listed: RankedList) -> tuple[Tensor, Tensor, Tensor]:
    """A query and items of length 1 that have just these similarities to it, with labels: 1 is the query's class."""
    similarities = torch.tensor(listed.similarities, dtype=torch.float64)
    count = len(similarities)
    query = torch.zeros(1, count + 1, dtype=torch.float64)
    query[0, 0] = 1
    items = torch.zeros(count, count + 1, dtype=torch.float64)
    items[:, 0] = similarities
    items[torch.arange(count), torch.arange(1, count + 1)] = (1 - similarities**2).sqrt()
    return query, items, torch.tensor([int(is_one) for is_one in listed.positive])
