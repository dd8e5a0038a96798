"""``recollect compare``: several losses on the same images, fairly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import (
    AsJson,
    Jobs,
    MaxPixels,
    Minutes,
    Quiet,
    SkipBad,
    complete_data,
    complete_recipe,
    complete_setting,
    data_settings,
    print_json,
    recipe_or_default,
    remarks_aside,
    show_plan,
    with_set,
)
from recollect.common.text import printable


@app.command()
def compare(
    losses: Annotated[
        str,
        typer.Option(
            help='Names of recollect losses or references, separated by commas, with options: "recall_at_k(simix=true)".'
        ),
    ],
    recipe: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_recipe,
            help="Everything but the loss: a recipe's name or a YAML file. Default: glyphs; with --data FOLDER: folder.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(autocompletion=complete_data, help="A folder of images, or the name of a data set."),
    ] = None,
    root: Annotated[str | None, typer.Option(help="The folder of the data set.")] = None,
    skip_bad: SkipBad = False,
    max_pixels: MaxPixels = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Reported runs per loss; three or more allow a decision.")
    ] = 3,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10**9,
            help="Maximum number of steps per run. Default: 1,500 on frozen features, else the recipe's.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", autocompletion=complete_setting, help="A setting shared by all losses."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path("runs/compare"),
    jobs: Jobs = None,
    minutes: Minutes = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be run, and stop.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare losses fairly: same budget, each at its own best learning rate, several seeds, one page.

    recollect compare --losses recall_at_k,smooth_ap,my.py:MyLoss --data photos/

    Learning rates are chosen on validation classes. An interrupted comparison is resumed by the same command, and a loss
    or seed can be added later.
    """
    import recollect

    remarks_aside(as_json)
    chosen = recipe_or_default(recipe, data, root)
    given = with_set(data_settings(skip_bad, max_pixels), settings)
    asked: dict[str, Any] = {"data": data, "root": root, "out": out, "seeds": seeds, "steps": steps}
    if plan:
        show_plan(recollect.plan_comparison(losses, chosen, given, **asked), as_json)
        return
    found = recollect.compare_losses(losses, chosen, given, **asked, jobs=jobs, minutes=minutes)
    if as_json:
        print_json(found.as_dict())
        return
    for pair in found.pairs:
        typer.echo(printable(pair.sentence))
    typer.echo(found.page)
