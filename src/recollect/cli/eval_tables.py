"""The results of ``recollect eval`` as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recollect.common.text import in_decimals, number_of

if TYPE_CHECKING:
    from rich.table import Table

    from recollect.inference.evaluate import WrittenEvaluation


def metrics_table(
    title: str,
    metrics: dict[str, float],
    published: dict[str, float],
    macro: dict[str, float] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Metrics in percent, with means over classes and published numbers if there are any.

    ``notes`` are shown below the table: what is needed to understand the numbers.
    """
    from rich.table import Table

    table = Table(title=title, caption="\n".join(notes) or None, caption_justify="left")
    table.add_column("metric")
    table.add_column("percent", justify="right")
    if macro:
        table.add_column("mean over classes", justify="right")
    if published:
        table.add_column("published", justify="right")

    def shown(value: float | None, share: bool) -> str:
        return "" if value is None else f"{100 * value:.2f}" if share else f"{value:.1f}"

    for name, value in metrics.items():
        share = name != "first_rank" and abs(value) <= 1  # a custom metric need not be a fraction
        row = [name + ("" if share else " (mean rank)" if name == "first_rank" else " (mean)"), shown(value, share)]
        if macro:
            row.append(shown(macro.get(name), share))
        if published:
            row.append(f"{published[name]:.1f}" if name in published else "")
        table.add_row(*row)
    return table


def prefixes_table(title: str, prefixes: dict[str, dict[str, float]]) -> Table:
    """Metrics of vectors cut to their first numbers, in percent, one row per length."""
    from rich.table import Table

    table = Table(title=f"{title}: only the first numbers of each vector, percent")
    names = list(next(iter(prefixes.values())))
    for head in ("numbers", *names):
        table.add_column(head, justify="right")
    for length, metrics in prefixes.items():
        table.add_row(f"{int(length):,}", *(f"{100 * metrics[name]:.2f}" for name in names))
    return table


def comparison_table(compared: dict[str, Any]) -> Table:
    """The differences ``this run − the other``, with differing settings below."""
    from rich.table import Table

    differences = compared["differences"]
    caption = "also different: " + "; ".join(differences) if differences else None
    table = Table(title="difference to the other run, in points", caption=caption)
    for head in ("metric", "difference", "95 % interval", "p", "better", "worse"):
        table.add_column(head, justify="left" if head == "metric" else "right")
    for metric, found in compared.items():
        if metric not in ("file", "differences"):
            table.add_row(
                metric,
                in_decimals(100 * found["difference"], 2, plus=True),
                f"{in_decimals(100 * found['low'], 2, plus=True)} … {in_decimals(100 * found['high'], 2, plus=True)}",
                f"{found['p_value']:.3f}",
                str(found["better"]),
                str(found["worse"]),
            )
    return table


def show_tables(found: WrittenEvaluation) -> None:
    """Print all results."""
    from rich.console import Console

    measured, tables, target = found.summary, [], found.input
    title = f"{target.name} on {found.test}" if found.test else target.name
    if queries := measured.get("queries"):
        without = measured.get("queries_without_positive", 0)
        title += f", {number_of(queries - without, 'query/queries')}"
        title += f" ({without:,} more without a positive)" if without else ""
    if alone := measured.get("without_distractors"):
        tables.append(metrics_table(f"{title}, without distractors", alone, target.published_without))
    macro = measured.get("macro")
    tables.append(
        metrics_table(title, measured["metrics"], target.published, macro, [str(note) for note in found.notes])
    )
    if "dims" in measured:
        tables.append(prefixes_table(target.name, measured["dims"]))
    if "compared_with" in measured:
        tables.append(comparison_table(measured["compared_with"]))
    console = Console()
    # A log file has no width, and a table cut to 80 columns loses digits.
    console = console if console.is_terminal else Console(width=140)
    for table in tables:
        console.print(table)
