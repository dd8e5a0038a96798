"""Words for people: durations, and a suggestion for a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def in_words(seconds: float) -> str:
    """A duration with about two digits, in the unit that suits it.

    Example:
        >>> [in_words(seconds) for seconds in (0.2, 42, 600, 9000)]
        ['a second', '42 s', '10 min', '2.5 h']
    """
    if seconds < 1:
        return "a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def in_digits(number: float) -> str:
    """A number with three digits and no exponent.

    Example:
        >>> [in_digits(number) for number in (0.125, 2.5, 31.24, 3000)]
        ['0.125', '2.5', '31.2', '3,000']
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A sentence to append to "there is no ….": the choices closest to ``word``, or nothing.

    Example:
        >>> did_you_mean("bach", ["batch", "loss"])
        ' Did you mean batch?'
        >>> did_you_mean("zzz", ["batch", "loss"])
        ''
    """
    close = difflib.get_close_matches(word, list(choices), n=3, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, choice, word).ratio() for choice in close]
    close = [choice for choice, ratio in zip(close, likeness, strict=True) if ratio >= likeness[0] - 0.1]
    return f" Did you mean {' or '.join(close)}?" if close else ""
