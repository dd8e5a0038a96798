"""``recollect eval``: embed and evaluate a run, a saved embedder, a bare initialisation, or vectors from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import (
    AllowOutside,
    Device,
    Download,
    MaxPixels,
    Quiet,
    complete_data,
    complete_model,
    complete_recipe,
    print_json,
    remark_aside,
)

if TYPE_CHECKING:
    from recollect.cli.eval_target import Target

_OUT = "What is written"


@app.command("eval")
def evaluate_command(
    target: Annotated[
        Path | None, typer.Argument(help="A run, a saved embedder, or an .npz with embeddings and labels.")
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(autocompletion=complete_model, help="Instead: an initialisation as it comes, e.g. lite0-in1k."),
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
    root: Annotated[Path | None, typer.Option(help="The folder the data set lies in.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Which part of it. Default: test, or what the run calls so.")
    ] = None,
    ks: Annotated[
        str | None, typer.Option(help="The k of r@k and recall@k. Default: the recipe's, or 1,10,100,1000.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="all: everything against everything; reid: a random gallery.")] = "all",
    similarity: Annotated[str, typer.Option(help="dot takes vectors as they are, cosine normalizes.")] = "dot",
    ties: Annotated[str, typer.Option(help="Tied negatives are ahead (pessimistic) or behind.")] = "pessimistic",
    distractors: Annotated[
        Path | None,
        typer.Option(help="To append to the gallery: a .npy of vectors; for instance search, R1M's root folder."),
    ] = None,
    index: Annotated[str | None, typer.Option(help="Also measure an approximate index: ivf, hnsw or pq.")] = None,
    compare: Annotated[Path | None, typer.Option(help="Per-query .npz of another run on the same queries.")] = None,
    metrics_out: Annotated[Path | None, typer.Option(rich_help_panel=_OUT, help="The metrics (JSON).")] = None,
    queries_out: Annotated[Path | None, typer.Option(rich_help_panel=_OUT, help="Values a query (.npz).")] = None,
    vectors_out: Annotated[
        Path | None, typer.Option(rich_help_panel=_OUT, help="Also keep the vectors (.npz).")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", rich_help_panel=_OUT, help="Replace results that exist.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=_OUT, help="Print what metrics.json holds instead of tables.")
    ] = False,
    quiet: Quiet = False,
    weights: Annotated[str | None, typer.Option(help="Weights file or folder for --init.")] = None,
    download: Download = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch while embedding.")] = 64,
    multiscale: Annotated[
        bool | None,
        typer.Option(help="Average each image over three scales. Default: instance search as the recipe says."),
    ] = None,
    memory: Annotated[int, typer.Option(min=1, help="MiB the ranking may use beside the vectors.")] = 512,
    device: Device = None,
    max_pixels: MaxPixels = None,
    allow_outside: AllowOutside = False,
) -> None:
    """Measure recall@k of a run, a saved embedder, a bare initialisation, or vectors.

    recollect eval RUN                        on the test part of its own data
    recollect eval RUN --data photos/         on a folder of images, a folder a class
    recollect eval --init lite0-in1k --data photos/     a network as it comes
    recollect eval vectors.npz                embeddings and labels of any origin
    """
    from recollect.cli import eval_recipe, eval_tables, eval_target
    from recollect.common.errors import ConfigError
    from recollect.common.files import make_folder_for
    from recollect.evaluation import Evaluation, RevisitedResult
    from recollect.evaluation.result import refuse_existing, write_summary

    own = eval_target.own_data(target) if data is None else {}
    split = split or str(own.get("test_split") or "test")
    chosen = None if recipe is None else eval_recipe.read(recipe, needs_no_run=target is None and init is None)
    if chosen is not None:
        init = chosen.model.init if target is None and init is None else init
        data = data or chosen.data.name
        ks = ks or eval_recipe.published_ks(chosen.published, eval_recipe.name_of_test(data, split))
    eval_target.check_choice(target, init)
    data, root = eval_target.which_data(target, data, root)
    numbers = _numbers(ks or "1,10,100,1000")
    if protocol not in ("all", "reid"):
        raise ConfigError(f"--protocol {protocol} is unknown: choose all or reid.")
    if index not in (None, "ivf", "hnsw", "pq"):
        raise ConfigError(f"--index {index} is unknown: choose ivf, hnsw or pq.")
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
            make_folder_for(path)
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
            download=download,
            options=own.get("options") or {},
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
    show = eval_tables.show_nothing if as_json else eval_tables.show_table
    if without := summary.get("without_distractors"):
        title = f"{vectors.name}, without distractors"
        show(eval_tables.metrics_table(title, without, vectors.published_without))
    show(eval_tables.metrics_table(vectors.name, summary["metrics"], vectors.published))
    if index is not None:
        summary["index"] = eval_tables.index_table(vectors, index, numbers, show)
    if other is not None:
        if not isinstance(result, Evaluation):
            raise ConfigError("--compare needs per-query values of the protocol 'all' on labelled images.")
        summary["compared_with"] = {"file": str(compare), **eval_tables.comparison_table(other, result, show)}
    # Written together and last: what fails above leaves nothing half done.
    if isinstance(result, Evaluation | RevisitedResult):
        result.save(queries_out, overwrite=overwrite)
        remark_aside(f"written: {queries_out}")
    summary["source"] = vectors.source
    write_summary(metrics_out, summary, overwrite=overwrite)
    remark_aside(f"written: {metrics_out}")
    if as_json:
        print_json(summary)


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
    remark_aside(f"written: {path}")


def _numbers(text: str) -> list[int]:
    from recollect.common.errors import ConfigError

    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"--ks {text}: whole numbers separated by commas expected, such as 1,10,100.") from error
