"""Pages of the documentation site that are made from the code: commands, settings and the API.

MkDocs calls ``on_files`` before it reads the pages (``hooks`` in mkdocs.yml). Commands come from the command line's own help,
settings from the dataclasses of ``config/schema.py`` with the docstring below each field, the API from ``__all__`` of the
public packages; mkdocstrings renders the docstrings.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any

from mkdocs.structure.files import File, Files

ROOMS = ("losses", "step", "evaluation", "data", "models", "inference", "search")
PACKAGES = ("recollect", *(f"recollect.{room}" for room in ROOMS))


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    pages = {"reference/commands.md": commands_page(), "reference/settings.md": settings_page()}
    pages |= {f"reference/api/{package.split('.')[-1]}.md": api_page(package) for package in PACKAGES}
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def commands_page() -> str:
    """Every verb with its help and a table of its arguments and options."""
    import typer.main

    from recollect.cli.main import app

    group: Any = typer.main.get_command(app)
    parts = ["# Commands\n\n`recollect VERB --help` prints the same on a terminal.\n"]
    for name, command in _commands(group):
        parts.append(f"## recollect {name}\n")
        parts.append(_paragraphs(command.help or ""))
        rows = [_option_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        if rows:
            parts.append("\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _commands(group: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Verbs in the order of the help, those of a group under its name."""
    commands: list[tuple[str, Any]] = []
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            commands += _commands(command, f"{prefix}{name} ")
        else:
            commands.append((prefix + name, command))
    return commands


def _paragraphs(text: str) -> str:
    """Help text as Markdown: lines that begin with ``recollect`` are commands."""
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(f"    {line.strip()}" if line.strip().startswith("recollect ") else line for line in lines) + "\n"


def _option_row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in parameter.opts) if is_option else f"`{(parameter.name or '').upper()}`"
    default = parameter.default
    if callable(default) or default in (None, False, (), []) or str(default) == "Sentinel.UNSET":
        default_text = ""
    else:
        default_text = f"`{default}`"
    return f"| {names} | {_cell(getattr(parameter, 'help', '') or '')} | {default_text} |"


def settings_page() -> str:
    """Every setting of the configuration with type, default, range and meaning."""
    from recollect.config import schema

    meanings = schema.meanings()
    parts = [
        "# Settings\n",
        "Every setting of a recipe or of `recollect train --set GROUP.NAME=VALUE`. A default of `auto` follows from the "
        "data and the machine; the plan prints the value and the reason.\n",
    ]
    for group in dataclasses.fields(schema.Config):
        part = group.default_factory() if group.default_factory is not dataclasses.MISSING else None
        if not dataclasses.is_dataclass(part):
            continue
        parts.append(f"## {group.name}\n\n{type(part).__doc__}\n")
        parts.append("| setting | type | default | meaning |\n|---|---|---|---|")
        for item in dataclasses.fields(part):
            allowed = item.metadata.get("range")
            meaning = meanings[f"{group.name}.{item.name}"]
            if allowed is not None:
                meaning = f"{meaning} Range: {allowed}.".strip()
            value = getattr(part, item.name)
            parts.append(
                f"| `{group.name}.{item.name}` | {_cell(_type_words(str(item.type)))} | `{value!r}` | {_cell(meaning)} |"
            )
        parts.append("")
    return "\n".join(parts)


def _type_words(annotation: str) -> str:
    """A type as a reader says it: a choice of words, or types joined by "or"."""
    annotation = re.sub(r"\bAuto\b", "Literal['auto']", annotation)
    annotation = re.sub(r"Literal\[(.*?)\]", lambda match: match.group(1).replace(", ", " | "), annotation)
    return " or ".join(f"`{part.strip()}`" for part in annotation.split("|"))


def api_page(package: str) -> str:
    """The public names of ``package``, from its ``__all__``."""
    module = importlib.import_module(package)
    parts = [f"# {package}\n", f"{(module.__doc__ or '').strip()}\n"]
    parts += [f"::: {package}.{name}\n" for name in module.__all__ if not name.startswith("__")]
    return "\n".join(parts)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|")
