"""``recollect train``: a recipe or a folder of photos to an embedder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recollect.cli.app import app

if TYPE_CHECKING:
    from recollect.training.trainer import Outcome

# Short options and the settings they stand for.
_SHORT = {
    "init": "model.init",
    "weights": "model.weights",
    "image_size": "model.image_size",
    "dim": "model.dim",
    "freeze": "model.freeze",
    "loss": "loss.name",
    "batch_size": "batch.size",
    "chunk": "batch.chunk",
    "lr": "optimiser.lr",
    "epochs": "run.epochs",
    "steps": "run.steps",
    "validation": "data.validation",
    "seed": "run.seed",
    "device": "run.device",
    "precision": "run.precision",
    "workers": "data.workers",
    "cache": "data.cache",
}


@app.command()
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A recipe's name or a YAML file. Default: glyphs; with --data FOLDER: folder."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="A folder of images, or the name of a data set.")] = None,
    root: Annotated[str | None, typer.Option(help="Where that data set lies.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder to make. Default: a new one in runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with a run, exactly.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. batch.size=392.")
    ] = None,
    init: Annotated[str | None, typer.Option(help="What to start from; see recollect models.")] = None,
    weights: Annotated[str | None, typer.Option(help="A weights file, or none for random ones.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    dim: Annotated[int | None, typer.Option(help="Length of the embedding.")] = None,
    freeze: Annotated[
        str | None, typer.Option(help="none, backbone, pooling or a stage: train only what comes after it.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="See recollect losses.")] = None,
    batch_size: Annotated[str | None, typer.Option(help="Images in one loss; all, with --freeze.")] = None,
    chunk: Annotated[str | None, typer.Option(help="Images in the network at once; never changes the result.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    epochs: Annotated[int | None, typer.Option(help="When to stop, in epochs.")] = None,
    steps: Annotated[int | None, typer.Option(help="When to stop, in steps.")] = None,
    validation: Annotated[
        str | None, typer.Option(help="none, paper or random: half of the training classes pick the best weights.")
    ] = None,
    watch_test: Annotated[bool, typer.Option("--watch-test", help="Log test metrics; they choose nothing.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16 or fp16.")] = None,
    workers: Annotated[int | None, typer.Option(help="Threads that decode images.")] = None,
    cache: Annotated[str | None, typer.Option(help="Keep decoded images: none, ram or disk.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be done, and stop.")] = False,
) -> None:
    """Train an embedder.

    recollect train --data photos/          your own images, a folder a class
    recollect train                         the embedded characters, on any laptop
    recollect train cars196/r50-512/rsk-simix --root DIR    a row of the paper; see recollect recipes
    """
    from recollect.common.errors import ConfigError
    from recollect.training import trainer
    from recollect.training.recipes import resolve

    given = {name: value for name, value in locals().items() if name in _SHORT and value is not None}
    if resume is not None:
        if recipe or data or given or settings or out:
            raise ConfigError("--resume goes on exactly as the run began: leave every other option out.")
        outcome = _stoppable(lambda: trainer.train(resume=resume, say=typer.echo))
    else:
        chosen: list[str] = [f"{_SHORT[name]}={value}" for name, value in given.items()]
        recipe, more = data_settings(recipe, data, root)
        if steps is not None and epochs is None:
            chosen.append("run.epochs=null")
        elif epochs is not None and steps is None:
            chosen.append("run.steps=null")
        if watch_test:
            chosen.append("run.watch_test=true")
        config = resolve(recipe, [*more, *chosen, *(settings or [])])
        if plan:
            for line in trainer.plan(config)[1]:
                typer.echo(line)
            return
        outcome = _stoppable(lambda: trainer.train(config, out, say=typer.echo))
    for name, metrics in outcome.metrics.items():
        typer.echo(f"{name:<10} " + "  ".join(f"{key} {100 * value:.1f}" for key, value in list(metrics.items())[:4]))
    typer.echo(f"model      {outcome.folder / 'model'} (step {outcome.chosen_step:,})")


def data_settings(recipe: str | None, data: str | None, root: str | None) -> tuple[str, list[str]]:
    """Which recipe, and what ``--data`` and ``--root`` mean: a data set's name, or a folder."""
    from recollect.data import available

    settings: list[str] = []
    if data is not None and data in available():
        settings.append(f"data.name={data}")
    elif data is not None and recipe is None:
        return "folder", [f"data.root={data}"]
    elif data is not None:
        root = root or data
    if root is not None:
        settings.append(f"data.root={root}")
    if recipe is None:
        recipe = "glyphs" if data in (None, "glyphs") else "folder"
    return recipe, settings


def _stoppable(run: Callable[[], Outcome]) -> Outcome:
    """``run()``; a training asked to stop ends with its own exit code and a sentence."""
    from recollect.training.trainer import TrainingStoppedError

    try:
        return run()
    except TrainingStoppedError as error:
        typer.echo(f"recollect: {error}", err=True)
        raise typer.Exit(error.exit_code) from error
