"""Times in words."""

from __future__ import annotations

import pytest

from recollect.common.words import in_decimals, in_words, number_of, some_names


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "a second"), (0.99, "a second"), (1, "1 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_the_unit_suits_the_time(seconds: float, expected: str) -> None:
    assert in_words(seconds) == expected


def test_plurals() -> None:
    assert [number_of(11, noun) for noun in ("epoch", "batch", "match", "class", "box", "step")] == [
        *("11 epochs", "11 batches", "11 matches"),
        *("11 classes", "11 boxes", "11 steps"),
    ]
    assert number_of(1, "epoch") == "1 epoch"


def test_a_minus_sign_is_no_hyphen_and_zero_has_none() -> None:
    assert [in_decimals(value, 2) for value in (-0.014, -0.004, 0.0, 1.5)] == ["−0.01", "0.00", "0.00", "1.50"]
    assert [in_decimals(value, 1, plus=True) for value in (-0.4, -0.04, 0.04, 1.1)] == ["−0.4", "0.0", "0.0", "+1.1"]


def test_names_stay_on_one_line() -> None:
    assert some_names(["cup", "line\nbreak\t\x1b[31m", "pan", "jar"]) == "cup, line\\nbreak\\t\\x1b[31m, pan, …"
    assert some_names(["cup", "pan"]) == "cup, pan"
    assert some_names(["cup", "pan"], most=1) == "cup, …"
