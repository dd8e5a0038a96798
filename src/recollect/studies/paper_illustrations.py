"""The paper's explanatory figures on the page: its two sigmoids, the gradient against the rank, two losses on the same
similarities, rs@k and recall@k, and SiMix.

The numbers are computed by the losses themselves (``report/method.py``, ``report/paper_figures.py``); ``paper_page.py``
puts the figures first.
"""

from __future__ import annotations

from collections.abc import Sequence

from recollect.common.words import in_decimals
from recollect.report import paper_figures
from recollect.report.charts import line_chart
from recollect.report.markup import Markup, element, join, table
from recollect.report.method import curves


def idea() -> Markup:
    """The illustrations, with a sentence on each."""
    return join(
        element("h3", "Two sigmoids instead of two steps"),
        element(
            "p",
            "Recall@k counts in steps: an image is ahead of another or not, a positive is among the first k or not. RS@k "
            "replaces both by sigmoids, so that ranks and hits have gradients. The gradient of a hit is largest where the "
            "positive's rank is near k; several values of k push positives at several ranks.",
        ),
        _curves(),
        element("h3", "What a loss on pairs and RS@k do to the same similarities"),
        element(
            "p",
            "A query, two positives and two negatives. Pull is minus the gradient by the similarity, each loss scaled by "
            "its strongest: above 0 an item is drawn to the query, below 0 pushed away. The loss on pairs is contrastive, "
            "with margins of 0.9 for positives and 0.6 for negatives: it pulls wherever a similarity is off its margin. RS@k "
            "pulls where the order can change.",
        ),
        element("div", map(_pull_table, paper_figures.MOTIVATION, paper_figures.pulls()), class_="columns"),
        element("h3", "rs@k beside recall@k"),
        element(
            "p",
            "Recall@k jumps when a positive enters the first k; rs@k, which the loss maximizes, moves before that. Both are "
            "shares of min(k, number of positives), as in the loss. Only the second positive's similarity changes.",
        ),
        table(
            ["list, most similar first", *(f"{name}@{k}" for k in (1, 2, 3) for name in ("recall", "rs"))],
            [
                [
                    join(element("strong", listed.title), element("br"), _ranking(listed)),
                    *(
                        f"{100 * value:.0f}"
                        for _, exact, soft in paper_figures.compared(listed)
                        for value in (exact, soft)
                    ),
                ]
                for listed in paper_figures.COMPARED
            ],
            caption="Recall@k and rs@k in percent; ● positive, ○ negative, with its similarity",
        ),
        element("h3", "SiMix: similarities of images that are never made"),
        _simix(),
    )


def _curves() -> Markup:
    """The two sigmoids, and the gradient against the rank."""
    words = {
        "similarities": ("Is z ahead of x?", "difference of similarities", "share of a rank"),
        "ranks": ("Is a positive among the first 4?", "rank of the positive", "hits"),
        "gradient": ("How strongly a positive is pushed up", "rank of the positive", "size of the gradient"),
    }
    charts = []
    for name, lines in curves().items():
        title, x_label, y_label = words[name]
        charts.append(line_chart(lines, title=title, x_label=x_label, y_label=y_label, from_zero=True))
    return element("div", charts, class_="charts")


def _pull_table(listed: paper_figures.RankedList, pulls: Sequence[paper_figures.Pull]) -> Markup:
    rows = [
        [
            "● positive" if pull.positive else "○ negative",
            in_decimals(pull.similarity, 2),
            *(in_decimals(value, 2, plus=True) for value in (pull.pairs, pull.recall)),
        ]
        for pull in (pulls[item] for item in listed.order)
    ]
    return table(["item", "similarity", "pull, loss on pairs", "pull, RS@k"], rows, caption=listed.title.capitalize())


def _ranking(listed: paper_figures.RankedList) -> str:
    return "  ".join(
        f"{'●' if listed.positive[item] else '○'} {listed.similarities[item]:.3g}" for item in listed.order
    )


def _simix() -> Markup:
    mixed = paper_figures.mixed_similarities()
    count, side, left = len(mixed.labels), 26, 46
    cells: list[Markup] = []
    for row in range(count):
        name = f"{'v' if mixed.virtual[row] else 'x'}{row + 1}"
        cells.append(element("text", name, x=left - 8, y=left + side * row + 18, text_anchor="end"))
        cells.append(element("text", name, x=left + side * row + side / 2, y=left - 8, text_anchor="middle"))
        for column in range(count):
            value = float(mixed.similarities[row, column])
            same = mixed.labels[row] == mixed.labels[column]
            kinds = ("both given", "one virtual", "both virtual")
            kind = kinds[mixed.virtual[row] + mixed.virtual[column]]
            hint = element("title", f"{name}, column {column + 1}: {in_decimals(value, 2)}, {kind}")
            cells.append(
                element(
                    "rect",
                    hint,
                    x=left + side * column + 1,
                    y=left + side * row + 1,
                    width=side - 2,
                    height=side - 2,
                    class_=f"dot-{1 if same else 2}",
                    fill_opacity=round(0.08 + 0.85 * max(0.0, value), 2),
                )
            )
    edge = left + side * sum(not virtual for virtual in mixed.virtual)
    far = left + side * count
    cells.append(element("line", x1=edge, x2=edge, y1=left, y2=far, class_="tick"))
    cells.append(element("line", x1=left, x2=far, y1=edge, y2=edge, class_="tick"))
    svg = element(
        "svg",
        element("title", "Similarities of six images and three virtual ones"),
        element("desc", "Rows and columns are x1 to x6, two of each class, then v7 to v9, one mixture for each class."),
        cells,
        viewBox=f"0 0 {far + 10} {far + 10}",
        role="img",
        class_="chart small-chart",
    )
    words = (
        "Six images x of three classes and a mixture v of each class's two. Darker is more similar; blue is the same class, "
        "brown another. Everything right of or below the lines is mixed from what is inside them."
    )
    return element("figure", element("figcaption", words), svg)
