"""YAML with limits, because recipes, configurations and settings are not trusted.

In plain YAML a few hundred bytes can expand to gigabytes (aliases of aliases), values can refer to themselves, and
scalars that only look like numbers raise many kinds of errors. Here size, depth and the number of values are counted while
parsing, before anything is built; every error is a ``ConfigError`` with line and column. Dates are not supported:
``2020-01-31`` stays text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from recollect.common.errors import ConfigError, DataError, in_one_line
from recollect.common.reading import DEPTH_LIMIT, read_text

SIZE_LIMIT = 2**20
"""Bytes of the largest YAML file; the largest recipe has 6 kB."""
VALUES_LIMIT = 50_000
"""Maximum number of values in a file with all aliases expanded."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without dates; every error has a line and column."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if (
                isinstance(value, int) and value.bit_length() > 1024
            ):  # Python does not convert a number of more than 4,300 digits to text
                raise ValueError("too large")
            return value
        except yaml.YAMLError:
            raise
        # PyYAML's constructors raise these for "0x_", "!!int x", "!!bool x", 5,000 digits, …
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            text = node.value if isinstance(node.value, str) else ""
            shown = text if len(text) <= 40 else f"{text[:30]}…"
            kind = str(node.tag).rpartition(":")[2]
            raise ConstructorError(None, None, f"{shown!r} is not a valid {kind}", node.start_mark) from error


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path | str) -> Any:
    """The value of a YAML file; None for an empty one.

    Raises:
        ConfigError: it cannot be read, is not YAML, or exceeds the limits.
    """
    return parse_yaml(read_yaml_text(path), str(path))


def read_yaml_text(path: Path | str) -> str:
    """The text of a YAML file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read_text(path, SIZE_LIMIT)
    except DataError as error:
        raise ConfigError(str(error)) from error


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; ``where`` is named in errors.

    Raises:
        ConfigError: it is not YAML, or exceeds the limits.

    Examples:
        >>> parse_yaml("a: [1, 2]", "here")
        {'a': [1, 2]}
        >>> parse_yaml("a: &x [*x]", "here")
        Traceback (most recent call last):
        recollect.common.errors.ConfigError: here: not valid YAML (line 1, column 8: 'x' contains itself).
    """
    try:
        _refuse_excess(text)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML ({in_one_line(error)}).") from error
    except RecursionError as error:
        raise ConfigError(f"{where}: not valid YAML (nested too deeply).") from error


def compose_yaml(text: str, where: str) -> yaml.Node | None:
    """The nodes of a YAML text, with their positions; under the same limits as ``parse_yaml``."""
    parse_yaml(text, where)
    node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return node


def _refuse_excess(text: str) -> None:
    """Count the values of the text with all aliases expanded."""
    open_nodes: list[tuple[str | None, int]] = []  # anchor and count at the start of each node around
    sizes: dict[str, int | None] = {}  # by anchor; None while its node is open
    count = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if (size := sizes.get(str(event.anchor), 0)) is None:
                raise _excess(f"{event.anchor!r} contains itself", event)
            count += size
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if anchor is not None:
                sizes[anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((anchor, count))
            count += 1
            if anchor is not None:
                sizes[anchor] = None
            if len(open_nodes) > DEPTH_LIMIT:
                raise _excess(f"nested more than {DEPTH_LIMIT} levels deep", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            started, before = open_nodes.pop()
            if started is not None:
                sizes[started] = count - before
        if count > VALUES_LIMIT:
            raise _excess(f"expands to more than {VALUES_LIMIT:,} values", event)


def _excess(problem: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, problem, event.start_mark)  # type: ignore[arg-type]
