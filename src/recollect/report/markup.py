"""HTML and SVG elements; text is escaped unless it is already markup.

Class names, file names and settings come from files that others wrote. Every string that reaches a page goes through
``element`` and is escaped there, so a page's author has to do something unusual to let one through. All of ``report``
depends on that; do not add a way to pass a plain string unescaped.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterable

# Characters that reverse or hide text: a class name could make the page show something else.
_UNWANTED = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0xFEFF}
_PERCENT = re.compile(r"(?<=\d) (?=%)")
_EMPTY = {"img", "br", "meta", "hr", "input", "line", "rect", "circle", "path", "polyline", "use"}
_SVG_SHAPES = {"line", "rect", "circle", "path", "polyline", "use"}


class Markup(str):
    """Text that is already HTML and is not escaped again."""

    __slots__ = ()


Child = str | Markup | None | Iterable["Child"]


def clean(text: str) -> str:
    """``text`` without characters that cannot be shown or that rearrange the surrounding text."""
    if text.isascii() and text.isprintable():  # nearly all of a page, pictures included, which are long
        return text
    return "".join("\ufffd" if _is_unwanted(character) else character for character in text)


def _is_unwanted(character: str) -> bool:
    if character in "\n\t":
        return False
    # Cs: an unpaired surrogate, which represents a byte of a file name that is not text and cannot be written.
    return ord(character) in _UNWANTED or unicodedata.category(character) in ("Cc", "Cs")


def escape(text: str) -> Markup:
    """``text`` as HTML that shows it, in elements and in attributes."""
    return text if isinstance(text, Markup) else Markup(html.escape(clean(text), quote=True))


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
        >>> element("a", "R&D <b>", href="#x", class_="link")
        '<a href="#x" class="link">R&amp;D &lt;b&gt;</a>'
    """
    opening = tag
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        # Also a Markup value: quotes inside it would end the attribute.
        shown = "" if value is True else html.escape(clean(str(value)), quote=True)
        opening += f" {name}" if value is True else f' {name}="{shown}"'
    if tag in _EMPTY and not children:
        return Markup(f"<{opening}/>" if tag in _SVG_SHAPES else f"<{opening}>")
    return Markup(f"<{opening}>{join(*children)}</{tag}>")


def name_of(text: str) -> Markup:
    """A name that comes from files, as it is and apart from the text around it (it may run from right to left)."""
    return element("bdi", escape(text))


def breakable(text: str) -> Markup:
    """``name_of`` with places where a long name may break: after separators, not within words."""
    pieces = re.split(r"(?<=[_\-/., ])(?=[^_\-/., ])", text)
    return element("bdi", [join(escape(piece), Markup("<wbr>")) for piece in pieces[:-1]], escape(pieces[-1]))


def listed(names: Iterable[str]) -> str:
    """Names as one attribute, for the script: JSON, so that a name may contain any character."""
    return json.dumps([clean(name) for name in names], ensure_ascii=False)


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], *, caption: Child, numbers: bool = True) -> Markup:
    """A table whose first column names the rows; it scrolls by itself when it is wider than the page.

    Args:
        head: titles of the columns.
        rows: the cells.
        caption: what the table shows; every table has one.
        numbers: align all columns but the first to the right.
    """
    titles = [element("th", title, scope="col") for title in head]
    body = []
    for row in rows:
        first, *rest = row
        body.append(element("tr", element("th", first, scope="row"), [element("td", cell) for cell in rest]))
    grid = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", titles)),
        element("tbody", body),
        class_="numbers" if numbers else None,
    )
    # tabindex: keyboard users scroll a focused region with the arrow keys.
    return element("div", grid, class_="scroll", tabindex="0", role="region", aria_label=_words_of(caption))


def _words_of(child: Child) -> str:
    """The text of some markup."""
    return html.unescape(re.sub(r"<[^>]*>", "", join(child)))
