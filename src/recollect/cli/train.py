"""``recollect train``: a recipe or a folder of photos to an embedder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recollect.cli.app import app
from recollect.cli.options import (
    AllowOutside,
    MaxPixels,
    Quiet,
    complete_data,
    complete_logger,
    complete_loss,
    complete_model,
    complete_recipe,
    complete_setting,
    print_json,
    remarks_aside,
)
from recollect.common.words import printable

if TYPE_CHECKING:
    from recollect.config.schema import Config
    from recollect.training.estimate import Plan
    from recollect.training.trainer import Outcome

_MODEL, _STEPS, _WATCH, _MACHINE = "Model", "Loss, batch and length", "What is measured on the way", "Machine"

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
    "max_pixels": "data.max_pixels",
    "cache": "data.cache",
}


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
        float | None, typer.Option(help="Share of a folder's classes held out for testing. Default: 0.5.")
    ] = None,
    allow_outside: AllowOutside = False,
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
            help="Any setting, e.g. batch.size=392; overrides the options below.",
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
        int | None, typer.Option(rich_help_panel=_MODEL, help="Side of the images in pixels.")
    ] = None,
    dim: Annotated[int | None, typer.Option(rich_help_panel=_MODEL, help="Length of the embedding.")] = None,
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
        typer.Option(rich_help_panel=_STEPS, help="Lengths at which vectors can be cut, e.g. 64,128,256 (Matryoshka)."),
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(rich_help_panel=_STEPS, help="Images per batch; all, with --freeze.")
    ] = None,
    chunk: Annotated[
        str | None,
        typer.Option(rich_help_panel=_STEPS, help="Images in the network at a time; does not change the result."),
    ] = None,
    lr: Annotated[float | None, typer.Option(rich_help_panel=_STEPS, help="Learning rate.")] = None,
    epochs: Annotated[int | None, typer.Option(rich_help_panel=_STEPS, help="Number of epochs.")] = None,
    steps: Annotated[int | None, typer.Option(rich_help_panel=_STEPS, help="Number of steps.")] = None,
    seed: Annotated[int | None, typer.Option(rich_help_panel=_STEPS, help="Random seed.")] = None,
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
    workers: Annotated[int | None, typer.Option(rich_help_panel=_MACHINE, help="Threads that decode images.")] = None,
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
    from recollect.common.errors import ConfigError
    from recollect.common.unit_prefix import parse_dims
    from recollect.config.overrides import resolve
    from recollect.losses.registry import describe
    from recollect.models.zoo import find
    from recollect.training import trainer

    given = {name: value for name, value in locals().items() if name in _SHORT and value is not None}
    if dims is not None:
        given["dims"] = list(parse_dims(dims))
    remarks_aside(as_json)
    if resume is not None:
        others = (recipe, data, root, given, settings, out, download, watch_test, plan, allow_outside, skip_bad, logger)
        if any(others):
            raise ConfigError("--resume goes on exactly as the run began: leave every other option out.")
        _show(_stoppable(lambda: trainer.train(resume=resume)), as_json)
        return
    if final is not None:
        if any((recipe, data, root, given, settings, download, watch_test, allow_outside, skip_bad)):
            raise ConfigError("--final takes every setting from its run: leave every option out but --out and --plan.")
        from recollect.training.outcome import final_config

        _run(final_config(final), out, plan, as_json)
        return
    chosen: list[str] = [f"{_SHORT[name]}={value}" for name, value in given.items()]
    recipe, more = data_settings(recipe, data, root)
    if steps is not None and epochs is None:
        chosen.append("run.epochs=null")
    elif epochs is not None and steps is None:
        chosen.append("run.steps=null")
    chosen += ["run.watch_test=true"] * watch_test + ["model.download=true"] * download
    chosen += ["data.options.allow_outside=true"] * allow_outside + ["data.on_bad_image=skip"] * skip_bad
    chosen += [f"run.loggers={json.dumps(logger, ensure_ascii=False)}"] if logger else []
    config = resolve(recipe, [*more, *chosen, *(settings or [])])
    # Report misspelt names before reading images, which may take a while.
    describe(config.loss.name)
    find(config.model.init)
    _run(config, out, plan, as_json)


def _run(config: Config, out: Path | None, plan: bool, as_json: bool) -> None:
    from recollect.training import trainer
    from recollect.training.run_folder import RunFolder

    if plan:
        _show_plan(*trainer.plan(config), as_json)
        return
    if out is not None:
        RunFolder.create(out, config.name)  # used or read-only: noticed before features are computed, not after
    _show(_stoppable(lambda: trainer.train(config, out)), as_json)


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


def data_settings(recipe: str | None, data: str | None, root: str | None) -> tuple[str, list[str]]:
    """Which recipe, and what ``--data`` and ``--root`` mean: a data set's name, or a folder."""
    from recollect.common.errors import ConfigError
    from recollect.config.overrides import resolve
    from recollect.data.registry import find_source, is_source

    settings: list[str] = []
    if recipe is not None and data is not None and not is_source(data):
        named = resolve(recipe).data.name
        if not find_source(named).needs_root:
            raise ConfigError(
                f"the recipe {recipe} trains on {named}, which is made and lies in no folder; {data} would be ignored. "
                f"To train on it leave the recipe out (--data {data}), or keep the recipe's other settings with "
                f"--set data.name=folder --set data.root={data}."
            )
    if data is not None and is_source(data):
        settings.append(f"data.name={_as_text(data)}")
    elif data is not None and recipe is None:
        return "folder", [f"data.root={_as_text(data)}"]
    elif data is not None:
        root = root or data
    if root is not None:
        settings.append(f"data.root={_as_text(root)}")
    if recipe is None:
        recipe = "glyphs" if data in (None, "glyphs") else "folder"
    return recipe, settings


def _as_text(path: str) -> str:
    """A path quoted for YAML, so that ``photos #1`` and ``2024`` are read as names."""
    return json.dumps(path, ensure_ascii=False)


def _stoppable(run: Callable[[], Outcome]) -> Outcome:
    """``run()``; a training that is asked to stop ends with a message and its own exit code."""
    from recollect.training.callbacks import TrainingStoppedError

    try:
        return run()
    except TrainingStoppedError as error:
        typer.echo(f"recollect: {printable(str(error))}", err=True)
        raise typer.Exit(error.exit_code) from error
