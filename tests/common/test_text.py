"""Text for users, and options of any type: taken within their range, refused with it otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.common.errors import ConfigError
from recollect.common.text import check_flag, check_number, check_whole, in_decimals, in_words, some_names


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "a second"), (0.99, "a second"), (1, "1 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_the_unit_suits_the_time(seconds: float, expected: str) -> None:
    assert in_words(seconds) == expected


def test_a_minus_sign_is_no_hyphen_and_zero_has_none() -> None:
    assert [in_decimals(value, 2) for value in (-0.014, -0.004, 0.0, 1.5)] == ["−0.01", "0.00", "0.00", "1.50"]
    assert [in_decimals(value, 1, plus=True) for value in (-0.4, -0.04, 0.04, 1.1)] == ["−0.4", "0.0", "0.0", "+1.1"]


def test_names_stay_on_one_line() -> None:
    assert some_names(["cup", "line\nbreak\t\x1b[31m", "pan", "jar"]) == "cup, line\\nbreak\\t\\x1b[31m, pan, …"
    assert some_names(["cup", "pan"]) == "cup, pan"
    assert some_names(["cup", "pan"], most=1) == "cup, …"


def test_values_within_their_range() -> None:
    assert (check_number("tau", 1, 0, 2), check_whole("k", 3.0, 1, 9), check_flag("simix", True)) == (1.0, 3, True)


@pytest.mark.parametrize("value", [None, "1", True, float("nan"), float("inf"), [1], -1, 3])
def test_other_values_are_refused_with_the_range(value: Any) -> None:
    for check in (check_number, check_whole):
        with pytest.raises(ConfigError, match="from 0 to 2"):
            check("tau", value, 0, 2)


def test_a_fraction_and_a_number_as_a_switch() -> None:
    with pytest.raises(ConfigError, match="whole"):
        check_whole("k", 1.5, 0, 2)
    with pytest.raises(ConfigError, match="True or False"):
        check_flag("simix", 1)
