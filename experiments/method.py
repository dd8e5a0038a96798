"""The figures that explain the method, drawn from the losses themselves: ``python -m experiments method``.

The two sigmoids, gradient against rank, what a loss on pairs and RS@k do to the same similarities (the paper's first
figure), rs@k beside recall@k on ranked lists (its second), and SiMix. No formula is typed here a second time. Values come
from ``RecallAtK`` and its steps, gradients from autograd through them, so a correct figure is another check of the loss.
Used by the documentation; ``paper.py`` shows the same numbers on a page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from tests.oracles import losses as reference
from torch import Tensor

from recollect.common.errors import InputError
from recollect.common.files import atomic_write
from recollect.evaluation.metrics import recall_at_k as exact_recall
from recollect.losses import RecallAtK
from recollect.losses.engine.simix import draw_mixing
from recollect.losses.engine.soft_rank import Ranks
from recollect.losses.engine.steps import Sigmoid
from recollect.report.charts import Line

_COLOURS = ("#1d4ed8", "#b45309", "#047857", "#1c1b19")
_DASHES: tuple[Any, ...] = ((0, (8, 2, 2, 2)), (0, (6, 2)), (0, (1.5, 1.5)), "-")


def hits_at(ranks: Tensor, k: Sequence[int], tau1: float = 1.0) -> Tensor:
    """How much RS@k counts a query's only positive as found, averaged over ``k``, by the positive's rank.

    With one positive, ``loss = 1 − mean_k σ_tau1(k − rank)``; the value is computed from the loss.

    Examples:
        >>> hits_at(torch.tensor([1.0, 2.0, 3.0]), [2]).tolist()[1]
        0.5
    """
    one = torch.ones(1, len(ranks), dtype=ranks.dtype)
    positive = Ranks(all=ranks[None], positives=one, mask=one, count=one[0])
    return 1 - RecallAtK(k=k, tau1=tau1).query_loss(positive)


def push_at(ranks: Tensor, k: Sequence[int], tau1: float = 1.0) -> Tensor:
    """How strongly a positive at each rank is pushed up: Σ_k |∂ hits_k / ∂ rank|, from the loss's own gradient.

    The loss averages over the values of k; the sum over them is what adds up from the curves of single ones.
    """
    leaf = ranks.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(hits_at(leaf, k, tau1).sum(), leaf)
    return slope.abs() * len(k)


def ahead_at(differences: Tensor, tau2: float = 0.01) -> Tensor:
    """How much an image adds to another's rank, by how much more similar to the query it is."""
    step = Sigmoid(tau2)
    z, x = (differences / tau2)[:, None].clone(), torch.zeros(1, 1, dtype=differences.dtype)
    bound = step.bind(z, x, x[0], x[0])
    return bound.rise(slice(None), 1, torch.empty(1, len(differences), 1, dtype=differences.dtype))[0, :, 0]


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
    rows = []
    for k in ks:
        loss = RecallAtK(k=[k])(query, torch.ones(1, dtype=torch.int64), items, labels)
        exact = float(exact_recall(ranks.sort(dim=1).values, positives, k)[0]) * int(positives) / min(k, int(positives))
        rows.append((k, exact, 1 - float(loss)))
    return rows


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


def draw_method(out: Path, *, overwrite: bool = False) -> list[Path]:
    """Draw the figures into a folder, each as SVG and as PNG.

    Args:
        out: the folder; created if missing.
        overwrite: replace files of the same names.

    Returns:
        The files written.

    Raises:
        InputError: a file already exists.
    """
    drawings: dict[str, Callable[[], Any]] = {
        "sigmoids": _sigmoids,
        "gradient-against-rank": _gradient,
        "pairs-and-ranks": _pairs_and_ranks,
        "recall-and-rs": _recall_and_rs,
        "simix": _simix,
    }
    paths = [out / f"{name}.{kind}" for name in drawings for kind in ("svg", "png")]
    for path in paths:
        if path.exists() and not overwrite:
            raise InputError(f"{path} already exists: choose another --out, or allow overwriting (--overwrite).")
    # Text stays text and ids are stable: small files, and meaningful diffs.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "recollect", "font.size": 11}):
        figures = {name: draw() for name, draw in drawings.items()}
        for path in paths:
            figure = figures[path.stem]
            with atomic_write(path) as file:
                metadata = {"Date": None} if path.suffix == ".svg" else {}
                figure.savefig(file, format=path.suffix[1:], dpi=160, metadata=metadata)
    return paths


def _figure(panels: int) -> tuple[Any, list[Any]]:
    # Without pyplot, which would keep every figure in memory and look for a display.
    figure = Figure(figsize=(4.6 * panels, 3.3), layout="constrained", facecolor="white")
    axes = [figure.add_subplot(1, panels, number + 1) for number in range(panels)]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color="#e5e2dd", linewidth=0.8)
    return figure, axes


def curves() -> dict[str, list[Line]]:
    """The step on ranks for k = 4, the step on similarities, and the gradient by the rank of a positive."""
    ranks = torch.linspace(0, 10, 201, dtype=torch.float64)
    differences = torch.linspace(-0.1, 0.1, 201, dtype=torch.float64)
    used = {1.0: " (used)", 0.01: " (used)"}
    sets = {"k = 1": [1], "k = 2": [2], "k = 4": [4], "k ∈ {1, 2, 4}, sum": [1, 2, 4]}
    return {
        "ranks": [
            Line(f"τ1 = {tau:g}{used.get(tau, '')}", ranks.tolist(), hits_at(ranks, [4], tau).tolist())
            for tau in (1.0, 0.1)
        ],
        "similarities": [
            Line(f"τ2 = {tau:g}{used.get(tau, '')}", differences.tolist(), ahead_at(differences, tau).tolist())
            for tau in (0.01, 0.1)
        ],
        "gradient": [Line(name, ranks.tolist(), push_at(ranks, k).tolist()) for name, k in sets.items()],
    }


def _sigmoids() -> Any:
    figure, (left, right) = _figure(2)
    for panel, name in ((left, "ranks"), (right, "similarities")):
        for number, line in enumerate(curves()[name]):
            panel.plot(line.x, line.y, color=_COLOURS[number], linestyle=("-", "--")[number], label=line.name)
        panel.axvline(4 if panel is left else 0, color="#57534e", linewidth=0.8, linestyle=":")
        panel.legend(frameon=False, fontsize=9)
    left.set(title="Is a positive among the first k = 4?", xlabel="rank r of the positive", xlim=(0, 10))
    left.set_ylabel("σ(k − r)")
    right.set(title="Is z ahead of x?", xlabel="difference of similarities", xlim=(-0.1, 0.1))
    right.set_ylabel("share of a rank")
    right.locator_params(axis="x", nbins=5)
    return figure


def _gradient() -> Any:
    figure, (panel,) = _figure(1)
    for number, line in enumerate(curves()["gradient"]):
        look = {"color": _COLOURS[number], "linestyle": _DASHES[number], "linewidth": 2.2 if number == 3 else 1.6}
        panel.plot(line.x, line.y, label=line.name, **look)
    panel.set(title="How strongly a positive is pushed up", xlabel="rank of the positive", xlim=(0, 10), ylim=(0, None))
    panel.set_ylabel("size of the gradient")
    panel.legend(frameon=False, fontsize=9)
    return figure


def _pairs_and_ranks() -> Any:
    """Bars of what each loss does to each item, in the order of the list."""
    figure, panels = _figure(len(MOTIVATION))
    for panel, listed, scene in zip(panels, MOTIVATION, pulls(), strict=True):
        ordered = [scene[item] for item in listed.order]
        places = range(len(ordered))
        for number, name in enumerate(("RS@k", "loss on pairs")):
            values = [pull.recall if number == 0 else pull.pairs for pull in ordered]
            middle = [place + (number - 0.5) * 0.36 for place in places]
            panel.barh(middle, values, 0.34, color=_COLOURS[number], hatch=("", "///")[number], label=name, zorder=2)
        names = [f"{'positive' if pull.positive else 'negative'} {pull.similarity:.2f}" for pull in ordered]
        panel.set_yticks(list(places), names)
        panel.invert_yaxis()
        panel.axvline(0, color="#57534e", linewidth=0.8)
        panel.set(title=listed.title, xlabel="pull towards the query", xlim=(-1.05, 1.05))
        panel.title.set_fontsize(10)
    panels[0].legend(frameon=False, fontsize=9, loc="lower left")
    return figure


def _recall_and_rs(k: Sequence[int] = (2, 3)) -> Any:
    """Both while the similarity of the second positive rises past two negatives."""
    figure, panels = _figure(len(k))
    first = COMPARED[0]
    moved = next(item for item in reversed(first.order) if first.positive[item])
    negatives = [value for value, positive in zip(first.similarities, first.positive, strict=True) if not positive]
    xs = torch.linspace(0.76, 0.89, 131, dtype=torch.float64).tolist()
    rows = []
    for x in xs:
        similarities = tuple(x if item == moved else value for item, value in enumerate(first.similarities))
        rows.append(compared(RankedList("", similarities, first.positive), k))
    for number, (panel, one) in enumerate(zip(panels, k, strict=True)):
        panel.plot(xs, [row[number][2] for row in rows], color=_COLOURS[0], label=f"rs@{one}")
        panel.plot(xs, [row[number][1] for row in rows], color=_COLOURS[1], linestyle="--", label=f"recall@{one}")
        for value in negatives:
            if xs[0] < value < xs[-1]:
                panel.axvline(value, color="#57534e", linewidth=0.8, linestyle=":")
        panel.set(title=f"k = {one}", xlabel="similarity of the second positive", ylim=(0.3, 1.05))
        panel.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _simix() -> Any:
    """The similarities of a small batch and its virtual examples; mixed ones are beyond the lines."""
    mixed = mixed_similarities()
    figure, (panel,) = _figure(1)
    labels = torch.tensor(mixed.labels)
    same = (labels[:, None] == labels[None, :]).to(mixed.similarities.dtype)
    panel.grid(False)
    panel.imshow(mixed.similarities.numpy(), cmap="Greys", vmin=-0.3, vmax=1.2)
    for row, column in same.nonzero().tolist():
        panel.text(column, row, "●", ha="center", va="center", color=_COLOURS[0], fontsize=7)
    names = [f"{'v' if virtual else 'x'}{number + 1}" for number, virtual in enumerate(mixed.virtual)]
    panel.set_xticks(range(len(names)), names)
    panel.set_yticks(range(len(names)), names)
    edge = sum(not virtual for virtual in mixed.virtual) - 0.5
    for line in (panel.axhline, panel.axvline):
        line(edge, color=_COLOURS[1], linewidth=1.5)
    panel.set(title="Similarities with SiMix; ● same class")
    return figure
