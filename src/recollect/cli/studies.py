"""Commands of many trainings: ``recollect demo``, ``tune`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recollect.cli.options import (
    AsJson,
    Data,
    Jobs,
    MaxPixels,
    Minutes,
    Quiet,
    Recipe,
    Root,
    SkipBad,
    app,
    complete_recipe,
    complete_setting,
    data_settings,
    print_json,
    remarks_aside,
    show_plan,
)
from recollect.common.text import printable


@app.command()
def demo(
    out: Annotated[
        Path | None,
        typer.Option(help="A new folder for runs and report, or an interrupted demo's. Default: runs/demo-<time>."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=10**6, help="Steps of each training.")] = 150,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Random seed.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train on embedded data with RS@k and with the contrastive loss, evaluate on unseen classes, write a report.

    Takes two to three minutes on two cores. The last line is the report's path.
    """
    from recollect import run_demo

    typer.echo(run_demo(out, steps=steps, seed=seed))


@app.command()
def tune(
    recipe: Recipe = None,
    data: Data = None,
    root: Root = None,
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
    from recollect.config.resolve import default_recipe, parse_settings

    values = parse_settings(settings, data_settings(skip_bad, max_pixels))
    config = recollect.resolve(recipe or default_recipe(data, root), values, data=data, root=root)
    remarks_aside(as_json)
    search: dict[str, Any] = {"trials": trials, "space": space, "sampler": sampler, "pruner": pruner}
    if plan:
        show_plan(recollect.plan_tuning(config, out, **search), as_json)
        return
    results = recollect.tune(config, out, **search, seed=seed, storage=storage, final=final)
    if as_json:
        print_json(results.as_dict())


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
    data: Data = None,
    root: Root = None,
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
    from recollect.config.resolve import default_recipe, parse_settings

    remarks_aside(as_json)
    recipe = recipe or default_recipe(data, root)
    values = parse_settings(settings, data_settings(skip_bad, max_pixels))
    options: dict[str, Any] = {"data": data, "root": root, "out": out, "seeds": seeds, "steps": steps}
    if plan:
        show_plan(recollect.plan_comparison(losses, recipe, values, **options), as_json)
        return
    comparison = recollect.compare_losses(losses, recipe, values, **options, jobs=jobs, minutes=minutes)
    if as_json:
        print_json(comparison.as_dict())
        return
    for pair in comparison.pairs:
        typer.echo(printable(pair.sentence))
    typer.echo(comparison.page)
