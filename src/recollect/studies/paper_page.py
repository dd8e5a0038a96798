"""``recollect paper``: the paper's tables, bar plots and figures on one page, with your own runs beside them.

Numbers come from the paper (``published/``), the explanatory figures from the losses (``paper_figures.py``), a
reader's runs from their folders: a run belongs to the row whose recipe it was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from recollect.common.files import write_text
from recollect.report.bars import Bar, bar_chart
from recollect.report.charts import Line, line_chart
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.page import check_target, document
from recollect.report.runs import Run, read_run
from recollect.studies import paper_figures
from recollect.studies.published import published_rows

GENERATOR = "recollect paper"
_MINUS = "–"

DATA = {
    "inat": ("iNaturalist", "inaturalist/test"),
    "sop": ("SOP", "sop/test"),
    "vid_small": ("VehicleID, small", "vehicleid/test_small"),
    "vid_medium": ("VehicleID, medium", "vehicleid/test_medium"),
    "vid_large": ("VehicleID, large", "vehicleid/test_large"),
    "cars": ("Cars196", "cars196/test"),
}
"""Columns of the tables by their beginning: what they are called, and the test set they are of."""

_INSTANCE = {
    "rox_medium": ("roxford5k", "medium/map"),
    "rox_hard": ("roxford5k", "hard/map"),
    "rox_r1m_medium": ("roxford5k+revisitop1m", "medium/map"),
    "rox_r1m_hard": ("roxford5k+revisitop1m", "hard/map"),
    "rpar_medium": ("rparis6k", "medium/map"),
    "rpar_hard": ("rparis6k", "hard/map"),
    "rpar_r1m_medium": ("rparis6k+revisitop1m", "medium/map"),
    "rpar_r1m_hard": ("rparis6k+revisitop1m", "hard/map"),
}
_INITS = {"IN-21K": "vit-{}-in21k", "CLIP-400M": "clip400m-{}", "CLIP-2B": "clip2b-{}", "DiHT": "diht-{}"}
_INITS |= {"SWAG": "swag-{}", "DINOv2": "dinov2-{}"}
_METHODS = {"init": "init", "SAP": "sap", "RS@k": "rsk", "RS@k+SiMix": "rsk-simix"}

Own = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Recipe without its data set, e.g. ``r50-512/rsk`` → test set → metric → percent."""


def write_paper(runs: Sequence[Path | str], out: Path | str, *, overwrite: bool = False) -> Path:
    """Write the page.

    Args:
        runs: run folders, evaluated with ``recollect eval``; may be empty.
        out: the file.
        overwrite: replace the file even if ``recollect paper`` did not write it.

    Raises:
        DataError: a folder is not a run.
        InputError: ``out`` is a file of someone else.

    Example:
        >>> write_paper([], "paper.html").name
        'paper.html'
    """
    path = Path(out)
    check_target(path, overwrite, GENERATOR)
    read = [read_run(run) for run in runs]
    own, unplaced = own_results(read)
    parts: list[tuple[str, str, Child]] = [
        ("idea", "The idea", _idea()),
        ("methods", "Other methods", _methods(own)),
        ("initialization", "Initialization", _initialization(own)),
        ("instance", "Instance search", _instance(own)),
        ("batch", "Batch size", _batch(own)),
        ("tau1", "Temperature on ranks", _tau1(own)),
        ("k", "Sets of k", _k_sets(own)),
    ]
    said = f"{len(read) - len(unplaced)} of your runs stand beside the published rows." if read else ""
    remarks = [f"{run.name}: {why}" for run, why in unplaced]
    body = join(
        element("h1", "Three Things to Know about Deep Metric Learning: the published results"),
        element(
            "p",
            "Published numbers are the paper's own, in percent; a dash was not published. Rows marked † were trained by "
            f"its authors. {said}",
            class_="introduction",
        ),
        element("ul", [element("li", remark) for remark in remarks], class_="remarks") if remarks else None,
        [element("section", element("h2", name), content, id=key, aria_label=name) for key, name, content in parts],
    )
    write_text(path, document("Published results", body, [(key, name) for key, name, _ in parts], GENERATOR))
    return path


def own_results(runs: Sequence[Run]) -> tuple[Own, list[tuple[Run, str]]]:
    """The results of ``runs`` by recipe, and the runs that have no place in a table, with the reason."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    unplaced = []
    for run in runs:
        recipe = str(run.setting("name", ""))
        family, _, row = recipe.partition("/")
        if not row:
            unplaced.append((run, f"its recipe {recipe!r} is not a row of the paper."))
        elif not run.evaluated:
            unplaced.append((run, "it has no result yet: run recollect eval first."))
        else:
            place = found.setdefault(row if "-" not in family else f"{family}/{row}", {})
            for test, metrics in run.evaluated.items():
                place.setdefault(test, {}).update({name: 100 * value for name, value in metrics.items()})
    return found, unplaced


def value_of(own: Own, recipe: str, test: str, metric: str) -> float | None:
    """The user's number for a cell; results are named after the test set, possibly with a suffix."""
    wanted = test.replace("/", "-")
    for name, metrics in own.get(recipe, {}).items():
        if name.replace("/", "-").startswith(wanted) and metric in metrics:
            return metrics[metric]
    return None


def _idea() -> Markup:
    return join(
        element("h3", "What a loss on pairs and RS@k do to the same similarities"),
        element(
            "p",
            "A query, two positives and two negatives. Pull is minus the gradient by the similarity, each loss scaled by "
            "its strongest: above 0 an item is drawn to the query, below 0 pushed away. The loss on pairs pulls wherever "
            "a similarity is off its margin; RS@k pulls where the order can change.",
        ),
        element("div", [_pull_table(listed, pulls) for listed, pulls in _scenes()], class_="columns"),
        element("h3", "rs@k beside recall@k"),
        element(
            "p",
            "Recall@k jumps when a positive enters the first k; rs@k, which the loss maximises, moves before that. Of each "
            "list only the second positive's similarity changes.",
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


def _scenes() -> list[tuple[paper_figures.RankedList, list[paper_figures.Pull]]]:
    return list(zip(paper_figures.MOTIVATION, paper_figures.pulls(), strict=True))


def _pull_table(listed: paper_figures.RankedList, pulls: Sequence[paper_figures.Pull]) -> Markup:
    rows = [
        [
            "● positive" if pull.positive else "○ negative",
            f"{pull.similarity:.2f}",
            *(f"{round(value, 2) + 0.0:+.2f}" for value in (pull.pairs, pull.recall)),
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
            hint = element("title", f"{name}, column {column + 1}: {value:.2f}, {kind}")
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
        "Six images x of three classes and a mixture v of each class's two. Darker is more similar; the first colour is the "
        "same class, the second another. Everything right of or below the lines is mixed from what is inside them."
    )
    return element("figure", element("figcaption", words), svg)


def _cells(row: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    return [row[column] or _MINUS for column in columns]


def _own_cells(own: Own, recipe: str, columns: Sequence[str]) -> list[str]:
    """The user's numbers for columns like ``sop_r10``."""
    shown = []
    for column in columns:
        data, _, k = column.rpartition("_r")
        value = value_of(own, recipe, DATA[data][1], f"r@{k}")
        shown.append(_MINUS if value is None else f"{value:.1f}")
    return shown


def _with_own(rows: Sequence[tuple[str, list[str], str | None]], own: Own, columns: Sequence[str]) -> list[list[Child]]:
    """Published rows, each followed by the user's row of the same recipe, if there is one."""
    shown: list[list[Child]] = []
    for name, cells, recipe in rows:
        shown.append([name, *cells])
        if recipe is not None and recipe in own:
            mine = _own_cells(own, recipe, columns)
            if any(cell != _MINUS for cell in mine):
                shown.append([join("yours: ", name_of(recipe)), *mine])
    return shown


def _columns(rows: Sequence[Mapping[str, str]], apart: Sequence[str]) -> list[str]:
    return [column for column in rows[0] if column not in apart]


def _title(column: str) -> str:
    data, _, k = column.rpartition("_r")
    return f"{DATA[data][0]} r@{k}"


def _method_recipe(row: Mapping[str, str]) -> str | None:
    """The recipe of a row that the authors trained, without its data set."""
    if "(authors)" not in row["method"]:
        return None
    networks = {"R50 d=128": "r50-128", "R50 d=512": "r50-512"}
    networks |= {"ViT-B/32 d=512": "vit-b32-in21k", "ViT-B/16 d=512": "vit-b16-in21k"}
    loss = "sap" if row["method"].startswith("SAP") else "rsk-simix" if "SiMix" in row["method"] else "rsk"
    return f"{networks[row['arch']]}/{loss}"


def _method_name(row: Mapping[str, str]) -> str:
    return f"{row['method'].replace(' (authors)', ' †')}, {row['arch'].replace(' d=', '-')}"


def _methods(own: Own) -> Markup:
    rows = published_rows("methods")
    columns = _columns(rows, ("method", "arch"))
    looks = ("other authors", "trained by the paper's authors", "yours")
    charts = []
    for column in (column for column in columns if column.endswith("_r1")):
        bars = []
        for row in rows:
            if row[column]:
                bars.append(Bar(_method_name(row), float(row[column]), 1 if _method_recipe(row) else 0))
            recipe = _method_recipe(row)
            mine = value_of(own, recipe, DATA[column[:-3]][1], "r@1") if recipe else None
            if mine is not None:
                bars.append(Bar(f"yours: {recipe}", mine, 2))
        used = looks if any(bar.look == 2 for bar in bars) else looks[:2]
        charts.append(bar_chart(bars, used, title=f"r@1 on {DATA[column[:-3]][0]}", value="r@1", low=50.0))
    shown = [(_method_name(row), _cells(row, columns), _method_recipe(row)) for row in rows]
    return join(
        element("div", charts, class_="charts"),
        table(["method", *map(_title, columns)], _with_own(shown, own, columns), caption="r@k in percent"),
    )


def _init_recipe(row: Mapping[str, str]) -> str:
    size = row["arch"].removeprefix("ViT-").replace("/", "").lower()
    return f"{_INITS[row['init']].format(size)}/{_METHODS[row['method']]}"


def _initialization(own: Own) -> Markup:
    rows = published_rows("initialization")
    columns = _columns(rows, ("init", "arch", "method"))
    charts = []
    for column in (column for column in columns if column.endswith("_r1")):
        bars = [
            Bar(f"{row['init']} {row['arch']} {row['method']}", float(row[column]), list(_METHODS).index(row["method"]))
            for row in rows
            if row[column]
        ]
        title = f"r@1 on {DATA[column[:-3]][0]}"
        charts.append(bar_chart(bars, ("not trained", "Smooth-AP", "RS@k"), title=title, value="r@1"))
    shown = [
        (f"{row['init']}, {row['arch']}, {row['method']}", _cells(row, columns), _init_recipe(row)) for row in rows
    ]
    return join(
        element("div", charts, class_="charts"),
        table(["start", *map(_title, columns)], _with_own(shown, own, columns), caption="r@k in percent"),
    )


def means_of(values: Mapping[str, float | None]) -> tuple[float | None, float | None]:
    """The two mean columns of instance search: over all eight numbers, and over the four with distractors.

    A mean is given once all its numbers are there.
    """
    everything = [values[column] for column in _INSTANCE]
    large = [values[column] for column in _INSTANCE if "r1m" in column]

    def mean(numbers: Sequence[float | None]) -> float | None:
        given = [number for number in numbers if number is not None]
        return sum(given) / len(given) if len(given) == len(numbers) else None

    return mean(everything), mean(large)


def _instance(own: Own) -> Markup:
    rows: list[list[Child]] = []
    for row in published_rows("instance_search"):
        name = (
            f"{row['arch'].replace('GeM (FC whitening added afterwards)', 'GeM ∗')}, {row['loss']}, {row['train_set']}"
        )
        rows.append([name, row["mean_all"] or _MINUS, row["mean_r1m"] or _MINUS, *_cells(row, list(_INSTANCE))])
        recipe = f"r101/{_METHODS.get(row['loss'], '')}"
        if row["train_set"] == "GLDv1" and recipe in own and row["arch"] == "GeM":
            values = {column: value_of(own, recipe, test, metric) for column, (test, metric) in _INSTANCE.items()}
            cells = [*means_of(values), *values.values()]
            rows.append([f"yours: {recipe}", *(_MINUS if value is None else f"{value:.1f}" for value in cells)])
    head = ["network, loss, training set", "mean", "mean with R1M"]
    head += [f"{test.replace('+revisitop1m', ' + R1M')} {metric.split('/')[0]}" for test, metric in _INSTANCE.values()]
    words = "mAP in percent; ∗ the last layer is added afterwards as a whitening"
    return table(head, rows, caption=words)


def _batch(own: Own) -> Markup:
    rows = published_rows("batch_size")
    plots = []
    methods = {"SAP": ("sap", "cars_sap_r1"), "RS@k": ("rsk", "cars_rsk_r1")}
    methods |= {"RS@k+SiMix": ("rsk-simix", "cars_rsk_simix_r1")}
    curves = {
        "Cars196": ("cars196-batch", "cars_batch", methods),
        "SOP": ("sop-batch", "sop_batch", {"RS@k": ("rsk", "sop_rsk_r1")}),
    }
    for data, (family, axis, columns) in curves.items():
        given = [row for row in rows if row[axis]]
        lines = []
        for name, (method, column) in columns.items():
            lines.append(
                Line(name, [float(r[axis]) for r in given], [float(r[column]) / 100 for r in given], dots=True)
            )
            points = _own_points(own, family, method, [r[axis] for r in given], f"{data.lower()}/test", "batch")
            if points:
                lines.append(Line(f"{name}, yours", *points, dots=True))
        plots.append(_curve(lines, f"r@1 on {data} by batch size", "images per batch"))
    return element("div", plots, class_="charts")


def _own_points(
    own: Own, family: str, method: str, values: Sequence[str], test: str, word: str
) -> tuple[list[float], list[float]] | None:
    found = [(value, value_of(own, f"{family}/r50-512/{method}/{word}-{value}", test, "r@1")) for value in values]
    points = [(float(value), mine / 100) for value, mine in found if mine is not None]
    return ([x for x, _ in points], [y for _, y in points]) if points else None


def _curve(lines: Sequence[Line], title: str, x_label: str) -> Markup | None:
    return line_chart(lines, title=title, x_label=x_label, y_label="r@1", percent=True)


def _tau1(own: Own) -> Markup:
    lines = []
    for name, method in (("RS@k, yours", "rsk"), ("RS@k+SiMix, yours", "rsk-simix")):
        points = _own_points(own, "cars196-tau1", method, ("0.1", "0.5", "1", "2", "5"), "cars196/test", "tau1")
        if points:
            lines.append(Line(name, *points, dots=True))
    words = (
        "The paper draws r@1 on Cars196 for τ1 = 0.1, 0.5, 1, 2 and 5 and prints no numbers; it reports that 1 is best, with "
        "and without SiMix, and that very small values are worst. Recipes: cars196-tau1/…"
    )
    return join(element("p", words), _curve(lines, "r@1 on Cars196 by τ1", "τ1"))


def _k_sets(own: Own) -> Markup:
    ks = (1, 2, 4, 8, 16)
    rows: list[list[Child]] = []
    for row in published_rows("k_values_cars196"):
        rows.append([f"{{{row['k']}}}", *(row[f"r{k}"] for k in ks), row["avg"]])
        recipe = f"cars196-k/r50-512/rsk/k-{row['k'].replace(',', '-')}"
        values = [value_of(own, recipe, "cars196/test", f"r@{k}") for k in ks]
        mine = [value for value in values if value is not None]
        if mine:
            average = f"{sum(mine) / len(ks):.1f}" if len(mine) == len(ks) else _MINUS
            rows.append(["yours", *(_MINUS if value is None else f"{value:.1f}" for value in values), average])
    return table(
        ["k of the loss", *(f"r@{k}" for k in ks), "mean"], rows, caption="Cars196, ResNet-50, RS@k; r@k in percent"
    )
