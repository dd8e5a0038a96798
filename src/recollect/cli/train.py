"""``recollect train``: a recipe or a folder of photos to an embedder.

Most of its options are settings: ``setting_options`` makes them from ``config/schema.py``, which has their types, ranges
and help.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from typer import Option

from recollect.cli import options
from recollect.common.text import printable
from recollect.config.schema import PANELS, Config, meanings

if TYPE_CHECKING:
    from recollect.training.run import Outcome


_COMPLETIONS = {
    "model.init": options.complete_model,
    "loss.name": options.complete_loss,
    "run.loggers": options.complete_logger,
}
_SETTINGS: dict[str, str] = {}
"""The setting of each option that ``setting_options`` made: ``{"batch_size": "batch.size"}``."""


def setting_options(command: options.Function) -> options.Function:
    """Add an option to ``command`` for every setting of the schema that has a panel; it gets their values by keyword."""
    parameters, texts = [], meanings()
    for group, kind in get_type_hints(Config).items():
        hints = get_type_hints(kind) if is_dataclass(kind) else {}
        for item in fields(kind) if is_dataclass(kind) else ():
            if item.metadata.get("panel"):
                key, name = f"{group}.{item.name}", item.metadata["option"] or item.name
                annotation = _annotation(key, name, item, hints[item.name], texts[key])
                default = False if hints[item.name] is bool else None
                parameters.append(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
                )
                _SETTINGS[name] = key
    parameters.sort(key=lambda option: PANELS.index(option.annotation.__metadata__[0].rich_help_panel))
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    command.__signature__ = signature.replace(parameters=[*own, *parameters])  # type: ignore[attr-defined]
    command.__annotations__ |= {option.name: option.annotation for option in parameters}
    return command


def _annotation(key: str, name: str, item: Field[Any], hint: Any, text: str) -> Any:
    about: dict[str, Any] = {
        "help": re.split(r"(?<=\.) (?=[A-Z`])", text)[0].replace("`", ""),  # the first sentence
        "rich_help_panel": item.metadata["panel"],
        "autocompletion": _COMPLETIONS.get(key),
    }
    several, kinds = get_origin(hint) is tuple, {hint, *get_args(hint)}
    number = next((kind for kind in (int, float) if kind in kinds), None)
    if hint is bool:
        return Annotated[bool, Option(f"--{name.replace('_', '-')}", **about)]
    if number is None:
        return Annotated[list[str] | None if several else str | None, Option(**about)]
    about["metavar"] = f"<{number.__name__}{',...' * several}> {item.metadata['range'].interval}"
    return Annotated[Any, Option(parser=_numbers if several else _number, **about)]


def _number(text: str) -> float | str:
    """A number, or a word such as ``auto``; the schema says what is allowed."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _numbers(text: str) -> list[float | str]:
    return [_number(part.strip()) for part in text.split(",") if part.strip()]


@options.app.command()
@setting_options
def train(
    recipe: options.Recipe = None,
    data: Annotated[
        str | None, options.data_option(help="A folder of images, the name of a data set, or your own: file.py:name.")
    ] = None,
    root: options.Root = None,
    test_share: Annotated[
        float | None,
        Option(
            metavar="<float> [0<x<1]",
            help="Share of a folder's classes held out for testing; train and test folders are pooled. Default: 0.5.",
        ),
    ] = None,
    split_of: Annotated[
        Path | None,
        Option(metavar="RUN", help="Hold out the classes that this run was not trained on, to compare with it."),
    ] = None,
    skip_bad: options.SkipBadImages = False,
    max_pixels: options.MaxPixels = None,
    out: Annotated[Path | None, Option(help="Run folder to create. Default: a new one in runs/.")] = None,
    resume: Annotated[Path | None, Option(help="Resume a run exactly.")] = None,
    final: Annotated[
        Path | None,
        Option(
            metavar="RUN", help="Train on all classes, none held out, with the settings and the length of this run."
        ),
    ] = None,
    plan: options.Plan = False,
    as_json: Annotated[bool, Option("--json", help="Print the outcome, or the plan, as JSON.")] = False,
    quiet: options.Quiet = False,
    settings: Annotated[
        list[str] | None,
        options.settings_option(autocompletion=options.complete_setting, help="Any setting, e.g. batch.size=392."),
    ] = None,
    **panels: Any,
) -> None:
    """Train an embedder.

    recollect train --data photos/       your own images, one folder per class
    recollect train                      the embedded characters, on any laptop
    recollect train sop/r50-512/rsk --root DIR    a row of the paper; see recipes
    recollect train --resume RUN         resume a run
    """
    import recollect
    from recollect.config.resolve import default_recipe, parse_settings

    values = {_SETTINGS[name]: value for name, value in panels.items() if value is not None and value is not False}
    if len(lengths := values.keys() & {"run.steps", "run.epochs"}) == 1:  # giving one replaces the other
        values["run.epochs" if "run.steps" in lengths else "run.steps"] = None
    values |= options.data_settings(skip_bad, max_pixels) | options.drop_none(**{"data.options.test_share": test_share})
    if split_of is not None:
        options.refuse_unused(
            not (data or resume or final), "without --data FOLDER, whose classes it divides", "split_of"
        )
        values |= recollect.split_of(split_of)
    values = parse_settings(settings, values)
    options.remarks.aside = as_json
    if resume is not None or final is not None:
        values |= options.drop_none(**{"data.root": root})
    if resume is not None:
        options.refuse_unused(True, "with --resume, which continues a run", "recipe", "data", "final", "out", "plan")
        _show(recollect.train(resume=resume, settings=values), as_json)
        return
    if final is not None:
        options.refuse_unused(True, "with --final, which takes the settings of the run", "recipe", "data")
        config = recollect.final_config(final, values)
    else:
        config = recollect.resolve(recipe or default_recipe(data, root), values, data=data, root=root)
    if plan:
        options.show_plan(recollect.plan(config), as_json)
    else:
        _show(recollect.train(config, out), as_json)


def _show(outcome: Outcome, as_json: bool) -> None:
    model = outcome.folder / "model"
    if as_json:
        verdicts = {name: verdict.as_dict() for name, verdict in outcome.verdicts.items()}
        options.print_json({**vars(outcome), "verdicts": verdicts, "model": model})
        return
    for name, metrics in outcome.metrics.items():
        options.echo(f"{name:<10} " + "  ".join(f"{key} {100 * value:.1f}" for key, value in list(metrics.items())[:4]))
    options.echo(printable(f"model      {model} (step {outcome.chosen_step:,})"))
