"""Commands of many trainings: ``recollect demo``, ``tune`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from recollect.cli import options
from recollect.common.text import printable


@options.app.command()
def demo(
    out: Annotated[
        Path | None,
        Option(help="A new folder for runs and report, or an interrupted demo's. Default: runs/demo-<time>."),
    ] = None,
    steps: Annotated[int, Option(min=1, max=10**6, help="Steps of each training.")] = 150,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Train on embedded data with RS@k and with the contrastive loss, evaluate on unseen classes, write a report.

    Takes two to three minutes on two cores. The last line is the report's path.
    """
    from recollect import run_demo

    typer.echo(run_demo(out, steps=steps, seed=seed))


@options.app.command()
def tune(
    recipe: options.Recipe = None,
    data: options.Data = None,
    root: options.Root = None,
    skip_bad: options.SkipBadImages = False,
    max_pixels: options.MaxPixels = None,
    out: Annotated[
        Path | None, Option(help="The study's folder; an existing study is resumed. Default: runs/tune-RECIPE.")
    ] = None,
    trials: Annotated[int, Option(min=1, max=10**6, help="Total number of trials.")] = 20,
    space: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=RANGE",
            help="What to search: lr, decays, first_decay, gamma, epochs, or a setting outside data; LOW:HIGH[:log], "
            "A,B,C or VALUE.",
        ),
    ] = None,
    settings: Annotated[list[str] | None, options.settings_option(help="Any setting that is not searched.")] = None,
    sampler: Annotated[str, Option(help="random, or tpe: learn from earlier trials.")] = "random",
    pruner: Annotated[str, Option(help="none, or median: stop trials below the median of the others early.")] = "none",
    seed: Annotated[
        int, Option(min=0, max=2**63 - 1, help="Random seed of the draws; for the training runs use --set run.seed.")
    ] = 0,
    storage: Annotated[
        str | None, Option(help="A database that several machines share. Default: study.db in the folder.")
    ] = None,
    final: Annotated[bool, Option(help="Train on all classes and test once all trials are done.")] = True,
    plan: options.Plan = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Search for learning rate, decay and epochs on the training classes; then train once and test once.

    Trains on the first half of the training classes and validates on the second, as the paper does; the test set cannot
    be reached until the choice is made. The same command resumes a study; run it several times for parallel work.
    """
    import recollect
    from recollect.config.resolve import default_recipe, parse_settings

    values = parse_settings(settings, options.data_settings(skip_bad, max_pixels))
    config = recollect.resolve(recipe or default_recipe(data, root), values, data=data, root=root)
    options.remarks.aside = as_json
    search: dict[str, Any] = {"trials": trials, "space": space, "sampler": sampler, "pruner": pruner}
    if plan:
        options.show_plan(recollect.plan_tuning(config, out, **search), as_json)
        return
    results = recollect.tune(config, out, **search, seed=seed, storage=storage, final=final)
    if as_json:
        options.print_json(results.as_dict())


@options.app.command()
def compare(
    losses: Annotated[
        str,
        Option(
            help='Names of recollect losses or references, separated by commas, with options: "recall_at_k(simix=true)".'
        ),
    ],
    recipe: Annotated[
        str | None,
        options.recipe_argument(
            help="Everything but the loss: a recipe's name or a YAML file. Default: glyphs; with --data FOLDER: folder."
        ),
    ] = None,
    data: options.Data = None,
    root: options.Root = None,
    skip_bad: options.SkipBad = False,
    max_pixels: options.MaxPixels = None,
    seeds: Annotated[int, Option(min=1, max=1000, help="Reported runs per loss; three or more allow a decision.")] = 3,
    steps: Annotated[
        int | None,
        Option(
            min=1,
            max=10**9,
            help="Maximum number of steps per run. Default: 1,500 on frozen features, else the recipe's.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        options.settings_option(autocompletion=options.complete_setting, help="A setting shared by all losses."),
    ] = None,
    out: Annotated[Path, Option(help="Folder for the runs and the page.")] = Path("runs/compare"),
    jobs: options.Jobs = None,
    minutes: options.Minutes = None,
    plan: Annotated[bool, Option("--plan", help="Print what would be run, and stop.")] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare losses fairly: same budget, each at its own best learning rate, several seeds, one page.

    recollect compare --losses recall_at_k,smooth_ap,my.py:MyLoss --data photos/

    Learning rates are chosen on validation classes. An interrupted comparison is resumed by the same command, and a loss
    or seed can be added later.
    """
    import recollect
    from recollect.config.resolve import default_recipe, parse_settings

    options.remarks.aside = as_json
    recipe = recipe or default_recipe(data, root)
    values = parse_settings(settings, options.data_settings(skip_bad, max_pixels))
    plan_options: dict[str, Any] = {"data": data, "root": root, "out": out, "seeds": seeds, "steps": steps}
    if plan:
        options.show_plan(recollect.plan_comparison(losses, recipe, values, **plan_options), as_json)
        return
    comparison = recollect.compare_losses(losses, recipe, values, **plan_options, jobs=jobs, minutes=minutes)
    if as_json:
        options.print_json(comparison.as_dict())
        return
    for pair in comparison.pairs:
        typer.echo(printable(pair.sentence))
    typer.echo(comparison.page)
