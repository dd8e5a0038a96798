"""``recollect tune``: search settings on the training classes, train once with the best, test once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import (
    AsJson,
    MaxPixels,
    Quiet,
    complete_recipe,
    data_settings,
    print_json,
    recipe_or_default,
    remarks_aside,
    show_plan,
    with_set,
)


@app.command()
def tune(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe's name or a YAML file. Default: glyphs; with --data FOLDER: folder.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="A folder of images, or the name of a data set.")] = None,
    root: Annotated[str | None, typer.Option(help="The folder of the data set.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be read.")] = False,
    max_pixels: MaxPixels = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The study's folder; an existing study is resumed. Default: runs/tune-RECIPE."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, max=10**6, help="Total number of trials.")] = 20,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RANGE",
            help="What to search: lr, decays, first_decay, gamma, epochs, or a setting outside data; LOW:HIGH[:log], "
            "A,B,C or VALUE.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting that is not searched.")
    ] = None,
    sampler: Annotated[str, typer.Option(help="random, or tpe: learn from earlier trials.")] = "random",
    pruner: Annotated[
        str, typer.Option(help="none, or median: stop trials below the median of the others early.")
    ] = "none",
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**63 - 1, help="Random seed of the draws; for the training runs use --set run.seed."),
    ] = 0,
    storage: Annotated[
        str | None, typer.Option(help="A database that several machines share. Default: study.db in the folder.")
    ] = None,
    final: Annotated[bool, typer.Option(help="Train on all classes and test once all trials are done.")] = True,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be done, and stop.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Search for learning rate, decay and epochs on the training classes; then train once and test once.

    Trains on the first half of the training classes and validates on the second, as the paper does; the test set cannot
    be reached until the choice is made. The same command resumes a study; run it several times for parallel work.
    """
    import recollect

    chosen = with_set(data_settings(skip_bad, max_pixels), settings)
    config = recollect.resolve(recipe_or_default(recipe, data, root), chosen, data=data, root=root)
    remarks_aside(as_json)
    if plan:
        show_plan(
            recollect.plan_tuning(config, out, trials=trials, space=space, sampler=sampler, pruner=pruner), as_json
        )
        return
    results = recollect.tune(
        config,
        out,
        trials=trials,
        space=space,
        sampler=sampler,
        pruner=pruner,
        seed=seed,
        storage=storage,
        final=final,
    )
    if as_json:
        print_json(results.as_dict())
