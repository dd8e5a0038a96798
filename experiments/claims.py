"""The paper's claims as matrices of trainings: their cells, the comparisons that decide, and the paper's own numbers.

A cell is a loss with its options at a batch size on a bench; cells of the same settings have the same name and are
trained once, even if several claims use them. A ``Contrast`` is a signed sum of cells: a positive value
agrees with the paper. To add a claim, write a function that returns it, and add an entry to ``CLAIMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.benches import Bench
from experiments.published import published_rows
from recollect.studies.protocol import Cell


@dataclass(frozen=True)
class Contrast:
    """``sum of sign × cell``, by seed. Positive: the sentence holds."""

    sentence: str
    terms: Sequence[tuple[float, Cell]]
    claimed: bool = True
    """False: the paper does not claim it; the page says which side is better."""
    metric: str = "r@1"


@dataclass(frozen=True)
class Curve:
    """Cells along an axis; ``x`` are numbers (drawn on a logarithmic axis) or names."""

    label: str
    points: Sequence[tuple[float | str, Cell]]


@dataclass(frozen=True)
class Published:
    """The paper's own numbers, in percent: a table and, where the figure is drawn, curves of (x, r@1)."""

    source: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    curves: Mapping[str, Sequence[tuple[float | str, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim on one bench."""

    name: str
    title: str
    words: str
    bench: Bench
    x_label: str
    curves: Sequence[Curve]
    contrasts: Sequence[Contrast]
    published: Published | None = None
    metrics: Sequence[str] = ("r@1",)
    """Columns of its table; of several, their mean is shown too."""

    def cells(self) -> list[Cell]:
        """Every cell once, in the order of the curves."""
        cells = {cell.name: cell for curve in self.curves for _, cell in curve.points}
        cells.update({cell.name: cell for contrast in self.contrasts for _, cell in contrast.terms})
        return list(cells.values())


_RELEASED = " as released"
"""Ends the label of a loss in the form of its authors' code; without it, the form of its paper is meant."""


def rsk(bench: Bench, batch: int | None = None, *, simix: bool = False, **options: Any) -> Cell:
    """A cell for RS@k, named after its non-default options."""
    label = ("RS@k+SiMix" if simix else "RS@k") + (_RELEASED if options.get("count_query") else "")
    batch = batch or bench.batch
    settings = {"loss.name": "recall_at_k", "loss.options": {"simix": True, **options} if simix else options}
    return Cell(bench, _name("rsk-simix" if simix else "rsk", batch, options), label, batch, settings)


def other(loss: str, label: str, bench: Bench, batch: int | None = None, **options: Any) -> Cell:
    """A cell for another loss of ``recollect losses``, named after its options."""
    batch = batch or bench.batch
    return Cell(bench, _name(loss, batch, options), label, batch, {"loss.name": loss, "loss.options": options})


def _name(loss: str, batch: int, options: Mapping[str, Any]) -> str:
    def word(value: Any) -> str:
        return "_".join(map(str, value)) if isinstance(value, list | tuple) else str(value).lower()

    return "-".join([loss, f"b{batch}", *(f"{key}-{word(value)}" for key, value in options.items())])


def losses(bench: Bench) -> Claim:
    """RS@k against Smooth-AP, ROADMAP and losses on pairs, each in the form of its paper and in that of its code."""
    ours, ours_released = rsk(bench), rsk(bench, count_query=True)
    sap = other("smooth_ap", "Smooth-AP", bench)
    sap_released = other("smooth_ap", f"Smooth-AP{_RELEASED}", bench, count_query=True)
    roadmap = other("roadmap", "ROADMAP", bench)
    roadmap_released = other("roadmap", f"ROADMAP{_RELEASED}", bench, count_query=True, calibrate="violating")
    pairs = [
        other("contrastive", "contrastive", bench),
        other("triplet", "triplet", bench),
        other("multi_similarity", "multi-similarity", bench),
    ]
    cells = [ours, ours_released, sap, sap_released, roadmap, roadmap_released, *pairs]

    def beats(one: Cell, two: Cell, note: str = "", *, claimed: bool = False) -> Contrast:
        return Contrast(f"{one.label} beats {two.label}{note}", [(1, one), (-1, two)], claimed)

    return Claim(
        "losses",
        "RS@k against other losses",
        "The paper finds RS@k above Smooth-AP throughout when it compares methods, and for most initialisations. It has no "
        "triplet loss, contrastive loss only with a memory, and multi-similarity (on Inception) below RS@k on SOP but above "
        "it on Cars196: those rows, and those between two forms of a loss, are only asked here. A name alone means the form "
        "of the loss's own paper, *as released* the form of its authors' code: the query is in its own ranking (for Smooth-AP "
        "and ROADMAP as a positive of itself), and ROADMAP's calibration averages over violating pairs only.",
        bench,
        "loss",
        [Curve("r@1", [(cell.label, cell) for cell in cells])],
        [
            beats(ours, sap, " (both as in their papers)", claimed=True),
            beats(ours_released, sap_released, claimed=True),
            beats(ours, roadmap, " (both as in their papers)"),
            beats(ours_released, roadmap_released),
            *(beats(ours, pair) for pair in pairs),
            *(beats(sap, pair) for pair in pairs),
            *(beats(sap_released, pair) for pair in pairs),
            beats(sap, sap_released),
            beats(roadmap, roadmap_released),
        ],
        _published("methods of Cars196, ResNet-50, d = 512", _CARS_METHODS),
    )


_CARS_METHODS = (
    ("multi-similarity (Inception)", "84.1"),
    ("Smooth-AP (+GeM +LN)", "78.2"),
    ("RS@k", "80.7"),
    ("RS@k+SiMix", "88.2"),
)


def _published(source: str, rows: Sequence[Sequence[str]]) -> Published:
    return Published(source, ("method", "r@1"), rows)


def _batch_curves(bench: Bench) -> tuple[Curve, Curve, Curve]:
    return (
        Curve("Smooth-AP", [(batch, other("smooth_ap", "Smooth-AP", bench, batch)) for batch in bench.batches]),
        Curve("RS@k", [(batch, rsk(bench, batch)) for batch in bench.batches]),
        Curve("RS@k+SiMix", [(batch, rsk(bench, batch, simix=True)) for batch in bench.batches]),
    )


def _published_batches(bench: Bench) -> Published:
    """The paper's curves: of Cars196, whose classes fill no batch above 392, or of SOP for larger batches.

    The numbers of SOP come with the paper's source; its figure shows Cars196 only.
    """
    source, axis, columns = "batch-size figure, Cars196", "cars_batch", _CARS_BATCHES
    if bench.batches[-1] > _LARGEST_CARS_BATCH:
        source, axis, columns = "data beside its batch-size figure, SOP", "sop_batch", {"RS@k": "sop_rsk_r1"}
    rows = [row for row in published_rows("batch_size") if row[axis]]
    return Published(
        f"{source}, ResNet-50",
        ("batch", *columns),
        [(row[axis], *(row[column] for column in columns.values())) for row in rows],
        {label: [(float(row[axis]), float(row[column])) for row in rows] for label, column in columns.items()},
    )


_CARS_BATCHES = {"Smooth-AP": "cars_sap_r1", "RS@k": "cars_rsk_r1", "RS@k+SiMix": "cars_rsk_simix_r1"}
_LARGEST_CARS_BATCH = 392


def batch(bench: Bench) -> Claim:
    """Larger batches are better."""
    curves = _batch_curves(bench)
    return Claim(
        "batch",
        "Larger batches help",
        "In the paper larger batches lead to better results, for Smooth-AP and for RS@k.",
        bench,
        "batch",
        curves,
        [
            Contrast(
                f"{curve.label}: batch {curve.points[-1][0]} beats {curve.points[0][0]}",
                [(1, curve.points[-1][1]), (-1, curve.points[0][1])],
            )
            for curve in curves
        ],
        _published_batches(bench),
    )


def simix(bench: Bench) -> Claim:
    """SiMix helps, most where batches are small."""
    _, plain, mixed = _batch_curves(bench)
    pairs = [(x, a, b) for (x, a), (_, b) in zip(plain.points, mixed.points, strict=True)]
    (_, small, small_mixed), (_, large, large_mixed) = pairs[0], pairs[-1]
    return Claim(
        "simix",
        "SiMix helps most where batches are small",
        "In the paper's figure on Cars196 SiMix adds at every batch size, most where it is small. On its other data sets SiMix "
        "changes little, in either direction.",
        bench,
        "batch",
        [plain, mixed],
        [
            *(Contrast(f"batch {x}: with SiMix beats without", [(1, b), (-1, a)]) for x, a, b in pairs),
            Contrast(
                f"SiMix gains more at batch {pairs[0][0]} than at {pairs[-1][0]}",
                [(1, small_mixed), (-1, small), (-1, large_mixed), (1, large)],
            ),
        ],
        _published_batches(bench),
    )


def initialisation(bench: Bench) -> Claim:
    """Pre-trained weights beat random ones before and after training."""
    start = {"random": {"model.weights": "none"}, "ImageNet": {}}
    trained = {"SAP": other("smooth_ap", "Smooth-AP", bench), "RS@k": rsk(bench)}
    cells: dict[tuple[str, str], Cell] = {}
    for name, settings in start.items():
        word = name.lower()
        untrained = {**settings, "model.dim": None, "model.freeze": "none"}
        cells[name, "init"] = Cell(bench, f"init-{word}", f"{name}, untrained", bench.batch, untrained, trains=False)
        for method, cell in trained.items():
            label, changed = f"{name}, {method}", {**cell.settings, **settings}
            cells[name, method] = replace(cell, name=f"{cell.name}-from-{word}", label=label, settings=changed)
    methods = ("init", "SAP", "RS@k")
    rows = [
        ("ImageNet-21k", "35.6", "86.2", "89.5"),
        ("CLIP (400 M)", "91.4", "95.2", "95.5"),
        ("CLIP (2 B)", "92.7", "96.5", "96.4"),
    ]
    published = Published(
        "initialisation table, Cars196, ViT-B/16",
        ("initialisation", *methods),
        rows,
        {name: [(row[0], float(row[column])) for row in rows] for column, name in enumerate(methods, 1)},
    )
    return Claim(
        "initialisation",
        "Initialization matters",
        "The paper calls pre-trained weights essential where training data are limited, starts from them throughout, and finds "
        "that larger pre-training ends better. It trains nothing from random weights. That the start moves r@1 more than the "
        "loss does is read off its table; the text does not say it.",
        bench,
        "start",
        [Curve(method, [(name, cells[name, method]) for name in start]) for method in methods],
        [
            *(
                Contrast(
                    f"{method}: ImageNet weights beat random ones",
                    [(1, cells["ImageNet", method]), (-1, cells["random", method])],
                    claimed=method != "init",
                )
                for method in methods
            ),
            *(
                Contrast(
                    f"The start moves r@1 more than {one} gains over {other_one}",
                    [
                        (1, cells["ImageNet", "SAP"]),
                        (-1, cells["random", "SAP"]),
                        (-1, cells["ImageNet", one]),
                        (1, cells["ImageNet", other_one]),
                    ],
                    claimed=False,
                )
                for one, other_one in (("RS@k", "SAP"), ("SAP", "RS@k"))
            ),
        ],
        published,
    )


def k_sets(bench: Bench) -> Claim:
    """The values of k of the loss."""
    published = published_rows("k_values_cars196")
    sets = [tuple(int(k) for k in row["k"].split(",")) for row in published]
    default = (1, 2, 4, 8, 16)
    metrics = [f"r@{k}" for k in default]
    cells = {ks: rsk(bench) if ks == default else rsk(bench, k=list(ks)) for ks in sets}

    def named(ks: tuple[int, ...]) -> str:
        return "{" + ",".join(map(str, ks)) + "}"

    def beats(one: tuple[int, ...], two: tuple[int, ...], metric: str = "r@1", *, claimed: bool = True) -> Contrast:
        sentence = f"{named(one)} beats {named(two)}" + ("" if metric == "r@1" else f" at {metric}")
        return Contrast(sentence, [(1, cells[one]), (-1, cells[two])], claimed, metric)

    return Claim(
        "k-sets",
        "The set of k",
        "The paper finds RS@k not very sensitive to the set of k. Without 1 and 2 it is a little worse, with 16 alone clearly; "
        "{1,2,4,8,16} is on average as good as {1}, and better at larger k.",
        bench,
        "set of k",
        [Curve("r@1", [(",".join(map(str, ks)), cell) for ks, cell in cells.items()])],
        [
            beats(default, (16,)),
            beats(default, (4, 8, 16)),
            beats((1,), default, claimed=False),
            beats(default, (1,), "r@16"),
        ],
        Published(
            "sets of k, Cars196, ResNet-50",
            ("set of k", *metrics, "mean"),
            [(row["k"], *(row[name.replace("@", "")] for name in metrics), row["avg"]) for row in published],
            {"r@1": [(row["k"], float(row["r1"])) for row in published]},
        ),
        metrics,
    )


def tau1(bench: Bench) -> Claim:
    """The temperature on ranks."""
    values = (0.1, 0.5, 1.0, 2.0, 5.0)

    def cell(value: float, simix: bool) -> Cell:
        return rsk(bench, simix=simix) if value == 1.0 else rsk(bench, simix=simix, tau1=value)

    curves = [
        Curve("RS@k+SiMix" if simix else "RS@k", [(value, cell(value, simix)) for value in values])
        for simix in (False, True)
    ]
    return Claim(
        "tau1",
        "τ1, the temperature on ranks",
        "In the paper τ1 = 1 is best, with and without SiMix; lower and higher values lose, very small ones most. With SiMix "
        "the whole range does well. (It shows a figure and prints no numbers.)",
        bench,
        "τ1",
        curves,
        [
            Contrast(
                f"{curve.label}: τ1 = 1 beats {value:g}",
                [(1, dict(curve.points)[1.0]), (-1, dict(curve.points)[value])],
            )
            for curve in curves
            for value in values
            if value != 1.0
        ],
    )


def count_query(bench: Bench) -> Claim:
    """The paper's definition against the released code's."""
    paper, released = rsk(bench), rsk(bench, count_query=True)
    return Claim(
        "count-query",
        "The paper's definition against the released code's",
        "The released code counts the query itself in every rank; the paper's formula does not. Neither says which is "
        "better.",
        bench,
        "definition",
        [Curve("r@1", [("paper", paper), ("released code", released)])],
        [Contrast("The paper's definition beats the released code's", [(1, paper), (-1, released)], claimed=False)],
    )


def asymmetric(bench: Bench) -> Claim:
    """RS@k with ROADMAP's step: the paper calls the two orthogonal, and does not combine them."""
    plain, step = rsk(bench), rsk(bench, step="asymmetric")
    return Claim(
        "asymmetric",
        "RS@k with the asymmetric step",
        "ROADMAP's asymmetric step in the rank of RS@k. The paper calls the two orthogonal and does not try it; SupRank "
        "(Ramzi et al., 2025) combines them.",
        bench,
        "step",
        [Curve("r@1", [("sigmoid", plain), ("asymmetric", step)])],
        [Contrast("The asymmetric step beats the sigmoid", [(1, step), (-1, plain)], claimed=False)],
    )


CLAIMS: dict[str, tuple[Callable[[Bench], Claim], tuple[str, ...]]] = {
    "losses": (losses, ("glyphs", "cars196-head", "omniglot")),
    "batch": (batch, ("cars196-head", "omniglot-head", "glyphs")),
    "simix": (simix, ("cars196-head", "omniglot-head", "glyphs")),
    "initialisation": (initialisation, ("cars196",)),
    "k-sets": (k_sets, ("cars196-head", "glyphs")),
    "tau1": (tau1, ("cars196-head", "glyphs")),
    "count-query": (count_query, ("glyphs", "cars196-head")),
    "asymmetric": (asymmetric, ("glyphs", "cars196-head", "omniglot")),
}
"""Each claim, and the benches it is measured on, most informative first."""
