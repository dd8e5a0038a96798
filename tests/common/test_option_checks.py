"""Options of any type: taken within their range, refused with it otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from recollect.common.errors import ConfigError
from recollect.common.option_checks import check_flag, check_number, check_whole


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
