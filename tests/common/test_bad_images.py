from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from recollect.common.bad_images import BadImage, BadImages
from recollect.common.errors import ConfigError, ImageError


def test_error_stops_and_says_how_to_go_on() -> None:
    with pytest.raises(ImageError, match=r"a\.jpg: cut short.*--skip-bad") as caught:
        BadImages("error").add(0, ImageError("a.jpg: cut short.", "missing"))
    assert caught.value.kind == "missing"
    for parameter in (
        "skip_bad=True",
        "on_bad_image='skip'",
    ):  # recollect.evaluate_model has one, recollect.embed the other
        assert parameter in str(caught.value)


def test_skip_keeps_a_list_with_reasons() -> None:
    bad = BadImages("skip", ["a", "b", "c"].__getitem__)
    for index, kind in ((2, "HEIC"), (0, "broken"), (2, "HEIC")):
        bad.add(index, ImageError(f"number {index}.", kind))
    assert bad.listed() == [BadImage(0, "a", "number 0.", "broken"), BadImage(2, "c", "number 2.", "HEIC")]
    assert bad.counts() == {"broken": 1, "HEIC": 1}
    assert (0 in bad, 1 in bad, len(bad)) == (True, False, 2)
    assert "2 images could not be read; they are left out:" in bad.sentence("they are left out")


def test_a_function_is_told_of_each_once_from_any_thread() -> None:
    told: list[int] = []
    bad = BadImages(lambda index, error: told.append(index))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: bad.add(index % 5, ImageError("x")), range(40)))
    assert sorted(told) == list(range(5))


def test_a_long_list_is_cut() -> None:
    bad = BadImages("skip")
    for index in range(30):
        bad.add(index, ImageError("x"))
    assert bad.sentence("they are left out").count("\n") == 21


def test_an_unknown_policy() -> None:
    with pytest.raises(ConfigError, match="error, skip"):
        BadImages("ignore")
