"""Times for people: one way to say about how long something takes or took."""

from __future__ import annotations


def in_words(seconds: float) -> str:
    """A time with about two digits, in the unit that suits it.

    Example:
        >>> [in_words(seconds) for seconds in (0.2, 42, 600, 9000)]
        ['a second', '42 s', '10 min', '2.5 h']
    """
    if seconds < 1:
        return "a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
