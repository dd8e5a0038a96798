"""``recollect eval``: embed and evaluate a run, a saved embedder, an initialisation, or vectors from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import (
    AllowOutside,
    BatchSize,
    Device,
    Download,
    MaxPixels,
    Quiet,
    SkipBad,
    complete_data,
    complete_model,
    complete_recipe,
    print_json,
    remark_aside,
)

if TYPE_CHECKING:
    from recollect.config.schema import Config

_OUT = "What is written"


@app.command("eval")
def evaluate_command(
    target: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_model,
            help="A run, a saved embedder, an initialisation such as lite0-in1k, or an .npz with embeddings and labels.",
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(autocompletion=complete_model, help="An initialisation, as an alternative to TARGET."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_recipe,
            help="Data set, k and published numbers of this recipe; alone: an init row.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_data,
            help="A data set (see  recollect data) or a folder of images. Default: the run's own.",
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="The folder of the data set; for a run's own data, its new folder if it moved.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="The split to use. Default: the test split.")] = None,
    trained_classes: Annotated[
        str,
        typer.Option(
            help="Classes the run was trained on: auto leaves them out of a test that has others too; exclude, keep."
        ),
    ] = "auto",
    ks: Annotated[
        str | None,
        typer.Option(help="Values of k for r@k and recall@k. Default: the recipe's, the data set's, or 1,10,100,1000."),
    ] = None,
    dims: Annotated[
        str | None,
        typer.Option(help="Also measure vectors cut to these lengths, e.g. 64,128. Default: the run's loss.dims."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.PY:NAME", help="Also measure your own metric; may be repeated."),
    ] = None,
    protocol: Annotated[str, typer.Option(help="all: everything against everything; reid: a random gallery.")] = "all",
    similarity: Annotated[str, typer.Option(help="dot: vectors unchanged; cosine: vectors normalized.")] = "dot",
    ties: Annotated[
        str, typer.Option(help="Rank tied negatives first (pessimistic) or last (optimistic).")
    ] = "pessimistic",
    distractors: Annotated[
        Path | None,
        typer.Option(
            help="Distractors to add to the gallery: a .npy of vectors; for instance search, R1M's root folder."
        ),
    ] = None,
    index: Annotated[str | None, typer.Option(help="Also measure an approximate index: ivf, hnsw or pq.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Compare with the per-query .npz of another run on the same images.")
    ] = None,
    metrics_out: Annotated[
        Path | None, typer.Option(rich_help_panel=_OUT, help="Write the metrics to this file (JSON).")
    ] = None,
    queries_out: Annotated[
        Path | None, typer.Option(rich_help_panel=_OUT, help="Write the values per query to this file (.npz).")
    ] = None,
    vectors_out: Annotated[
        Path | None, typer.Option(rich_help_panel=_OUT, help="Also write the vectors to this file (.npz).")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", rich_help_panel=_OUT, help="Replace existing results.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=_OUT, help="Print the content of metrics.json instead of tables.")
    ] = False,
    quiet: Quiet = False,
    weights: Annotated[str | None, typer.Option(help="Weights file or folder of an initialisation.")] = None,
    download: Download = False,
    batch_size: BatchSize = 64,
    multiscale: Annotated[
        bool | None,
        typer.Option(help="Average each image over three scales. Default: instance search as the recipe says."),
    ] = None,
    hierarchical: Annotated[
        bool | None,
        typer.Option(
            help="Measure h_ap and ndcg for images with coarser classes. Default: unless it would take long on a CPU."
        ),
    ] = None,
    memory: Annotated[
        int, typer.Option(min=1, max=2**24, help="Memory for ranking in MiB, without the vectors.")
    ] = 512,
    device: Device = None,
    max_pixels: MaxPixels = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
) -> None:
    """Measure recall@k of a run, a saved embedder, an initialisation, or vectors.

    recollect eval RUN                        on the test split of its own data
    recollect eval RUN --data photos/         on a folder of images, one folder per class
    recollect eval lite0-in1k --data photos/  a pre-trained network, without training
    recollect eval vectors.npz                embeddings and labels from any source
    """
    from recollect.cli import eval_tables
    from recollect.common.errors import ConfigError
    from recollect.common.files import make_folder_for
    from recollect.common.unit_prefix import parse_dims
    from recollect.evaluation import Evaluation, RevisitedResult
    from recollect.evaluation.metrics import METRICS, find_metric
    from recollect.evaluation.result import refuse_existing, write_summary
    from recollect.inference.evaluating import (
        check_protocol,
        compare_settings,
        evaluate_target,
        prepare_target,
        target_vectors,
    )
    from recollect.inference.prefix_metrics import evaluate_prefixes

    chosen = None if recipe is None else _recipe(recipe, needs_no_run=target is None and init is None)
    model = _what(target, init or (chosen.model.init if chosen is not None and target is None else None))
    numbers = None if ks is None else _numbers(ks)
    check_protocol(protocol)
    more_metrics = [find_metric(name) for name in metric or ()]  # before an hour of embedding, not after
    if index not in (None, "ivf", "hnsw", "pq"):
        raise ConfigError(f"--index {index} is unknown: choose ivf, hnsw or pq.")
    prepared = prepare_target(
        model,
        recipe=chosen,
        data=data,
        root=root,
        split=split,
        weights=weights,
        download=download,
        device=device,
        allow_outside=allow_outside,
        distractors=distractors,
        trained_classes=trained_classes,
    )
    for note in prepared.notes:
        remark_aside(note)
    place = prepared.place
    metrics_out, queries_out = metrics_out or place / "metrics.json", queries_out or place / "queries.npz"
    for path in (metrics_out, queries_out, vectors_out):
        if path is not None:
            refuse_existing(path, overwrite)  # before an hour of embedding, not after
            make_folder_for(path)
    other = None if compare is None else Evaluation.load(compare)
    found = target_vectors(prepared, multiscale=multiscale, batch_size=batch_size, skip_bad=skip_bad)
    eval_tables.tell_files(found)
    if vectors_out is not None:
        found.save_vectors(vectors_out)
        remark_aside(f"written: {vectors_out}")
    options: dict[str, Any] = {"similarity": similarity, "ties": ties, "memory": memory << 20, "device": device}
    if more_metrics:
        options["metrics"] = [*METRICS, *more_metrics]
    result, summary = evaluate_target(found, numbers, protocol, hierarchical=hierarchical, **options)
    if summary.get("left_out") and hierarchical is None:
        remark_aside(
            f"{' and '.join(summary['left_out'])} take minutes here and are left out: --hierarchical measures them"
        )
    show = eval_tables.show_nothing if as_json else eval_tables.show_table
    if without := summary.get("without_distractors"):
        show(eval_tables.metrics_table(f"{found.name}, without distractors", without, found.published_without))
    macro = summary.get("macro")
    show(eval_tables.metrics_table(found.name, summary["metrics"], found.published, macro, prepared.notes))
    own = prepared.opened.config.loss.dims if prepared.opened and prepared.opened.config else ()
    if lengths := own if dims is None else parse_dims(dims):
        prefixes = evaluate_prefixes(found, lengths, numbers, protocol, **options)
        summary["dims"] = {str(length): metrics for length, metrics in prefixes.items()}
        show(eval_tables.prefixes_table(found.name, prefixes))
    if index is not None:
        summary["index"] = eval_tables.index_table(found, index, list(numbers or found.ks), show)
    if other is not None:
        if not isinstance(result, Evaluation):
            raise ConfigError("--compare needs per-query values of the protocol 'all' on labelled images.")
        differences = compare_settings(other, result)
        compared = eval_tables.comparison_table(other, result, differences, show)
        summary["compared_with"] = {"file": str(compare), "differences": differences, **compared}
    # Written together and last: what fails above leaves nothing half done.
    if isinstance(result, Evaluation | RevisitedResult):
        result.save(queries_out, overwrite=overwrite)
        remark_aside(f"written: {queries_out}")
    write_summary(metrics_out, summary, overwrite=overwrite)
    remark_aside(f"written: {metrics_out}")
    if as_json:
        print_json(summary)


def _what(target: str | None, init: str | None) -> str:
    """The one thing to evaluate."""
    from recollect.common.errors import InputError

    named = [name for name in (target, init) if name is not None]
    if len(named) != 1:
        raise InputError(
            "name one thing to evaluate: a run, a saved embedder, an initialisation, an .npz of vectors, or --recipe "
            "NAME for a row that is not trained."
        )
    return named[0]


def _recipe(name: str, needs_no_run: bool) -> Config:
    from recollect.common.errors import ConfigError
    from recollect.config.overrides import resolve

    config = resolve(name)
    if needs_no_run and config.run.epochs != 0:
        raise ConfigError(
            f"{name} is a recipe for training: name the run to evaluate beside it (recollect eval RUN --recipe {name}), "
            "or choose a recipe that ends in /init."
        )
    return config


def _numbers(text: str) -> list[int]:
    from recollect.common.errors import ConfigError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"--ks {text}: whole numbers separated by commas expected, such as 1,10,100.") from error
