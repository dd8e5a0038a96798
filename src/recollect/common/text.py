"""Text for users: durations, counts, suggestions for misspelt names, text that is safe to print; and checks of options."""

from __future__ import annotations

import difflib
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recollect.common.errors import ConfigError

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except newline and tab, marks that change the direction of text, and bytes of a file name that are
not text."""


@dataclass(frozen=True)
class Remark:
    """A message for the user; in a terminal, a warning is marked as one."""

    text: str
    warning: bool = False

    def __str__(self) -> str:
        return f"WARNING: {self.text}" if self.warning else self.text


def in_words(seconds: float) -> str:
    """A duration with about two digits, in a suitable unit.

    Examples:
        >>> [in_words(seconds) for seconds in (0.2, 42, 600, 9000)]
        ['a second', '42 s', '10 min', '2.5 h']
    """
    if seconds < 1:
        return "a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers separated by commas, as an option takes them.

    Raises:
        ConfigError: something else.

    Examples:
        >>> whole_numbers("1, 10,100", "--ks")
        (1, 10, 100)
    """
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"{option} {text}: whole numbers separated by commas expected, such as 1,10,100.") from error


def in_digits(number: float) -> str:
    """A number with three digits and no exponent.

    Examples:
        >>> [in_digits(number) for number in (0.125, 2.5, 31.24, 3000)]
        ['0.125', '2.5', '31.2', '3,000']
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def in_decimals(number: float, digits: int, *, plus: bool = False) -> str:
    """A number with a minus sign instead of a hyphen; ``plus``: with a sign if it is positive, too. Zero has no sign.

    Examples:
        >>> in_decimals(-0.014, 2), in_decimals(-0.001, 2), in_decimals(1.26, 1, plus=True), in_decimals(-0.04, 1, plus=True)
        ('−0.01', '0.00', '+1.3', '0.0')
    """
    text = f"{abs(number):.{digits}f}"
    sign = "" if float(text) == 0 else "−" if number < 0 else "+" if plus else ""
    return sign + text


def number_of(count: int, noun: str) -> str:
    """A count with its noun, in the plural where it is one; several words with a slash: one for each number.

    Examples:
        >>> number_of(1, "image"), number_of(1200, "image"), number_of(2, "class"), number_of(1, "class was/classes were")
        ('1 image', '1,200 images', '2 classes', '1 class was')
        >>> number_of(2, "batch"), number_of(2, "epoch")
        ('2 batches', '2 epochs')
    """
    one, slash, several = noun.partition("/")
    if not slash:
        hissing = one.endswith(("s", "x", "ch", "sh")) and not one.endswith("epoch")
        several = f"{one}es" if hissing else f"{one}s"
    return f"{count:,} {one if count == 1 else several}"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A sentence to append to "there is no ….": the choices closest to ``word``, or nothing.

    Examples:
        >>> did_you_mean("bach", ["batch", "loss"])
        ' Did you mean batch?'
        >>> did_you_mean("zzz", ["batch", "loss"])
        ''
    """
    close = difflib.get_close_matches(word, list(choices), n=3, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, choice, word).ratio() for choice in close]
    close = [choice for choice, ratio in zip(close, likeness, strict=True) if ratio >= likeness[0] - 0.03]
    return f" Did you mean {' or '.join(close)}?" if close else ""


def printable(text: str) -> str:
    """``text`` with control characters escaped: a file name may contain sequences that control a terminal.

    Examples:
        >>> printable("a\\x1b[31mb")
        'a\\\\x1b[31mb'
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings with dotted names.

    Examples:
        >>> list(flat({"loss": {"name": "recall_at_k", "options": {"simix": True}}}))
        [('loss.name', 'recall_at_k'), ('loss.options.simix', True)]
    """
    for key, value in values.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]


def some_names(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list, on one line whatever they contain.

    Examples:
        >>> some_names(["cup", "line\\nbreak", "pan", "jar"])
        'cup, line\\\\nbreak, pan, …'
    """
    texts = (printable(name).replace("\n", "\\n").replace("\t", "\\t") for name in names[:most])
    return ", ".join(texts) + (", …" if len(names) > most else "")


def check_number(name: str, value: Any, low: float, high: float) -> float:
    """``value`` as a float if it is a number from ``low`` to ``high``; options come from YAML, so it can be of any type.

    Raises:
        ConfigError: if it is not; the message names the range.
    """
    if not _is_number(value) or not low <= value <= high:
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}, but is {_brief(value)}.")
    return float(value)


def check_whole(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int if it is a whole number from ``low`` to ``high``.

    Raises:
        ConfigError: if it is not; the message names the range.
    """
    if not _is_number(value) or not low <= value <= high or value != int(value):
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, but is {_brief(value)}.")
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """``value`` if it is True or False.

    Raises:
        ConfigError: it is anything else.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, but is {_brief(value)}.")
    return value


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of ``choices``.

    Raises:
        ConfigError: it is another word, or not one; the message lists the choices.
    """
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name} {value!r} is unknown: choose one of {', '.join(choices)}.")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
