"""``recollect eval``: embed and evaluate a run, a saved embedder, an initialisation, or vectors from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.options import (
    BatchSize,
    Device,
    Download,
    MaxPixels,
    Quiet,
    SkipBad,
    Weights,
    app,
    complete_data,
    complete_model,
    complete_recipe,
    print_json,
    refuse_unused,
    remark_aside,
    remarks_aside,
)

_OUT = "Output"


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
    compare: Annotated[
        Path | None, typer.Option(help="Compare with another run on the same images: its queries.npz or folder.")
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
    weights: Weights = None,
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
    skip_bad: SkipBad = False,
) -> None:
    """Measure recall@k of a run, a saved embedder, an initialisation, or vectors.

    recollect eval RUN                        on the test split of its own data
    recollect eval RUN --data photos/         on a folder of images, one folder per class
    recollect eval lite0-in1k --data photos/  a pre-trained network, without training
    recollect eval vectors.npz                embeddings and labels from any source
    """
    from recollect import write_evaluation
    from recollect.cli.eval_tables import show_tables
    from recollect.common.errors import InputError
    from recollect.common.text import whole_numbers

    if target is not None and init is not None:
        raise InputError("give one model to evaluate: TARGET or --init, not both.")
    refuse_unused(
        str(target).endswith(".npz"),
        "on vectors from a file",
        *("recipe", "data", "root", "split", "trained_classes", "weights", "download", "batch_size", "multiscale"),
        *("max_pixels", "skip_bad"),
    )
    refuse_unused(protocol == "reid", "with --protocol reid, which has no values per query", "queries_out")
    remarks_aside()
    found = write_evaluation(
        target or init,
        data,
        recipe=recipe,
        root=root,
        split=split,
        trained_classes=trained_classes,
        ks=None if ks is None else whole_numbers(ks, "--ks"),
        dims=None if dims is None else whole_numbers(dims, "--dims"),
        metrics=metric or (),
        protocol=protocol,
        similarity=similarity,
        ties=ties,
        hierarchical=hierarchical,
        multiscale=multiscale,
        distractors=distractors,
        compare=compare,
        metrics_out=metrics_out,
        queries_out=queries_out,
        vectors_out=vectors_out,
        overwrite=overwrite,
        weights=weights,
        download=download,
        batch_size=batch_size,
        memory=memory,
        device=device,
        on_bad_image="skip" if skip_bad else "error",
    )
    if as_json:
        for note in found.notes:
            remark_aside(str(note))
        print_json(found.summary)
    else:
        show_tables(found)
