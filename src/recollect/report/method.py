"""The figures that explain the method, drawn from the losses themselves.

The two sigmoids, gradient against rank, what a loss on pairs and RS@k do to the same similarities, rs@k beside recall@k,
and SiMix. No formula is typed here a second time. Values come from ``RecallAtK`` and its steps, gradients from autograd
through them, so a correct figure is another check of the loss. Used by the documentation and the page of the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.common.errors import InputError
from recollect.common.files import atomic_write
from recollect.losses import RecallAtK
from recollect.losses.engine.soft_rank import Ranks
from recollect.losses.engine.steps import Sigmoid
from recollect.report import paper_figures
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


def draw_method(out: Path | str, *, overwrite: bool = False) -> list[Path]:
    """Draw the figures into a folder, each as SVG and as PNG.

    Args:
        out: the folder; created if missing.
        overwrite: replace files of the same names.

    Returns:
        The files written.

    Raises:
        InputError: a file already exists.

    Example:
        >>> [path.name for path in draw_method("figures")][:2]
        ['sigmoids.svg', 'sigmoids.png']
    """
    folder = Path(out)
    drawings: dict[str, Callable[[], Any]] = {
        "sigmoids": _sigmoids,
        "gradient-against-rank": _gradient,
        "pairs-and-ranks": _pairs_and_ranks,
        "recall-and-rs": _recall_and_rs,
        "simix": _simix,
    }
    paths = [folder / f"{name}.{kind}" for name in drawings for kind in ("svg", "png")]
    for path in paths:
        if path.exists() and not overwrite:
            raise InputError(f"{path} already exists: choose another --out, or allow overwriting (--overwrite).")
    import matplotlib

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
    from matplotlib.figure import Figure

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
    scenes = paper_figures.MOTIVATION
    figure, panels = _figure(len(scenes))
    for panel, listed, pulls in zip(panels, scenes, paper_figures.pulls(), strict=True):
        ordered = [pulls[item] for item in listed.order]
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
    first = paper_figures.COMPARED[0]
    moved = next(item for item in reversed(first.order) if first.positive[item])
    negatives = [value for value, positive in zip(first.similarities, first.positive, strict=True) if not positive]
    xs = torch.linspace(0.76, 0.89, 131, dtype=torch.float64).tolist()
    found = []
    for x in xs:
        similarities = tuple(x if item == moved else value for item, value in enumerate(first.similarities))
        found.append(paper_figures.compared(paper_figures.RankedList("", similarities, first.positive), k))
    for number, (panel, one) in enumerate(zip(panels, k, strict=True)):
        panel.plot(xs, [row[number][2] for row in found], color=_COLOURS[0], label=f"rs@{one}")
        panel.plot(xs, [row[number][1] for row in found], color=_COLOURS[1], linestyle="--", label=f"recall@{one}")
        for value in negatives:
            if xs[0] < value < xs[-1]:
                panel.axvline(value, color="#57534e", linewidth=0.8, linestyle=":")
        panel.set(title=f"k = {one}", xlabel="similarity of the second positive", ylim=(0.3, 1.05))
        panel.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


def _simix() -> Any:
    """The similarities of a small batch and its virtual examples; mixed ones are beyond the lines."""
    mixed = paper_figures.mixed_similarities()
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
