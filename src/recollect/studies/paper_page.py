"""``recollect paper``: the paper's tables, bar plots and figures on one page, next to your own runs.

Numbers come from the paper (``published/``), the explanatory figures from the losses (``paper_illustrations.py``), a
reader's runs from their folders: a run belongs to the row whose recipe it was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from recollect.common.files import write_text
from recollect.report.charts import Bar, Line, bar_chart, line_chart
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.page import check_target, document
from recollect.report.runs import Run, read_run
from recollect.studies.paper_illustrations import idea
from recollect.studies.published import published_rows

GENERATOR = "recollect paper"
_MINUS = "–"
"""Maximum number of names below an axis; if there are more, every other one is shown."""

DATA = {
    "inat": ("iNaturalist", "inaturalist/test"),
    "sop": ("SOP", "sop/test"),
    "vid_small": ("VehicleID, small", "vehicleid/test_small"),
    "vid_medium": ("VehicleID, medium", "vehicleid/test_medium"),
    "vid_large": ("VehicleID, large", "vehicleid/test_large"),
    "cars": ("Cars196", "cars196/test"),
}
"""Columns of the tables by their prefix: their title, and their test set."""

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
_FAMILIES = ("inaturalist", "sop", "vehicleid", "cars196", "gldv1")
_ABLATIONS = ("cars196-batch", "sop-batch", "cars196-tau1", "cars196-k")
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
        InputError: ``out`` is a file that recollect did not write.

    Example:
        >>> write_paper([], "paper.html").name
        'paper.html'
    """
    path = Path(out)
    check_target(path, overwrite, GENERATOR)
    read = [read_run(run) for run in runs]
    own, unplaced = own_results(read)
    parts: list[tuple[str, str, Child]] = [
        ("idea", "The idea", idea()),
        ("methods", "Other methods", _methods(own)),
        ("initialization", "Initialization", _initialization(own)),
        ("instance", "Instance search", _instance(own)),
        ("batch", "Batch size", _batch(own)),
        ("tau1", "Temperature on ranks", _tau1(own)),
        ("k", "Sets of k", _k_sets(own)),
    ]
    said = f"{len(read) - len(unplaced)} of your runs are shown next to the published rows." if read else ""
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
        if not row or family not in (*_FAMILIES, *_ABLATIONS):
            unplaced.append((run, f"its recipe {recipe!r} is not a row of the paper."))
        elif not run.evaluated:
            unplaced.append((run, "it has no result yet: run recollect eval first."))
        else:
            place = found.setdefault(f"{family}/{row}" if family in _ABLATIONS else row, {})
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
    """``r@1``, or ``small r@1`` for a part of a data set."""
    data, _, k = column.rpartition("_r")
    return f"{DATA[data][0].partition(', ')[2]} r@{k}".strip()


def _tables(head: str, rows: Sequence[tuple[str, Mapping[str, str], str | None]], own: Own) -> Markup:
    """A table for each data set, of the rows that have a number there: all in one would be wider than a page.

    Args:
        head: title of the rows.
        rows: name, published numbers by column, recipe if there is one.
        own: the user's results.
    """
    made = []
    for name in dict.fromkeys(title.partition(",")[0] for title, _ in DATA.values()):
        starts = [start for start, (title, _) in DATA.items() if title.partition(",")[0] == name]
        columns = [column for column in rows[0][1] if column.rpartition("_r")[0] in starts]
        shown = [
            (row, _cells(numbers, columns), recipe) for row, numbers, recipe in rows if any(map(numbers.get, columns))
        ]
        if shown:
            caption = f"{name}, r@k in percent"
            made.append(table([head, *map(_title, columns)], _with_own(shown, own, columns), caption=caption))
    return element("div", made, class_="columns")


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
    shown = [(_method_name(row), row, _method_recipe(row)) for row in rows]
    words = (
        "Bars are drawn from the paper's table. Its bar plot also has Blackbox AP on VehicleID, large, with 93.0, which the "
        "table does not have."
    )
    return join(element("p", words), element("div", charts, class_="charts"), _tables("method", shown, own))


def _init_recipe(row: Mapping[str, str]) -> str:
    size = row["arch"].removeprefix("ViT-").replace("/", "").lower()
    return f"{_INITS[row['init']].format(size)}/{_METHODS[row['method']]}"


def _initialization(own: Own) -> Markup:
    rows = published_rows("initialization")
    columns = _columns(rows, ("init", "arch", "method"))
    looks = ("not trained", "Smooth-AP", "RS@k", "yours")
    parts: list[Child] = []
    for column in (column for column in columns if column.endswith("_r1")):
        name, test = DATA[column[:-3]]
        charts = []
        for network in dict.fromkeys(row["arch"] for row in rows):
            bars = []
            for row in (row for row in rows if row["arch"] == network):
                label = f"{row['init']}, {row['method']}"
                bars.append(Bar(label, float(row[column]), list(_METHODS).index(row["method"])))
                mine = value_of(own, _init_recipe(row), test, "r@1")
                if mine is not None:
                    bars.append(Bar(f"{label}, yours", mine, 3))
            used = looks if any(bar.look == 3 for bar in bars) else looks[:3]
            charts.append(bar_chart(bars, used, title=f"{name}, {network}", value="r@1", low=20.0))
        parts += [element("h3", f"r@1 on {name}"), element("div", charts, class_="charts")]
    shown = [(f"{row['init']}, {row['arch']}, {row['method']}", row, _init_recipe(row)) for row in rows]
    words = (
        "Bars are drawn from the paper's table. Its bar plot shows, for SWAG with ViT-B/16 on iNaturalist and SOP, the "
        "table's numbers of ViT-L/16."
    )
    return join(element("p", words), parts, _tables("initialization", shown, own))


def means_of(values: Mapping[str, float | None]) -> tuple[float | None, float | None]:
    """The two mean columns of instance search: over all eight numbers, and over the four with distractors.

    A mean is shown only if all its numbers exist.
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
    short = {"roxford5k": "ROxford", "rparis6k": "RParis", "+revisitop1m": " + R1M"}
    for test, metric in _INSTANCE.values():
        for name, shown in short.items():
            test = test.replace(name, shown)
        head.append(f"{test} {metric.split('/')[0]}")
    words = "mAP in percent; ∗ the last layer is added afterwards as a whitening"
    return table(head, rows, caption=words)


def _batch(own: Own) -> Markup:
    rows = published_rows("batch_size")
    methods = {"SAP": ("sap", "cars_sap_r1"), "RS@k": ("rsk", "cars_rsk_r1")}
    methods |= {"RS@k+SiMix": ("rsk-simix", "cars_rsk_simix_r1")}
    swept = [("Cars196", "cars_batch", methods), ("SOP", "sop_batch", {"RS@k": ("rsk", "sop_rsk_r1")})]
    charts: list[Child] = []
    tables: list[Child] = []
    for data, axis, columns in swept:
        given = [row for row in rows if row[axis]]
        curves = {name: (method, [row[column] for row in given]) for name, (method, column) in columns.items()}
        family, title = f"{data.lower()}-batch", f"r@1 on {data} by batch size"
        batches = [row[axis] for row in given]
        chart, numbers = _sweep(own, family, "batch", batches, curves, title, "images per batch")
        charts.append(chart)
        tables.append(numbers)
    words = "ResNet-50, d = 512. The numbers of SOP come with the paper's source; its figure shows Cars196 only."
    return join(element("p", words), element("div", charts, class_="charts"), element("div", tables, class_="columns"))


def _tau1(own: Own) -> Markup:
    values = ("0.1", "0.5", "1", "2", "5")
    nothing = [""] * len(values)
    curves = {"RS@k": ("rsk", nothing), "RS@k+SiMix": ("rsk-simix", nothing)}
    words = (
        "The paper draws r@1 on Cars196 for τ1 = 0.1, 0.5, 1, 2 and 5 and prints no numbers; it reports that 1 is best, with "
        "and without SiMix, and that very small values are worst. Recipes: cars196-tau1/…"
    )
    chart, numbers = _sweep(own, "cars196-tau1", "tau1", values, curves, "r@1 on Cars196 by τ1", "τ1")
    return join(element("p", words), None if chart is None else element("div", chart, class_="charts"), numbers)


def _sweep(
    own: Own,
    family: str,
    word: str,
    values: Sequence[str],
    curves: Mapping[str, tuple[str, Sequence[str]]],
    title: str,
    x_label: str,
) -> tuple[Markup | None, Markup | None]:
    """r@1 over a setting on a logarithmic axis, as a chart and as a table; nothing without a number.

    Args:
        own: the user's results.
        family, word: of the recipes: ``FAMILY/r50-512/METHOD/WORD-VALUE``.
        values: of the setting, in order.
        curves: name of a curve → its method and the published numbers, empty where there are none.
        title, x_label: words.
    """
    test = f"{family.partition('-')[0]}/test"
    columns: dict[str, list[str]] = {}
    for name, (method, published) in curves.items():
        found = [value_of(own, f"{family}/r50-512/{method}/{word}-{value}", test, "r@1") for value in values]
        columns[name] = list(published)
        columns[f"{name}, yours"] = ["" if value is None else f"{value:.2f}" for value in found]
    columns = {name: numbers for name, numbers in columns.items() if any(numbers)}
    places = [float(value) for value in values]
    lines = []
    for name, numbers in columns.items():
        points = [(x, float(number) / 100) for x, number in zip(places, numbers, strict=True) if number]
        lines.append(Line(name, [x for x, _ in points], [y for _, y in points], dots=True))
    chart = line_chart(lines, title=title, x_label=x_label, y_label="r@1", percent=True, log_ticks=places)
    if chart is None:
        return None, None
    rows: list[list[Child]] = [
        [f"{place:,g}", *(numbers[row] or _MINUS for numbers in columns.values())] for row, place in enumerate(places)
    ]
    return chart, table([x_label, *columns], rows, caption=f"{title}, in percent")


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
