"""Times in words."""

from __future__ import annotations

import pytest

from recollect.common.words import in_words, some_names


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "a second"), (0.99, "a second"), (1, "1 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_the_unit_suits_the_time(seconds: float, expected: str) -> None:
    assert in_words(seconds) == expected


def test_names_stay_on_one_line() -> None:
    assert some_names(["cup", "line\nbreak\t\x1b[31m", "pan", "jar"]) == "cup, line\\nbreak\\t\\x1b[31m, pan, …"
    assert some_names(["cup", "pan"]) == "cup, pan"
    assert some_names(["cup", "pan"], most=1) == "cup, …"
