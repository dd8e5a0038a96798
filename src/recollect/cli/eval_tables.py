"""``recollect eval``'s last half: results as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from recollect.cli.options import remark_aside

if TYPE_CHECKING:
    from rich.table import Table

    from recollect.inference.evaluating import Target


def metrics_table(
    title: str,
    metrics: dict[str, float],
    published: dict[str, float],
    macro: dict[str, float] | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Metrics in percent, with means over classes and published numbers if there are any.

    ``notes`` below the table: what is needed to understand the numbers.
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
        share = name != "first_rank" and abs(value) <= 1  # a metric of one's own need not be a share
        row = [name + ("" if share else " (mean rank)" if name == "first_rank" else " (mean)"), shown(value, share)]
        if macro:
            row.append(shown(macro.get(name), share))
        if published:
            row.append(f"{published[name]:.1f}" if name in published else "")
        table.add_row(*row)
    return table


def prefixes_table(title: str, prefixes: dict[int, dict[str, float]]) -> Table:
    """Metrics in percent of the first numbers of the vectors, one row per length."""
    from rich.table import Table

    table = Table(title=f"{title}: only the first numbers of each vector, percent")
    names = list(next(iter(prefixes.values())))
    for head in ("numbers", *names):
        table.add_column(head, justify="right")
    for length, metrics in prefixes.items():
        table.add_row(f"{length:,}", *(f"{100 * metrics[name]:.2f}" for name in names))
    return table


def index_table(vectors: Target, kind: str, ks: list[int], show: Callable[[Table], None]) -> dict[str, Any]:
    """Measure an approximate index; show and return its cost."""
    from rich.table import Table

    from recollect.evaluation import index_cost

    cost = index_cost(
        vectors.embeddings,
        vectors.labels,
        vectors.gallery,
        vectors.gallery_labels,
        kind=kind,  # type: ignore[arg-type]
        ks=[k for k in ks if k <= 100] or [1],
    )
    asked = list(cost.exact.neighbours)
    table = Table(title=f"approximate search ({kind}): share of the exact first k found, percent")
    for head in ("setting", *(f"found@{k}" for k in asked), *(f"r@{k}" for k in cost.exact.r)):
        table.add_column(head, justify="left" if head == "setting" else "right")
    for head in ("ms/query", "build s", "MiB"):
        table.add_column(head, justify="right")
    for row in (cost.exact, *cost.rows):
        shares = [f"{100 * value:.2f}" for value in (*row.neighbours.values(), *row.r.values())]
        table.add_row(
            row.setting, *shares, f"{row.milliseconds:.3f}", f"{row.build_seconds:.2f}", f"{row.mebibytes:.1f}"
        )
    show(table)
    return cost.as_dict()


def tell_files(found: Any) -> None:
    """Report the skipped files by reason, and name the first image that could not be read."""
    from recollect.data import summary

    if (left_out := found.source.get("left_out")) and found.labels is not None:
        remark_aside(summary(len(found.labels), left_out))
    if skipped := found.source.get("skipped"):
        more = "" if len(skipped) == 1 else f" and {len(skipped) - 1:,} more, all listed in metrics.json"
        remark_aside(f"could not be read: {skipped[0]['reason']}{more}")


def comparison_table(first: Any, second: Any, differences: list[str], show: Callable[[Table], None]) -> dict[str, Any]:
    """Show and return the differences ``this run − the other``; ``differences`` in settings are shown below."""
    from rich.table import Table

    from recollect.evaluation import changed_queries, paired_bootstrap

    caption = "also different: " + "; ".join(differences) if differences else None
    table = Table(title="difference to the other run, in points", caption=caption)
    for head in ("metric", "difference", "95 % interval", "p", "better", "worse"):
        table.add_column(head, justify="left" if head == "metric" else "right")
    found: dict[str, Any] = {}
    for metric in (name for name in second.per_query if name in first.per_query and name != "first_rank"):
        test, changes = paired_bootstrap(first, second, metric), changed_queries(first, second, metric)
        found[metric] = {**test.__dict__, "better": len(changes.better), "worse": len(changes.worse)}
        table.add_row(
            metric,
            f"{100 * test.difference:+.2f}",
            f"{100 * test.low:+.2f} … {100 * test.high:+.2f}",
            f"{test.p_value:.3f}",
            str(len(changes.better)),
            str(len(changes.worse)),
        )
    show(table)
    return found


def show_table(table: Table) -> None:
    """Print a table."""
    from rich.console import Console

    console = Console()
    # A log file has no width, and a table cut to 80 columns loses digits.
    (console if console.is_terminal else Console(width=140)).print(table)


def show_nothing(table: Table) -> None:
    """With ``--json`` tables are not shown."""
