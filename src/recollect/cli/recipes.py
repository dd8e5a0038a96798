"""``recollect recipes``: list the recipes, or show the settings of one with their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recollect.cli.app import app
from recollect.cli.options import AsJson, complete_recipe, print_json
from recollect.common.words import printable

if TYPE_CHECKING:
    from recollect.config.recipe_files import Recipe
    from recollect.config.schema import Config


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
    from recollect.config.recipe_files import available_recipes, family, load_recipe

    known, wanted = available_recipes(), words or []
    named = len(wanted) == 1 and (wanted[0] in known or wanted[0].endswith((".yaml", ".yml")))
    names = [] if named else [name for name in known if all(word.lower() in name for word in wanted)]
    # Words that no name contains are one name: of a file of one's own, or misspelt, and then the error has the closest.
    names = names or family(" ".join(wanted))
    if names:
        _list([load_recipe(name) for name in names], as_json)
    else:
        _show(load_recipe(" ".join(wanted)), as_json)


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
    typer.echo(f"\n{len(recipes)} recipes. recollect recipes NAME shows one; recollect recipes WORD… looks for some.")


def _summary(recipe: Recipe) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "description": recipe.description,
        "trains": _trains(recipe.values),
        "notes": list(recipe.notes),
        "published": recipe.values.get("published", {}),
    }


def _trains(values: dict[str, Any]) -> bool:
    return bool(values.get("run", {}).get("epochs") != 0)


def _first_number(recipe: Recipe) -> str:
    from recollect.config.overrides import published_tests

    numbers = [item for test in published_tests(recipe.values.get("published")).values() for item in test.items()]
    return f"{numbers[0][0]} {numbers[0][1]:.1f}" if numbers else ""


def _show(recipe: Recipe, as_json: bool) -> None:
    import dataclasses

    from recollect.config.overrides import as_mapping, as_written_now, from_mapping

    config = as_written_now(from_mapping(recipe.values, recipe.name))
    if as_json:
        origins = {key: dataclasses.asdict(origin) for key, origin in recipe.origins.items()}
        shown = {**_summary(recipe), "config": as_mapping(config), "origins": origins}
        print_json(shown)
        return
    typer.echo(printable(f"{recipe.name}\n{recipe.description}"))
    for note in recipe.notes:
        typer.echo(printable(f"Note: {note}"))
    _show_published(recipe)
    _show_settings(recipe, config)
    verb = "train" if config.run.epochs != 0 else "eval --recipe"
    typer.echo(f"\nrecollect {verb} {recipe.name}" + (" --root FOLDER" if config.data.name != "glyphs" else ""))


def _show_published(recipe: Recipe) -> None:
    from recollect.config.overrides import published_tests

    if published := published_tests(recipe.values.get("published")):
        typer.echo("\npublished, in percent")
        for test, metrics in published.items():
            numbers = "   ".join(f"{metric} {number:.1f}" for metric, number in metrics.items())
            typer.echo(printable(f"  {test:<24}{numbers}"))


def _show_settings(recipe: Recipe, config: Config) -> None:
    """Every setting, with the file of those the recipe sets; without training, only the settings that are used."""
    from recollect.config.overrides import as_mapping

    parts = as_mapping(config)
    used = ("data", "model", "loss", "batch", "optimizer", "run") if config.run.epochs != 0 else ("data", "model")
    for part in used:
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
