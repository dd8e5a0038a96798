"""Times in words."""

from __future__ import annotations

import pytest

from recollect.common.words import in_words


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "a second"), (0.99, "a second"), (1, "1 s"), (89.4, "89 s"), (90, "2 min"), (5399, "90 min"), (5400, "1.5 h")],
)
def test_the_unit_suits_the_time(seconds: float, expected: str) -> None:
    assert in_words(seconds) == expected
