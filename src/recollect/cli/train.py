"""``recollect train``: a recipe or a folder of photos to an embedder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import (
    MaxPixels,
    Quiet,
    complete_data,
    complete_logger,
    complete_loss,
    complete_model,
    complete_recipe,
    complete_setting,
    data_settings,
    print_json,
    recipe_or_default,
    remarks_aside,
    with_set,
)
from recollect.common.text import printable

if TYPE_CHECKING:
    from recollect.training.estimate import Plan
    from recollect.training.trainer import Outcome

_MODEL, _STEPS, _WATCH, _MACHINE = "Model", "Loss, batch and length", "Validation and logging", "Machine"

# Short options and their settings.
_SHORT = {
    "init": "model.init",
    "weights": "model.weights",
    "image_size": "model.image_size",
    "dim": "model.dim",
    "freeze": "model.freeze",
    "loss": "loss.name",
    "dims": "loss.dims",
    "batch_size": "batch.size",
    "chunk": "batch.chunk",
    "lr": "optimizer.lr",
    "epochs": "run.epochs",
    "steps": "run.steps",
    "validation": "data.validation",
    "seed": "run.seed",
    "device": "run.device",
    "precision": "run.precision",
    "workers": "data.workers",
    "test_share": "data.options.test_share",
    "cache": "data.cache",
    "logger": "run.loggers",
    "watch_test": "run.watch_test",
    "download": "model.download",
}


def _number_or_word(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text


@app.command()
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_recipe,
            help="A recipe's name or a YAML file. Default: glyphs; with --data FOLDER: folder.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_data, help="A folder of images, the name of a data set, or your own: file.py:name."
        ),
    ] = None,
    root: Annotated[str | None, typer.Option(help="The folder of the data set.")] = None,
    test_share: Annotated[
        float | None,
        typer.Option(
            metavar="<float> [0<x<1]",
            help="Share of a folder's classes held out for testing; train and test folders are pooled. Default: 0.5.",
        ),
    ] = None,
    split_of: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Hold out the classes that this run was not trained on, to compare with it."),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be read.")] = False,
    max_pixels: MaxPixels = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to create. Default: a new one in runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume a run exactly.")] = None,
    final: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Train on all classes, none held out, with the settings and the length of this run."
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be done, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome, or the plan, as JSON.")] = False,
    quiet: Quiet = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            autocompletion=complete_setting,
            help="Any setting, e.g. batch.size=392.",
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MODEL, autocompletion=complete_model, help="Initialisation; see recollect models."
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(rich_help_panel=_MODEL, help="A weights file, or none for random weights.")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", rich_help_panel=_MODEL, help="Download weights that are not on this machine.")
    ] = False,
    image_size: Annotated[
        int | None,
        typer.Option(metavar="<int> [1<=x<=10000]", rich_help_panel=_MODEL, help="Side of the images in pixels."),
    ] = None,
    dim: Annotated[
        int | None, typer.Option(metavar="<int> [1<=x<=65536]", rich_help_panel=_MODEL, help="Length of the embedding.")
    ] = None,
    freeze: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_MODEL, help="none, backbone, pooling or a stage: train only what comes after it."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(rich_help_panel=_STEPS, autocompletion=complete_loss, help="See recollect losses."),
    ] = None,
    dims: Annotated[
        str | None,
        typer.Option(
            metavar="<int,...> [1<=x<=65536]",
            rich_help_panel=_STEPS,
            help="Lengths at which vectors can be cut, e.g. 64,128,256 (Matryoshka).",
        ),
    ] = None,
    batch_size: Annotated[
        Any,
        typer.Option(
            parser=_number_or_word,
            metavar="<int> [1<=x<=1000000000]",
            rich_help_panel=_STEPS,
            help="Images per batch; all, with --freeze.",
        ),
    ] = None,
    chunk: Annotated[
        Any,
        typer.Option(
            parser=_number_or_word,
            metavar="<int> [1<=x<=1000000000]",
            rich_help_panel=_STEPS,
            help="Images in the network at a time; does not change the result.",
        ),
    ] = None,
    lr: Annotated[
        float | None, typer.Option(metavar="<float> [0<x<=1000]", rich_help_panel=_STEPS, help="Learning rate.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(metavar="<int> [0<=x<=1000000000]", rich_help_panel=_STEPS, help="Number of epochs.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="<int> [0<=x<=1000000000]", rich_help_panel=_STEPS, help="Number of steps.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="<int> [0<=x<=9223372036854775807]", rich_help_panel=_STEPS, help="Random seed."),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_WATCH, help="none, paper or random: half of the training classes pick the best weights."
        ),
    ] = None,
    watch_test: Annotated[
        bool,
        typer.Option(
            "--watch-test", rich_help_panel=_WATCH, help="Log test metrics, without using them for any choice."
        ),
    ] = False,
    logger: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=_WATCH,
            autocompletion=complete_logger,
            help="tensorboard, wandb, mlflow, or your own: file.py:name; may be given several times.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(rich_help_panel=_MACHINE, help="auto, cpu or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(rich_help_panel=_MACHINE, help="fp32, bf16 or fp16.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="<int> [0<=x<=1024]", rich_help_panel=_MACHINE, help="Threads that decode images."),
    ] = None,
    cache: Annotated[
        str | None, typer.Option(rich_help_panel=_MACHINE, help="Keep decoded images: none, ram or disk.")
    ] = None,
) -> None:
    """Train an embedder.

    recollect train --data photos/       your own images, one folder per class
    recollect train                      the embedded characters, on any laptop
    recollect train sop/r50-512/rsk --root DIR    a row of the paper; see recipes
    recollect train --resume RUN         resume a run
    """
    import recollect
    from recollect.common.errors import ConfigError

    chosen = with_set({**_settings(locals()), **_split(split_of, data or resume or final)}, settings)
    remarks_aside(as_json)
    moved = {} if root is None else {"data.root": root}
    if resume is not None:
        if any((recipe, data, final, out, plan)):
            raise ConfigError(
                "--resume continues a run where it is: remove the recipe, --data, --final, --out and --plan."
            )
        _show(recollect.train(resume=resume, settings={**moved, **chosen}), as_json)
        return
    if final is not None:
        if any((recipe, data)):
            raise ConfigError("--final takes its settings from the run: remove the recipe and --data.")
        config = recollect.final_config(final, {**moved, **chosen})
    else:
        config = recollect.resolve(recipe_or_default(recipe, data, root), chosen, data=data, root=root)
    if plan:
        _show_plan(*recollect.plan(config), as_json)
    else:
        _show(recollect.train(config, out), as_json)


def _split(run: Path | None, images: object) -> dict[str, Any]:
    """``--split-of`` as settings; ``images`` says whose classes are divided."""
    from recollect import split_of
    from recollect.common.errors import ConfigError

    if run is None:
        return {}
    if images is None:
        raise ConfigError("--split-of divides the classes of a folder: give it with --data FOLDER.")
    return split_of(run)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """The options as settings. Giving steps replaces epochs, and vice versa."""
    from recollect.common.text import whole_numbers

    chosen = {key: value for name, key in _SHORT.items() if (value := given[name]) is not None and value is not False}
    if len(lengths := chosen.keys() & {"run.steps", "run.epochs"}) == 1:
        chosen["run.epochs" if "run.steps" in lengths else "run.steps"] = None
    if given["dims"] is not None:
        chosen["loss.dims"] = whole_numbers(given["dims"], "--dims")
    return chosen | data_settings(given["skip_bad"], given["max_pixels"])


def _show_plan(plan: Plan, lines: list[str], as_json: bool) -> None:
    if as_json:
        reasons = [line.removeprefix("chosen").strip() for line in lines if line.startswith("chosen")]
        print_json({**plan.as_dict(), "chosen": reasons})
    else:
        typer.echo(printable("\n".join(lines)))


def _show(outcome: Outcome, as_json: bool) -> None:
    model = outcome.folder / "model"
    if as_json:
        said = {name: found.as_dict() for name, found in outcome.verdicts.items()}
        print_json({**vars(outcome), "verdicts": said, "model": model})
        return
    for name, metrics in outcome.metrics.items():
        typer.echo(f"{name:<10} " + "  ".join(f"{key} {100 * value:.1f}" for key, value in list(metrics.items())[:4]))
    typer.echo(printable(f"model      {model} (step {outcome.chosen_step:,})"))
