"""HTML, SVG and Markdown; text is escaped unless it is already markup.

Class names, file names and settings come from files that others wrote. Every string that reaches a page goes through
``escape``, whether ``element`` puts it there or a template of ``templates/``; a template for Markdown escapes with
``escape_markdown``. All of ``report`` depends on that; do not add a way to pass a plain string unescaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup as Markup

from recollect._version import __version__
from recollect.common.errors import InputError
from recollect.common.text import in_decimals, in_words, number_of, printable
from recollect.evaluation import metric_name

_UNWANTED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")
"""Control characters, those that reverse or hide text, as which a class name could make the page show something else, and
unpaired surrogates, which represent bytes of a file name that are not text and cannot be written."""
_PERCENT = re.compile(r"(?<=\d) (?=%)")
_EMPTY = {"img": ">", "br": ">"} | dict.fromkeys(("line", "rect", "circle", "path"), "/>")
"""How the tag ends of elements that may have no content."""


Entry = TypeVar("Entry")
Child = str | Markup | None | Iterable["Child"]


def clean(text: str) -> str:
    """``text`` without characters that cannot be shown or that rearrange the surrounding text."""
    return _UNWANTED.sub("\ufffd", text)


def escape(value: object) -> Markup:
    """A value as HTML that shows it, in elements and in attributes; None is nothing."""
    if value is None:
        return Markup("")
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(clean(str(value)), quote=True))


def escape_markdown(value: object) -> Markup:
    """A value in Markdown, on one line and shown literally, also in the cell of a table."""
    if isinstance(value, Markup):
        return value
    text = one_line(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Markup(re.sub(r"([\\`*_{}\[\]()#+!~$|])", r"\\\1", text))


def markdown_code(value: object) -> Markup:
    """A value between backticks of Markdown, also in the cell of a table."""
    text = one_line(value).replace("`", "'").replace("<", "‹").replace(">", "›")
    return Markup(text.replace("|", r"\|"))


def one_line(value: object) -> str:
    """A value as text on one line, of a length that a card can show."""
    return " ".join(printable(str(value)).split())[:300]


def packaged(name: str) -> str:
    """A file of this package as text."""
    return resources.files("recollect.report").joinpath(name).read_text(encoding="utf-8")


def render(template: str, **values: Any) -> Markup:
    """A template of ``templates/`` with ``values``, each of which is escaped unless it is markup."""
    return Markup(_environment(template.endswith(".md")).get_template(template).render(values))


@cache
def _environment(markdown: bool) -> Environment:
    def source(name: str) -> str:
        text = packaged(f"templates/{name}")
        if markdown:
            return text
        # A line break beside a tag or a block is not a space on the page; between words it is.
        return re.sub(r"\s*\n\s*", " ", re.sub(r"(?<=[>}])\s*\n\s*|\s*\n\s*(?=[<{])", "", text))

    escaping: Callable[[object], Markup] = escape_markdown if markdown else escape
    environment = Environment(
        autoescape=True,
        finalize=escaping,
        loader=FunctionLoader(source),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "in_words": in_words,
        "metric_name": metric_name,
        "number_of": number_of,
        "today": lambda: f"{datetime.now():%-d %B %Y}",
        "version": __version__,
    }
    environment.filters |= {
        "bdi": name_of,
        "breakable": breakable,
        "code": markdown_code,
        "commas": "{:,}".format,
        "decimals": in_decimals,
        "digest": _digest,
        "json": listed,
        "plain": lambda child: html.unescape(re.sub(r"<[^>]*>", "", join(child))),
        "words": join,
    }
    return environment


def _digest(text: str) -> str:
    """A text's name in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


def check_replaceable(path: Path, overwrite: bool, mark: str, what: str) -> None:
    """Refuse to replace a file that does not have ``mark`` near its beginning, as those of recollect do.

    Raises:
        InputError: it exists and is not ``what``, and ``overwrite`` is False.
    """
    if overwrite or not path.exists():
        return
    if path.is_file():
        with path.open("rb") as file:
            if mark.encode() in file.read(4096):
                return
    raise InputError(f"{path} exists and is not {what}: choose another name, or use --overwrite.")


def join(*children: Child) -> Markup:
    """The children concatenated; None is skipped. A number is not separated from its % at the end of a line."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escape(_PERCENT.sub("\u00a0", child)))
        elif child is not None:
            parts.append(join(*child))
    return Markup("".join(parts))


def element(tag: str, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element. Attribute names are written with ``_`` for ``-`` and without a last ``_``; None and False are left out.

    Examples:
        >>> print(element("a", "R&D <b>", href="#x", class_="link"))
        <a href="#x" class="link">R&amp;D &lt;b&gt;</a>
    """
    opening = tag
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        # A Markup value is escaped too: quotes inside it would end the attribute.
        opening += f" {name}" if value is True else f' {name}="{escape(str(value))}"'
    if tag in _EMPTY and not children:
        return Markup(f"<{opening}{_EMPTY[tag]}")
    return Markup(f"<{opening}>{join(*children)}</{tag}>")


def name_of(text: str) -> Markup:
    """A name that comes from files, as it is and apart from the text around it (it may run from right to left)."""
    return element("bdi", escape(text))


def breakable(text: str) -> Markup:
    """``name_of`` with places where a long name may break: after separators, not within words."""
    pieces = re.split(r"(?<=[_\-/., ])(?=[^_\-/., ])", text)
    return element("bdi", Markup("<wbr>".join(map(escape, pieces))))


def listed(names: Iterable[str]) -> str:
    """Names as one attribute, for the script: JSON, so that a name may contain any character."""
    return json.dumps([clean(name) for name in names], ensure_ascii=False)


def unfolding(
    entries: Sequence[Entry], first: int, most: int, show: Callable[[Sequence[Entry]], Markup], what: str = "more"
) -> Markup:
    """The ``first`` entries, and those that follow, up to ``most`` in all, collapsed."""
    rest = entries[first:most]
    more = element("details", element("summary", f"{len(rest)} {what}"), show(rest), class_="more") if rest else None
    return join(show(entries[:first]), more)


def table(head: Iterable[Child], rows: Sequence[Sequence[Child]], *, caption: Child, numbers: bool = True) -> Markup:
    """A table whose first column names the rows; it scrolls by itself when it is wider than the page. Nothing without rows.

    Args:
        head: titles of the columns.
        rows: the cells.
        caption: what the table shows; every table has one.
        numbers: align all columns but the first to the right.
    """
    return render("table.html", head=head, rows=rows, caption=caption, numbers=numbers)
