"""What is done with a network: ``recollect eval``, ``embed``, ``whiten``, ``export``, ``report`` and ``publish``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from recollect.cli import options
from recollect.common.errors import InputError
from recollect.common.text import in_decimals, number_of, whole_numbers

if TYPE_CHECKING:
    from rich.table import Table

    from recollect.inference.evaluate import WrittenEvaluation


def show_tables(result: WrittenEvaluation) -> None:
    """Print all results of ``recollect eval`` as tables, in percent."""
    summary, target = result.summary, result.input
    title = f"{target.name} on {result.test}" if result.test else target.name
    if queries := summary.get("queries"):
        without = summary.get("queries_without_positive", 0)
        title += f", {number_of(queries - without, 'query/queries')}"
        title += f" ({without:,} more without a positive)" if without else ""
    tables = []
    if "without_distractors" in summary:
        values = summary["without_distractors"]
        tables.append(_metrics_table(f"{title}, without distractors", values, target.published_without, {}))
    tables.append(_metrics_table(title, summary["metrics"], target.published, summary.get("macro") or {}))
    tables[-1].caption = "\n".join(map(str, result.notes)) or None
    if dims := summary.get("dims"):
        names = list(next(iter(dims.values())))
        table = _table(f"{target.name}: only the first numbers of each vector, percent", ("numbers", *names))
        for length, metrics in dims.items():
            table.add_row(f"{int(length):>7,}", *(f"{100 * metrics[name]:.2f}" for name in names))
        tables.append(table)
    if "compared_with" in summary:
        tables.append(_comparison_table(summary["compared_with"]))
    for table in tables:
        options.tables_console().print(table)


def _table(title: str, columns: Iterable[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, caption_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    return table


def _metrics_table(
    title: str, metrics: dict[str, float], published: dict[str, float], macro: dict[str, float]
) -> Table:
    """Metrics with means over classes and published numbers, if there are any."""
    table = _table(title, ["metric", "percent"] + ["mean over classes"] * bool(macro) + ["published"] * bool(published))
    for name, value in metrics.items():
        share = name != "first_rank" and abs(value) <= 1  # a custom metric need not be a fraction
        row = [name + ("" if share else " (mean rank)" if name == "first_rank" else " (mean)")]
        for number in [value, macro.get(name)] if macro else [value]:
            row.append("" if number is None else f"{100 * number:.2f}" if share else f"{number:.1f}")
        table.add_row(*row, f"{published[name]:.1f}" if name in published else "")
    return table


def _comparison_table(comparison: dict[str, Any]) -> Table:
    """The differences ``this run − the other``, with differing settings below."""
    from recollect.evaluation.verdict import LEVEL

    columns = ("metric", "difference", f"{100 * LEVEL:g} % interval", "p", "better", "worse")
    table = _table("difference to the other run, in points", columns)
    if comparison["differences"]:
        table.caption = "also different: " + "; ".join(comparison["differences"])
    for metric, test in comparison.items():
        if metric not in ("file", "differences"):
            points, low, high = (in_decimals(100 * test[key], 2, plus=True) for key in ("difference", "low", "high"))
            row = (metric, points, f"{low} … {high}", f"{test['p_value']:.3f}", test["better"], test["worse"])
            table.add_row(*map(str, row))
    return table


_output = partial(Option, rich_help_panel="Output")


@options.app.command("eval")
def evaluate_command(
    target: Annotated[
        str | None,
        options.model_argument(
            help="A run, a saved embedder, an initialisation such as lite0-in1k, or an .npz with embeddings and labels."
        ),
    ] = None,
    init: Annotated[str | None, options.model_option(help="An initialisation, as an alternative to TARGET.")] = None,
    recipe: Annotated[
        str | None, options.recipe_option(help="Data set, k and published numbers of this recipe; alone: an init row.")
    ] = None,
    data: Annotated[
        str | None,
        options.data_option(help="A data set (see  recollect data) or a folder of images. Default: the run's own."),
    ] = None,
    root: Annotated[
        Path | None, Option(help="The folder of the data set; for a run's own data, its new folder if it moved.")
    ] = None,
    split: Annotated[str | None, Option(help="The split to use. Default: the test split.")] = None,
    trained_classes: Annotated[
        str,
        Option(
            help="Classes the run was trained on: auto leaves them out of a test that has others too; exclude, keep."
        ),
    ] = "auto",
    ks: Annotated[
        str | None,
        Option(help="Values of k for r@k and recall@k. Default: the recipe's, the data set's, or 1,10,100,1000."),
    ] = None,
    dims: Annotated[
        str | None, Option(help="Also measure vectors cut to these lengths, e.g. 64,128. Default: the run's loss.dims.")
    ] = None,
    metrics: Annotated[
        list[str], Option("--metric", metavar="FILE.PY:NAME", help="Also measure your own metric; may be repeated.")
    ] = [],  # noqa: B006
    protocol: Annotated[str, Option(help="all: everything against everything; reid: a random gallery.")] = "all",
    similarity: Annotated[str, Option(help="dot: vectors unchanged; cosine: vectors normalized.")] = "dot",
    ties: Annotated[str, Option(help="Rank tied negatives first (pessimistic) or last (optimistic).")] = "pessimistic",
    distractors: Annotated[
        Path | None,
        Option(help="Distractors to add to the gallery: a .npy of vectors; for instance search, R1M's root folder."),
    ] = None,
    compare: Annotated[
        Path | None, Option(help="Compare with another run on the same images: its queries.npz or folder.")
    ] = None,
    metrics_out: Annotated[Path | None, _output(help="Write the metrics to this file (JSON).")] = None,
    queries_out: Annotated[Path | None, _output(help="Write the values per query to this file (.npz).")] = None,
    vectors_out: Annotated[Path | None, _output(help="Also write the vectors to this file (.npz).")] = None,
    overwrite: Annotated[bool, _output("--overwrite", help="Replace existing results.")] = False,
    as_json: Annotated[bool, _output("--json", help="Print the content of metrics.json instead of tables.")] = False,
    quiet: options.Quiet = False,
    weights: options.Weights = None,
    download: options.Download = False,
    batch_size: options.BatchSize = None,
    precision: options.Precision = None,
    multiscale: Annotated[
        bool | None, Option(help="Average each image over three scales. Default: instance search as the recipe says.")
    ] = None,
    hierarchical: Annotated[
        bool | None,
        Option(
            help="Measure h_ap and ndcg for images with coarser classes. Default: unless it would take long on a CPU."
        ),
    ] = None,
    memory: Annotated[int, Option(min=1, max=2**24, help="Memory for ranking in MiB, without the vectors.")] = 512,
    device: options.Device = None,
    max_pixels: options.MaxPixels = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Measure recall@k of a run, a saved embedder, an initialisation, or vectors.

    recollect eval RUN                        on the test split of its own data
    recollect eval RUN --data photos/         on a folder of images, one folder per class
    recollect eval lite0-in1k --data photos/  a pre-trained network, without training
    recollect eval vectors.npz                embeddings and labels from any source
    """
    given = options.arguments(locals(), "target", "init", ks=_numbers("--ks", ks), dims=_numbers("--dims", dims))
    from recollect import write_evaluation

    if target is not None and init is not None:
        raise InputError("give one model to evaluate: TARGET or --init, not both.")
    options.refuse_unused(
        str(target).endswith(".npz"),
        "on vectors from a file",
        *("recipe", "data", "root", "split", "trained_classes", "weights", "download", "batch_size", "multiscale"),
        *("precision", "max_pixels", "skip_bad"),
    )
    options.refuse_unused(protocol == "reid", "with --protocol reid, which has no values per query", "queries_out")
    options.remarks.aside = True
    result = write_evaluation(target or init, **given)
    if as_json:
        for note in result.notes:
            options.remark(str(note), aside=True)
        options.print_json(result.summary)
    else:
        show_tables(result)


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else whole_numbers(text, option)


# Vectors and models ---------------------------------------------------------------------------------------------------


@options.app.command()
def embed(
    model: Annotated[
        str, options.model_argument(help="A run, a saved embedder's folder, or an initialisation by name.")
    ],
    images: Annotated[
        list[str], Argument(help="Folders (one folder per class gives labels), image files, .txt lists of paths.")
    ],
    out: Annotated[Path, Option(help="The .npz to write.")] = Path("vectors.npz"),
    weights: options.Weights = None,
    dim: options.Dim = None,
    batch_size: options.BatchSize = None,
    precision: options.Precision = None,
    device: options.Device = None,
    skip_bad: options.SkipBad = False,
    max_pixels: options.MaxPixels = None,
    download: options.Download = False,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Embed images and write their vectors, for recollect search and recollect eval."""
    given = options.arguments(locals(), "images", inputs=images)
    from recollect import embed_catalogue
    from recollect.data import summary

    vectors = embed_catalogue(**given)
    count, dim = vectors.embeddings.shape
    if skipped := vectors.source.get("left_out"):
        options.remark(summary(count, skipped), aside=True)
    classes = ""
    if vectors.labels is not None:
        classes = f", {len(set(vectors.labels) - {''}):,} classes"
        if unlabelled := vectors.labels.count(""):
            classes += f", {unlabelled:,} without a class"
    options.remark(f"{out}: {count:,} vectors of {dim} dimensions{classes}")


@options.app.command("whiten")
def whiten(
    model: Annotated[
        str, options.model_argument(help="A run, a saved embedder, or an initialisation, without a last layer.")
    ],
    out: Annotated[Path, Option(help="The folder of the embedder to write.")],
    pairs: Annotated[Path | None, Option(help="Learn from the whitening pairs of SfM-120k in this folder.")] = None,
    data: Annotated[
        str | None, options.data_option(help="Learn from a data set or a folder: two images of one class are a pair.")
    ] = None,
    root: Annotated[Path | None, Option(help="The folder of the data set.")] = None,
    split: Annotated[str, Option(help="The split to use.")] = "train",
    dim: Annotated[int | None, Option(min=1, max=2**16, help="Leading dimensions to keep. Default: all.")] = None,
    seed: options.Seed = 0,
    multiscale: Annotated[
        bool, Option("--multiscale", help="Learn from descriptors averaged over three scales, for eval --multiscale.")
    ] = False,
    device: options.Device = None,
    download: options.Download = False,
    max_pixels: options.MaxPixels = None,
    skip_bad: options.SkipBad = False,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Learn a whitening and add it as the last layer.

    recollect whiten runs/landmarks --pairs /data/sfm --out runs/landmarks-whitened
    recollect whiten lite0-in1k --data photos/ --out whitened
    """
    given = options.arguments(locals())
    import recollect

    options.refuse_unused(data is None, "without --data", "root", "split", "seed")
    typer.echo(recollect.whiten(**given))


@options.app.command("export")
def export(
    run: Annotated[str, Argument(help="A run, a saved embedder's folder, or hf://user/name.")],
    onnx: Annotated[Path, Option("--onnx", help="The ONNX file to write.")],
    dim: options.Dim = None,
    download: options.Download = False,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
) -> None:
    """Write a trained embedder as ONNX, checked against the original.

    Also writes a Python file with the preprocessing, which needs numpy and Pillow but not torch.
    """
    from recollect import export_onnx

    export_onnx(run, onnx, dim=dim, download=download, overwrite=overwrite)


# Pages ----------------------------------------------------------------------------------------------------------------


@options.app.command()
def report(
    runs: Annotated[list[Path], Argument(help="Run folders; several are compared with the first.")],
    out: Annotated[Path | None, Option(help="The file to write. Default: report.html in the run.")] = None,
    csv: Annotated[
        Path | None, Option(help="Also write the images to check (labels, near-duplicates, …) as CSV.")
    ] = None,
    images: Annotated[
        int, Option(min=0, max=10**9, help="Maximum number of images in galleries, map and checks; 0 for all.")
    ] = 4000,
    split: Annotated[str | None, Option(help="The split to report on. Default: the run's test split.")] = None,
    root: Annotated[Path | None, Option(help="New folder of the images, if they moved.")] = None,
    device: options.Device = None,
    max_pixels: options.MaxPixels = None,
    skip_bad: Annotated[
        bool, Option("--skip-bad/--no-skip-bad", help="Skip images that cannot be read, and list them.")
    ] = True,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Overwrite the file even if recollect did not write it.")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Write report.html: whether training helped, where it fails, what to check in the data.

    With a map, a gallery, classes, curves and settings. Test images are embedded
    before and after training; vectors that are in the store are not computed
    again. The page needs no network and no other file.
    """
    given = options.arguments(locals(), "images", limit=images or None)
    from recollect import write_report

    options.remarks.aside = True
    typer.echo(write_report(**given))


@options.app.command("publish")
def publish_command(
    run: Annotated[Path, Argument(help="A finished run.")],
    to: Annotated[str | None, Option(help="The repository to upload to: user/name.")] = None,
    folder: Annotated[
        Path | None, Option(help="Write the files into this new folder; without --to, nothing is uploaded.")
    ] = None,
    dim: options.Dim = None,
    private: Annotated[bool, Option("--private", help="Make a new repository private.")] = False,
    licence: Annotated[str | None, Option(help="Licence of the model. Default: that of its starting weights.")] = None,
    quiet: options.Quiet = False,
) -> None:
    """Publish a run on the Hugging Face Hub, with a model card made from the run.

    recollect publish RUN --folder OUT         write the files for inspection; no network
    recollect publish RUN --to user/name       write, check and upload

    Others can then load it by its address: recollect eval hf://user/name --data photos --download
    """
    from recollect import publish

    options.refuse_unused(to is None, "without --to", "private")
    typer.echo(publish(run, to, folder, dim=dim, private=private, licence=licence).address or folder)
