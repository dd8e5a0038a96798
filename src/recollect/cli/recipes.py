"""``recollect recipes``: list the recipes, or show the settings of one with their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import AsJson, complete_recipe, print_json
from recollect.common.text import printable

if TYPE_CHECKING:
    from recollect.config.recipe_files import Recipe


@app.command("recipes")
def recipes(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|WORD", autocompletion=complete_recipe, help="One recipe, or words a name must contain."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes, or show one.

    recollect recipes                       all of them
    recollect recipes sop b16 rsk           those whose name has every word
    recollect recipes cars196/r50-512/rsk   this one: every setting, where it comes
                                            from, the published numbers
    """
    from recollect import find_recipes

    found = find_recipes(words or [])
    if isinstance(found, list):
        _list(found, as_json)
    else:
        _show(found, " ".join(words or []), as_json)


def _list(recipes: list[Recipe], as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    if as_json:
        print_json([_summary(recipe) for recipe in recipes])
        return
    table = Table("recipe", "published", "what it is", box=None, pad_edge=False)
    for recipe in recipes:
        table.add_row(recipe.name, _first_number(recipe), recipe.description)
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=140)).print(table)
    typer.echo(f"\n{len(recipes)} recipes. recollect recipes NAME shows one; recollect recipes WORD… searches by name.")


def _summary(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "description": recipe.description,
        "trains": recipe.trains,
        "notes": list(recipe.notes),
        "published": recipe.values.get("published", {}),
    }


def _first_number(recipe: Recipe) -> str:
    numbers = [item for test in recipe.published.values() for item in test.items()]
    return f"{numbers[0][0]} {numbers[0][1]:.1f}" if numbers else ""


def _show(recipe: Recipe, name: str, as_json: bool) -> None:
    import dataclasses

    from recollect import resolve
    from recollect.config.overrides import as_mapping

    config = resolve(name)
    if as_json:
        origins = {key: dataclasses.asdict(origin) for key, origin in recipe.origins.items()}
        shown = {**_summary(recipe), "config": as_mapping(config), "origins": origins}
        print_json(shown)
        return
    typer.echo(printable(f"{recipe.name}\n{recipe.description}"))
    for note in recipe.notes:
        typer.echo(printable(f"Note: {note}"))
    _show_published(recipe)
    _show_settings(recipe, as_mapping(config))
    verb = "train" if recipe.trains else "eval --recipe"
    typer.echo(f"\nrecollect {verb} {recipe.name}" + (" --root FOLDER" if config.data.name != "glyphs" else ""))


def _show_published(recipe: Recipe) -> None:
    if recipe.published:
        typer.echo("\npublished, in percent")
    for test, metrics in recipe.published.items():
        numbers = "   ".join(f"{metric} {number:.1f}" for metric, number in metrics.items())
        typer.echo(printable(f"  {test:<24}{numbers}"))


def _show_settings(recipe: Recipe, parts: dict[str, Any]) -> None:
    """Every setting, with the file of those the recipe sets; without training, only the settings that are used."""
    for part in ("data", "model", "loss", "batch", "optimizer", "run") if recipe.trains else ("data", "model"):
        typer.echo(f"\n{part}")
        for key, value in _flat(parts[part]):
            origin = recipe.origins.get(f"{part}.{key}")
            place = "default" if origin is None else f"{origin.where:<27} {origin.comment}".rstrip()
            typer.echo(printable(f"  {key:<22}{_short(value):<25} {place}"))
    if any(origin.comment.startswith(("paper", "released", "chosen")) for origin in recipe.origins.values()):
        typer.echo("\npaper: its text says so; released: the authors' code or settings do; chosen: never published.")


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Options of a loss or a data set as separate settings."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found += _flat(value, f"{prefix}{key}.")
        elif value != {}:
            found.append((prefix + key, value))
    return found


def _short(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
