"""``recollect eval``: embed and evaluate a run, a saved embedder, a bare initialisation, or vectors from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.app import app

if TYPE_CHECKING:
    from rich.table import Table

    from recollect.cli.eval_target import Target


@app.command("eval")
def evaluate_command(
    target: Annotated[
        Path | None, typer.Argument(help="A run, a saved embedder, or an .npz with embeddings and labels.")
    ] = None,
    init: Annotated[str | None, typer.Option(help="Instead: an initialisation as it comes, e.g. lite0-in1k.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Data set, k and published numbers of this recipe; alone: an init row.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set (see  recollect data) or a folder of images. Default: the run's own.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The folder the data set lies in.")] = None,
    split: Annotated[str, typer.Option(help="Which part of it.")] = "test",
    ks: Annotated[
        str | None, typer.Option(help="The k of r@k and recall@k. Default: the recipe's, or 1,10,100,1000.")
    ] = None,
    protocol: Annotated[
        str, typer.Option(help="'all': everything against everything; 'reid': random gallery.")
    ] = "all",
    similarity: Annotated[str, typer.Option(help="'dot' takes vectors as they are, 'cosine' normalises.")] = "dot",
    ties: Annotated[str, typer.Option(help="A tied negative is ahead ('pessimistic') or behind.")] = "pessimistic",
    distractors: Annotated[
        Path | None,
        typer.Option(help="To append to the gallery: a .npy of vectors; for instance search, R1M's root folder."),
    ] = None,
    index: Annotated[str | None, typer.Option(help="Also measure an approximate index: ivf, hnsw or pq.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Per-query .npz of another run on the same queries.")] = None,
    metrics_out: Annotated[Path | None, typer.Option(help="Where to write the metrics (JSON).")] = None,
    queries_out: Annotated[Path | None, typer.Option(help="Where to write per-query values (.npz).")] = None,
    vectors_out: Annotated[Path | None, typer.Option(help="Also keep the embedded vectors (.npz).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results that exist.")] = False,
    weights: Annotated[str | None, typer.Option(help="Weights file or folder for --init.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch while embedding.")] = 64,
    multiscale: Annotated[
        bool | None,
        typer.Option(help="Average each image over three scales. Default: instance search as the recipe says."),
    ] = None,
    memory: Annotated[int, typer.Option(min=1, help="MiB the ranking may use beside the vectors.")] = 512,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …")] = None,
    allow_outside: Annotated[bool, typer.Option(help="Let listed paths leave the root.")] = False,
) -> None:
    """Evaluate a run, a saved embedder, a bare initialisation, or vectors; write metrics.json and per-query values."""
    from recollect.cli import eval_recipe, eval_target
    from recollect.common.errors import ConfigError
    from recollect.evaluation import Evaluation, RevisitedResult
    from recollect.evaluation.result import refuse_existing, write_summary

    chosen = None if recipe is None else eval_recipe.read(recipe, needs_no_run=target is None and init is None)
    if chosen is not None:
        init = chosen.model.init if target is None and init is None else init
        data = data or chosen.data.name
        ks = ks or eval_recipe.published_ks(chosen.published, eval_recipe.name_of_test(data, split))
    eval_target.check_choice(target, init)
    data, root = eval_target.which_data(target, data, root)
    numbers = _numbers(ks or "1,10,100,1000")
    if protocol not in ("all", "reid"):
        raise ConfigError(f"--protocol {protocol} is unknown: choose 'all' or 'reid'.")
    is_file = target is not None and target.suffix == ".npz"
    if is_file and target is not None:
        vectors = eval_target.from_file(target)
        folder = vectors.folder
    else:
        folder = eval_target.result_folder(target, init, data or "", split, distractors)
    metrics_out = metrics_out or folder / "metrics.json"
    queries_out = queries_out or folder / "queries.npz"
    for path in (metrics_out, queries_out, vectors_out):
        if path is not None:
            refuse_existing(path, overwrite)  # before an hour of embedding, not after
    other = None if compare is None else Evaluation.load(compare)
    if not is_file:
        vectors = eval_target.from_images(
            target,
            init,
            data,
            root,
            split,
            weights=weights,
            batch_size=batch_size,
            device=device,
            multiscale=multiscale,
            allow_outside=allow_outside,
            overwrite=overwrite,
            recipe=chosen,
            distractors=distractors,
        )
    elif vectors.distractors is None:
        vectors.distractors = distractors
    if vectors_out is not None:
        _keep(vectors, vectors_out)
    options = {
        "similarity": similarity,
        "ties": ties,
        "memory": memory << 20,
        "device": device,
    }
    result, summary = _evaluated(vectors, numbers, protocol, options)
    if isinstance(result, Evaluation | RevisitedResult):
        typer.echo(f"written: {result.save(queries_out, overwrite=overwrite)}")
    if without := summary.get("without_distractors"):
        _print_metrics(f"{vectors.name}, without distractors", without, vectors.published_without)
    _print_metrics(vectors.name, summary["metrics"], vectors.published)
    if index is not None:
        summary["index"] = _index(vectors, index, numbers)
    if other is not None:
        if not isinstance(result, Evaluation):
            raise ConfigError("--compare needs per-query values of the protocol 'all' on labelled images.")
        summary["compared_with"] = {"file": str(compare), **_comparison(other, result)}
    write_summary(metrics_out, {**summary, "source": vectors.source}, overwrite=overwrite)
    typer.echo(f"written: {metrics_out}")


def _evaluated(vectors: Target, ks: list[int], protocol: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Run the protocol that fits; what it returned, and plain values for ``metrics.json``."""
    from recollect.evaluation import evaluate, evaluate_reid, evaluate_revisited

    if vectors.gnd is not None:

        def ranked(distractors: Any) -> tuple[Any, dict[str, float]]:
            found = evaluate_revisited(
                vectors.embeddings, vectors.gallery, vectors.gnd or [], distractors, progress=True, **options
            )
            return found, {name: value for name, value in found.metrics.items() if value == value}

        found, known = ranked(vectors.distractors)
        # A hundredth of the work, and the numbers that tell what distractors cost.
        more = {} if vectors.distractors is None else {"without_distractors": ranked(None)[1]}
        return found, {"metrics": known, "protocol": "revisited", **more}
    if protocol == "reid":
        drawn = evaluate_reid(vectors.embeddings, vectors.labels, ks, **options)
        shown = {"metrics": drawn.metrics, "deviations": drawn.deviations, "draws": len(drawn.draws)}
        return drawn, {**shown, "protocol": "reid"}
    result = evaluate(
        vectors.embeddings,
        vectors.labels,
        vectors.gallery,
        vectors.gallery_labels,
        ks,
        distractors=vectors.distractors,
        progress=True,
        **options,
    )
    return result, {**result.summary(), "protocol": "all"}


def _print_metrics(title: str, metrics: dict[str, float], published: dict[str, float]) -> None:
    from rich.table import Table

    table = Table(title=title)
    table.add_column("metric")
    table.add_column("percent", justify="right")
    if published:
        table.add_column("published", justify="right")
    for name, value in metrics.items():
        shown = f"{value:.1f}" if name == "first_rank" else f"{100 * value:.2f}"
        row = [name + (" (mean rank)" if name == "first_rank" else ""), shown]
        if published:
            row.append(f"{published[name]:.1f}" if name in published else "")
        table.add_row(*row)
    _show(table)


def _index(vectors: Target, kind: str, ks: list[int]) -> dict[str, Any]:
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
    _show(table)
    return cost.as_dict()


def _comparison(first: Any, second: Any) -> dict[str, Any]:
    """Print and return the differences ``this run − the other``."""
    from rich.table import Table

    from recollect.evaluation import changed_queries, paired_bootstrap

    table = Table(title="difference to the other run, in points")
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
    _show(table)
    return found


def _show(table: Table) -> None:
    from rich.console import Console

    console = Console()
    # A log file has no width of its own, and a table cut to 80 columns loses digits.
    (console if console.is_terminal else Console(width=140)).print(table)


def _keep(vectors: Target, path: Path) -> None:
    import json

    import numpy as np

    from recollect.common.files import atomic_write

    arrays = {
        name: np.asarray(getattr(vectors, name))
        for name in ("embeddings", "labels", "gallery", "gallery_labels")
        if getattr(vectors, name) is not None
    }
    if vectors.gnd is not None:
        arrays["gnd"] = np.array(json.dumps(vectors.gnd))
    with atomic_write(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    typer.echo(f"written: {path}")


def _numbers(text: str) -> list[int]:
    from recollect.common.errors import ConfigError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"--ks {text}: whole numbers separated by commas expected, such as 1,10,100.") from error
