"""What there is to choose from: ``recollect recipes``, ``models``, ``losses`` and ``data``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from recollect.cli import options
from recollect.common.errors import InputError
from recollect.common.text import flat, printable

if TYPE_CHECKING:
    from recollect.config.recipes import Recipe
    from recollect.models.zoo import Initialization


def _print_table(columns: tuple[str, ...], rows: Iterable[Iterable[str]], least_width: int = 0) -> None:
    """Print rows; only the last column is folded."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1])
    for row in rows:
        table.add_row(*map(escape, row))
    options.tables_console(least_width).print(table)


# Recipes ------------------------------------------------------------------------------------------------------------


@options.app.command("recipes")
def recipes(
    words: Annotated[
        list[str] | None, options.recipe_argument(metavar="NAME|WORD", help="One recipe, or words a name must contain.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the recipes, or show one.

    recollect recipes                       all of them
    recollect recipes sop b16 rsk           those whose name has every word
    recollect recipes cars196/r50-512/rsk   this one: every setting, where it comes
                                            from, the published numbers
    """
    from recollect import find_recipes

    matches = find_recipes(words or [])
    if not isinstance(matches, list):
        _show_recipe(matches, " ".join(words or []), as_json)
    elif as_json:
        options.print_json([_recipe_summary(recipe) for recipe in matches])
    else:
        rows = []
        for recipe in matches:
            numbers = [f"{metric} {value:.1f}" for test in recipe.published.values() for metric, value in test.items()]
            rows.append((recipe.name, *(numbers[:1] or [""]), recipe.description))
        _print_table(("recipe", "published", "what it is"), rows)
        typer.echo(
            f"\n{len(rows)} recipes. recollect recipes NAME shows one, recollect recipes WORD… searches by name."
        )


def _recipe_summary(recipe: Recipe) -> dict[str, Any]:
    summary = {name: getattr(recipe, name) for name in ("name", "description", "trains", "notes")}
    return {**summary, "published": recipe.values.get("published", {})}


def _show_recipe(recipe: Recipe, name: str, as_json: bool) -> None:
    from recollect.config.resolve import as_mapping, resolve

    settings, origins = as_mapping(resolve(name)), recipe.origins
    if as_json:
        places = {key: asdict(origin) for key, origin in origins.items()}
        options.print_json({**_recipe_summary(recipe), "config": settings, "origins": places})
        return
    typer.echo(printable("\n".join([recipe.name, recipe.description, *(f"Note: {note}" for note in recipe.notes)])))
    if recipe.published:
        typer.echo("\npublished, in percent")
    for test, metrics in recipe.published.items():
        numbers = "   ".join(f"{metric} {number:.1f}" for metric, number in metrics.items())
        typer.echo(printable(f"  {test:<24}{numbers}"))
    # Without training, only the settings that are used.
    for group in ("data", "model", "loss", "batch", "optimizer", "run") if recipe.trains else ("data", "model"):
        typer.echo(f"\n{group}")
        for key, value in flat(settings[group]):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            text = {"None": "null", "True": "true", "False": "false"}.get(text, text)  # as in YAML
            origin = origins.get(f"{group}.{key}")
            place = "default" if origin is None else f"{origin.where:<27} {origin.comment}".rstrip()
            typer.echo(printable(f"  {key:<22}{text:<25} {place}"))
    if any(origin.comment.startswith(("paper", "released", "chosen")) for origin in origins.values()):
        typer.echo("\npaper: its text says so; released: the authors' code or settings do; chosen: never published.")
    verb = "train" if recipe.trains else "eval --recipe"
    root = "" if settings["data"]["name"] == "glyphs" else " --root FOLDER"
    typer.echo(f"\nrecollect {verb} {recipe.name}{root}")


# Models -------------------------------------------------------------------------------------------------------------


@options.app.command("models")
def models(
    name: Annotated[
        str | None, options.model_argument(help="Show one: a name from the list, timm:<full tag>, or file.py:name.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the initialisations an embedder can start from, or show one in full."""
    from recollect import available_models, describe_model
    from recollect.common.plugins import list_installed

    if name is not None:
        model = describe_model(name)
        lines = [f"{title:13} {value}" for title, value in _model_lines(model).items()]
        options.print_json(_model_summary(model)) if as_json else typer.echo(printable("\n".join(lines)))
    elif as_json:
        options.print_json([*map(_model_summary, available_models().values()), *list_installed("backbone")])
    else:
        columns = ("name", "paper", "architecture", "dim", "size", "mean/std", "params", "weights", "licence")
        rows = available_models().values()
        for group in dict.fromkeys(row.group for row in rows):
            typer.echo(f"\n{group[0].upper()}{group[1:]}")
            _print_table(columns, [_model_row(row) for row in rows if row.group == group], least_width=160)
        typer.echo(
            "\nWe would start from unicom-l14 for photos of products (recall@1 without training: 72.7 on Online Products,\n"
            "83.6 on In-Shop, say its authors), from dinov3-l16 for places (mAP 63.1 on Oxford, hard, says its model card),\n"
            "and from dinov2-l14-reg for things of every kind (ImageNet by nearest neighbours: 83.8, say its authors).\n"
            "\nLicences of the weights: (NC) is for research only. MIT, BSD-3-Clause and Apache-2.0 allow commercial use,\n"
            "dinov3-license under Meta's conditions.\n"
            "dim: dimension of features before the head. weights: whether on this machine.\n"
            "Any other timm model: --init timm:<full tag>; your own backbone: --init file.py:name.\n"
            "`recollect models NAME` shows where weights are searched."
        )
        for row in list_installed("backbone"):
            typer.echo(f"{row['name']}  from the package {row['package']} ({row['reference']})")


def _weights_file(model: Initialization) -> Path | None:
    from recollect.models.weight_files import find_weights

    return find_weights(model) if model.has_weights_file else None


def _model_summary(model: Initialization) -> dict[str, Any]:
    """A row of the table as plain values, and the file its weights are in, if it is here."""
    outside = None if model.outside is None else model.outside.as_dict()
    more = {"non_commercial": model.non_commercial, "outside": outside, "weights": _weights_file(model)}
    return {**asdict(replace(model, outside=None)), **more}


def _model_row(model: Initialization) -> tuple[str, ...]:
    weights = "from scratch" if not model.pretrained else "no" if _weights_file(model) is None else "yes"
    return (
        model.name,
        model.paper_row or "–",
        model.architecture,
        str(model.feature_dim),
        _size(model),
        str(model.normalization),
        f"{model.parameters / 1e6:.1f}M",
        "bundled" if model.name == "lite0-in1k" else weights,
        model.licence + ("  (NC)" if model.non_commercial else ""),
    )


def _size(model: Initialization) -> str:
    return str(model.size) if model.resize is not None else f"any, ≤ {model.max_side}"


def _model_lines(model: Initialization) -> dict[str, str]:
    from recollect.models.weight_files import FOLDER_VARIABLE

    preprocessing = model.preprocessing
    norms = ("LayerNorm, " if model.layer_norm else "") + ("L2, " if model.l2_before_head else "")
    lines = {
        "name": model.name,
        "paper row": model.paper_row or "– (not in the paper)",
        "architecture": f"{model.architecture} ({model.timm_id or 'our own'}), activation {model.activation}",
        "parameters": f"{model.parameters:,} without head",
        "features": str(model.feature_dim),
        "default head": f"{model.pooling} pooling, {norms}Linear to {model.dim}, L2",
        "input": f"{_size(model)} px, {preprocessing.interpolation}",
        "mean": ", ".join(f"{value:g}" for value in preprocessing.mean),
        "std": ", ".join(f"{value:g}" for value in preprocessing.std),
        "licence": model.licence + ("  (not for commercial use)" if model.non_commercial else ""),
        "weights": "none exist: from scratch",
    }
    if model.outside is not None:
        for unknown in ("parameters", "features", "licence"):
            del lines[unknown]
        lines["weights"] = "its own" if model.pretrained else "none: from scratch"
        lines["sha256"] = f"{model.outside.sha256} of {model.outside.file}"
    if model.has_weights_file:
        source = f"the hub ({model.hub})" if model.hub else model.url or "nowhere: no safe address is known"
        lines["weights"] = str(_weights_file(model) or "not on this machine")
        lines["file names"] = ", ".join([*model.files, f"{model.name}.safetensors (.pth, ...)"])
        lines["searched in"] = f"${FOLDER_VARIABLE}, the caches; --download downloads from {source}"
        lines["layouts"] = ", ".join(model.layouts) or "any that fits exactly"
        lines["sha256"] = model.sha256 or "not published"
        lines["page"] = model.page
    return lines


# Losses -------------------------------------------------------------------------------------------------------------


@options.app.command("losses")
def losses(
    name: Annotated[
        str | None, Argument(autocompletion=options.complete_loss, help="Show this loss with its options.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the losses, or show one with its options and defaults."""
    from recollect import available_losses, describe_loss

    if name is not None:
        description = describe_loss(name)
        options.print_json(asdict(description)) if as_json else _show_loss(description)
        return
    entries = available_losses().values()
    if as_json:
        options.print_json([asdict(entry) for entry in entries])
        return
    rows = [(e.name, e.family, e.memory, e.extra or "", "yes" * e.parameters, e.description) for e in entries]
    _print_table(("loss", "family", "memory", "extra", "own", "what it is"), rows)
    typer.echo(
        "\nmemory: M batch, N references, d dimensions, C classes, m images per class; own: has its own parameters."
        "\nrecollect losses NAME shows a loss's options."
    )


def _show_loss(description: Any) -> None:
    entry = description.entry
    options.tables_console().print(f"{entry.name} ({entry.family})\n\n{description.summary}\n", markup=False)
    rows = [(o.name, o.type, "required" if o.required else repr(o.default)) for o in description.options]
    _print_table(("option", "type", "default"), rows)
    typer.echo(f"\nMemory: {entry.memory or 'not known'}.")
    if entry.extra:
        typer.echo(f'Needs: pip install "recollect[{entry.extra}]".')
    if entry.parameters:
        typer.echo("Has its own parameters: pass loss.parameters() to the optimizer.")
    if not entry.references:
        typer.echo("Takes no separate reference set.")


# Data ---------------------------------------------------------------------------------------------------------------

data = options.Commands(help="List the data sets, or check a copy of one.")
options.app.add_typer(data, name="data")


@data.callback(invoke_without_command=True)
def list_sources(context: typer.Context, as_json: options.AsJson = False) -> None:
    """List the data sets: what they are, their published counts, where to get them, their terms."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise InputError(f"give --json after {context.invoked_subcommand}.")
        return
    from recollect import available_data
    from recollect.common.plugins import list_installed

    sources = available_data().values()
    if as_json:
        keys = ("name", "title", "splits", "test_splits", "layout", "homepage", "licence", "needs_root", "options")
        rows = []
        for source in sources:
            counts = {split: {"images": n.images, "classes": n.classes} for split, n in source.published.items()}
            rows.append({**{key: getattr(source, key) for key in keys}, "published": counts})
        options.print_json([*rows, *list_installed("data set")])
        return
    for source in sources:
        typer.echo(f"{source.name:<13}{source.title}")
        published = "; ".join(f"{split} {count}" for split, count in source.published.items())
        lines = {"counts": published, "files": source.layout, "from": source.homepage, "terms": source.licence}
        for label, text in lines.items():
            if text:
                typer.echo(f"{'':<13}{label:<8}{text}")
    for row in list_installed("data set"):
        typer.echo(f"{row['name']:<13}from the package {row['package']} ({row['reference']})")
    typer.echo("\nCheck a copy with  recollect data verify NAME ROOT")


@data.command()
def verify(
    name: Annotated[str, options.data_argument(help="The data set, e.g. sop or folder.")],
    root: Annotated[Path | None, Argument(help="The folder of the data set; for folder, also a CSV file.")] = None,
    samples_per_class: Annotated[
        int, Option("--samples-per-class", "-m", min=1, max=10**6, help="Images per class in a batch.")
    ] = 4,
    csv: Annotated[str | None, Option(help="For folder: the CSV file, relative to ROOT.")] = None,
    nested: Annotated[
        bool, Option("--nested", help="For folder: the folders of ROOT are the classes, though they contain folders.")
    ] = False,
    max_pixels: options.MaxPixels = None,
    workers: Annotated[int | None, Option(min=1, max=1024, help="Number of reading threads.")] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Check every file of a data set: counts, missing, unreadable, identical, class sizes.

    The exit code is 0 if there are no problems, and 1 if counts differ from the
    published ones, files are missing or cannot be read, or identical images are
    in both train and test.
    """
    from recollect import verify_data

    layout = options.drop_none(csv=csv, nested=nested or None)
    report = verify_data(name, root, samples_per_class=samples_per_class, workers=workers, **layout)
    if as_json:
        options.print_json(report.as_dict())
    else:
        typer.echo(printable(report.as_text()))  # file names need not be valid text
    if not report.ok:
        raise typer.Exit(1)
