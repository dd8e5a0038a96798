"""The paper's tables, bar plots and figures on one page, next to your own runs: ``python -m experiments paper``.

Numbers come from the paper (``published/``), the explanatory figures from the losses (``method.py``), a reader's runs from
their folders: a run belongs to the row whose recipe it was trained with, and is marked if settings or test set differ from
the row's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import method as figures
from experiments.published import published_rows
from recollect.common.errors import RecollectError
from recollect.common.files import write_text
from recollect.common.reading import read_json
from recollect.common.text import in_decimals
from recollect.config.resolve import as_mapping, brief, changes, resolve
from recollect.config.schema import Config
from recollect.data import available
from recollect.inference.test_sets import REVISITED, name_of_test
from recollect.report.charts import Bar, Line, bar_chart, line_chart
from recollect.report.markup import Child, Markup, element, join, name_of, table
from recollect.report.page import check_target, document
from recollect.report.results import Run, distinct_names, read_run

GENERATOR = "python -m experiments paper"
_MINUS = "–"

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
_RELEASED = {"": "", "+_as_released": ", as released in 2023", "+_as_released_2024": ", as released in 2024"}
_OF_A_RUN = "seed deterministic verdict evaluate_every evaluate_first watch_test checkpoint_minutes checkpoint_steps"
_OF_A_RUN += " loss_limit loggers logger_options tensorboard"
_SAME_ROW = {"name", "published", "data.test_split", *(f"run.{name}" for name in _OF_A_RUN.split())}
"""Settings that a run may change and still be a run of its row, besides ``CHANGEABLE``."""


@dataclass
class OwnRun:
    """A run beside its row.

    Attributes:
        name: its name on the page.
        remarks: why it is not comparable with the published numbers.
        results: test set → metric → percent.
    """

    name: str
    remarks: list[str] = field(default_factory=list)
    results: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name with the mark of what is not comparable."""
        return f"yours: {self.name}{' ‡' if self.remarks else ''}"

    def percent(self, test: str, metric: str, digits: int = 1) -> str:
        """A number for a cell of a table."""
        value = self.results.get(test, {}).get(metric)
        return _MINUS if value is None else f"{value:.{digits}f}"


Own = Mapping[str, Sequence[OwnRun]]
"""The runs of each recipe, e.g. ``cars196/r50-512/rsk``."""


def write_paper(runs: Sequence[Path], out: Path, *, overwrite: bool = False) -> Path:
    """Write the page.

    Args:
        runs: run folders, evaluated with ``recollect eval``; may be empty.
        out: the file.
        overwrite: replace the file even if this command did not write it.

    Raises:
        DataError: a folder is not a run.
        InputError: ``out`` is a file that recollect did not write.
    """
    check_target(out, overwrite, GENERATOR)
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
    summary = f"{len(read) - len(unplaced)} of your runs are shown next to the published rows." if read else ""
    differing = [run for runs in own.values() for run in runs if run.remarks]
    summary += " Those marked ‡ are not comparable with them, for the reasons below." if differing else ""
    remarks = [f"{run.label}: {'; '.join(run.remarks)}." for run in differing]
    remarks += [f"{name}: {why}" for name, why in unplaced]
    body = join(
        element("h1", "Three Things to Know about Deep Metric Learning: the published results"),
        element(
            "p",
            "Published numbers are the paper's own, in percent; a dash was not published. Rows marked † were trained by "
            f"its authors. {summary}",
            class_="introduction",
        ),
        element("ul", [element("li", remark) for remark in remarks], class_="remarks") if remarks else None,
        [element("section", element("h2", name), content, id=key, aria_label=name) for key, name, content in parts],
    )
    write_text(out, document("Published results", body, [(key, name) for key, name, _ in parts], GENERATOR))
    return out


def own_results(runs: Sequence[Run]) -> tuple[Own, list[tuple[str, str]]]:
    """The runs of each recipe of the paper with their results, and the others by name with the reason."""
    runs_of: dict[str, list[OwnRun]] = {}
    unplaced = []
    for name, run in zip(distinct_names(list(runs)), runs, strict=True):
        recipe = str(run.setting("published.row") or run.setting("name", ""))
        family, _, row = recipe.partition("/")
        if not row or family not in (*_FAMILIES, *_ABLATIONS):
            unplaced.append((name, f"its recipe {recipe!r} is not a row of the paper."))
        elif run.config is None:
            unplaced.append((name, run.remarks[0]))
        else:
            changed, released = _changed(recipe, run.config)
            own = OwnRun(name + released, changed if run.finished else [run.status, *changed])
            _read_results(own, run)
            if own.results:
                runs_of.setdefault(recipe, []).append(own)
            else:
                unplaced.append((name, "it has no result yet: run recollect eval first."))
    return runs_of, unplaced


def _changed(recipe: str, config: Config) -> tuple[list[str], str]:
    """The settings in which a run differs from its row, or from the row as released, whichever it is closer to."""
    compared = []
    for over, title in _RELEASED.items():
        differing = changes(as_mapping(resolve(recipe + over)), as_mapping(config))
        # A run has the values that were chosen for "auto"; its weights may lie anywhere, but "none" is another network.
        remark = [
            f"{name} is {brief(value)} instead of {brief(row)}"
            for name, (row, value) in differing.items()
            if not any(f"{name}.".startswith(f"{same}.") for same in _SAME_ROW)
            and row != "auto"
            and (name != "model.weights" or value == "none")
        ]
        compared.append((remark, title))
    return min(compared, key=lambda pair: len(pair[0]))


def _read_results(own: OwnRun, run: Run) -> None:
    """Add the results of ``recollect eval`` to ``own``, and what is remarkable about their test sets."""
    for path in sorted((run.folder.path / "eval").glob("*/metrics.json")):
        try:
            summary = read_json(path, dict)
            source: Mapping[str, Any] = summary["source"]
            test = name_of_test(source["data"], source["split"], bool(source["distractors"]))
            results = {test: summary["metrics"]}
            if "without_distractors" in summary:
                results[name_of_test(source["data"], source["split"])] = summary["without_distractors"]
            remarks = [f"{test}: {remark}" for remark in _test_remarks(summary, run)]
        except (RecollectError, KeyError, TypeError) as error:
            own.remarks.append(f"{path.parent.name} is not a result of recollect eval ({type(error).__name__})")
            continue
        for name, metrics in results.items():
            own.results.setdefault(name, {}).update({key: 100 * value for key, value in metrics.items()})
        own.remarks += remarks


def _test_remarks(summary: Mapping[str, Any], run: Run) -> Iterable[str]:
    source = summary["source"]
    spec = available().get(source["data"])
    counts = [] if spec is None else [table.get(source["split"]) for table in (spec.published, spec.distributed)]
    sizes = [count.images for count in counts if count is not None]
    if "queries" in summary and sizes and summary["queries"] not in sizes:
        yield f"{summary['queries']:,} images instead of {sizes[0]:,}"
    if source.get("trained_classes") and not source.get("trained_classes_excluded"):
        yield "classes it was trained on"
    if summary.get("protocol") == "reid":
        yield "protocol reid, not all against all"
    if source["distractors"] not in (0, "revisitop1m"):
        yield f"distractors are the vectors of {source['distractors']}"
    if source["data"] in REVISITED and source["scales"] != (run.setting("model.scales") or [1.0]):
        yield f"scales {source['scales']}"


def _cells(row: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    return [row[column] or _MINUS for column in columns]


def _own_rows(runs: Iterable[OwnRun], cells: Sequence[tuple[str, str]]) -> list[list[Child]]:
    """A row for each run that has one of the numbers; ``cells`` are a test set and a metric each."""
    rows: list[list[Child]] = [[name_of(run.label), *(run.percent(*cell) for cell in cells)] for run in runs]
    return [row for row in rows if any(cell != _MINUS for cell in row[1:])]


def _runs_of(own: Own, recipe: str | None, test: str) -> Sequence[OwnRun]:
    """The runs of a row on the data set of ``test``; ``recipe`` is without its data set."""
    return own.get(f"{test.partition('/')[0]}/{recipe}", ())


def _own_bars(own: Own, recipe: str | None, test: str, look: int) -> list[Bar]:
    runs = _runs_of(own, recipe, test)
    return [Bar(run.label, run.results[test]["r@1"], look) for run in runs if "r@1" in run.results.get(test, {})]


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
    tables = []
    for name in dict.fromkeys(title.partition(",")[0] for title, _ in DATA.values()):
        starts = [start for start, (title, _) in DATA.items() if title.partition(",")[0] == name]
        columns = [column for column in rows[0][1] if column.rpartition("_r")[0] in starts]
        cells = [(DATA[column.rpartition("_r")[0]][1], f"r@{column.rpartition('_r')[2]}") for column in columns]
        lines: list[list[Child]] = []
        for row, numbers, recipe in rows:
            if any(map(numbers.get, columns)):
                lines.append([row, *_cells(numbers, columns)])
                lines += _own_rows(_runs_of(own, recipe, cells[0][0]), cells)
        if lines:
            tables.append(table([head, *map(_title, columns)], lines, caption=f"{name}, r@k in percent"))
    return element("div", tables, class_="columns")


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
            bars += _own_bars(own, _method_recipe(row), DATA[column[:-3]][1], 2)
        used = looks if any(bar.look == 2 for bar in bars) else looks[:2]
        charts.append(bar_chart(bars, used, title=f"r@1 on {DATA[column[:-3]][0]}", value="r@1", low=50.0))
    named_rows = [(_method_name(row), row, _method_recipe(row)) for row in rows]
    words = (
        "Bars are drawn from the paper's table. Its bar plot also has Blackbox AP on VehicleID, large, with 93.0, which the "
        "table does not have."
    )
    return join(element("p", words), element("div", charts, class_="charts"), _tables("method", named_rows, own))


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
                bars += _own_bars(own, _init_recipe(row), test, 3)
            used = looks if any(bar.look == 3 for bar in bars) else looks[:3]
            charts.append(bar_chart(bars, used, title=f"{name}, {network}", value="r@1", low=20.0))
        parts += [element("h3", f"r@1 on {name}"), element("div", charts, class_="charts")]
    named_rows = [(f"{row['init']}, {row['arch']}, {row['method']}", row, _init_recipe(row)) for row in rows]
    words = (
        "Bars are drawn from the paper's table. Its bar plot shows, for SWAG with ViT-B/16 on iNaturalist and SOP, the "
        "table's numbers of ViT-L/16."
    )
    return join(element("p", words), parts, _tables("initialization", named_rows, own))


def means_of(values: Mapping[str, float | None]) -> tuple[float | None, float | None]:
    """The two mean columns of instance search: over all eight numbers, and over the four with distractors.

    A mean is shown only if all its numbers exist.
    """

    def mean(columns: Sequence[str]) -> float | None:
        numbers = [number for column in columns if (number := values[column]) is not None]
        return sum(numbers) / len(numbers) if len(numbers) == len(columns) else None

    return mean(list(_INSTANCE)), mean([column for column in _INSTANCE if "r1m" in column])


def _instance(own: Own) -> Markup:
    rows: list[list[Child]] = []
    for row in published_rows("instance_search"):
        name = (
            f"{row['arch'].replace('GeM (FC whitening added afterwards)', 'GeM ∗')}, {row['loss']}, {row['train_set']}"
        )
        rows.append([name, row["mean_all"] or _MINUS, row["mean_r1m"] or _MINUS, *_cells(row, list(_INSTANCE))])
        if row["train_set"] == "GLDv1" and row["arch"] == "GeM":
            for run in own.get(f"gldv1/r101/{_METHODS.get(row['loss'], '')}", ()):
                values = {name: run.results.get(test, {}).get(metric) for name, (test, metric) in _INSTANCE.items()}
                cells = [*means_of(values), *values.values()]
                texts = [_MINUS if value is None else f"{value:.1f}" for value in cells]
                rows.append([name_of(run.label), *texts])
    head = ["network, loss, training set", "mean", "mean with R1M"]
    short = {"roxford5k": "ROxford", "rparis6k": "RParis", "+revisitop1m": " + R1M"}
    for test, metric in _INSTANCE.values():
        for name, title in short.items():
            test = test.replace(name, title)
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
        rows_of_axis = [row for row in rows if row[axis]]
        curves = {name: (method, [row[column] for row in rows_of_axis]) for name, (method, column) in columns.items()}
        family, title = f"{data.lower()}-batch", f"r@1 on {data} by batch size"
        batches = [row[axis] for row in rows_of_axis]
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
    columns: dict[
        str, list[list[tuple[float, bool]]]
    ] = {}  # of each value, numbers and whether they are not comparable
    for name, (method, published) in curves.items():
        runs = [own.get(f"{family}/r50-512/{method}/{word}-{value}", ()) for value in values]
        columns[name] = [[(float(number), False)] if number else [] for number in published]
        columns[f"{name}, yours"] = [
            [(value, bool(run.remarks)) for run in these if (value := run.results.get(test, {}).get("r@1")) is not None]
            for these in runs
        ]
    columns = {name: numbers for name, numbers in columns.items() if any(numbers)}
    places = [float(value) for value in values]
    lines = []
    for name, column in columns.items():
        points = [(x, number / 100) for x, numbers in zip(places, column, strict=True) for number, _ in numbers]
        lines.append(Line(name, [x for x, _ in points], [y for _, y in points], dots=True))
    chart = line_chart(lines, title=title, x_label=x_label, y_label="r@1", percent=True, log_ticks=places)
    if chart is None:
        return None, None

    def cell(numbers: Sequence[tuple[float, bool]]) -> str:
        return ", ".join(f"{number:.2f}" + " ‡" * other for number, other in numbers) or _MINUS

    rows: list[list[Child]] = [
        [f"{x:,g}", *(cell(column[place]) for column in columns.values())] for place, x in enumerate(places)
    ]
    return chart, table([x_label, *columns], rows, caption=f"{title}, in percent")


def _k_sets(own: Own) -> Markup:
    ks = (1, 2, 4, 8, 16)
    rows: list[list[Child]] = []
    for row in published_rows("k_values_cars196"):
        rows.append([f"{{{row['k']}}}", *(row[f"r{k}"] for k in ks), row["avg"]])
        for run in own.get(f"cars196-k/r50-512/rsk/k-{row['k'].replace(',', '-')}", ()):
            metrics = run.results.get("cars196/test", {})
            average = _MINUS
            if all(f"r@{k}" in metrics for k in ks):
                average = f"{sum(metrics[f'r@{k}'] for k in ks) / len(ks):.1f}"
            cells = [*(run.percent("cars196/test", f"r@{k}") for k in ks), average]
            rows.append([name_of(run.label), *cells])
    return table(
        ["k of the loss", *(f"r@{k}" for k in ks), "mean"], rows, caption="Cars196, ResNet-50, RS@k; r@k in percent"
    )


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
        element("div", map(_pull_table, figures.MOTIVATION, figures.pulls()), class_="columns"),
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
                    *(f"{100 * value:.0f}" for _, exact, soft in figures.compared(listed) for value in (exact, soft)),
                ]
                for listed in figures.COMPARED
            ],
            caption="Recall@k and rs@k in percent; ● positive, ○ negative, with its similarity",
        ),
        element("h3", "SiMix: similarities of images that are never made"),
        _simix_figure(),
    )


def _curves() -> Markup:
    """The two sigmoids, and the gradient against the rank."""
    words = {
        "similarities": ("Is z ahead of x?", "difference of similarities", "share of a rank"),
        "ranks": ("Is a positive among the first 4?", "rank of the positive", "hits"),
        "gradient": ("How strongly a positive is pushed up", "rank of the positive", "size of the gradient"),
    }
    charts = []
    for name, lines in figures.curves().items():
        title, x_label, y_label = words[name]
        charts.append(line_chart(lines, title=title, x_label=x_label, y_label=y_label, from_zero=True))
    return element("div", charts, class_="charts")


def _pull_table(listed: figures.RankedList, pulls: Sequence[figures.Pull]) -> Markup:
    rows = [
        [
            "● positive" if pull.positive else "○ negative",
            in_decimals(pull.similarity, 2),
            *(in_decimals(value, 2, plus=True) for value in (pull.pairs, pull.recall)),
        ]
        for pull in (pulls[item] for item in listed.order)
    ]
    return table(["item", "similarity", "pull, loss on pairs", "pull, RS@k"], rows, caption=listed.title.capitalize())


def _ranking(listed: figures.RankedList) -> str:
    return "  ".join(
        f"{'●' if listed.positive[item] else '○'} {listed.similarities[item]:.3g}" for item in listed.order
    )


def _simix_figure() -> Markup:
    mixed = figures.mixed_similarities()
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
