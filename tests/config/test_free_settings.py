"""Settings that a run or a study may change, and differences in words."""

from __future__ import annotations

import pytest

from recollect.common.errors import ConfigError
from recollect.config.free_settings import WITH_WEIGHTS, differences, free_settings_of, with_free_settings
from recollect.config.overrides import known_keys, resolve


def test_only_free_settings_can_be_changed() -> None:
    config = resolve("folder", {"data.root": "photos"})
    changed = with_free_settings(config, ["data.on_bad_image=skip", "data.max_pixels=9"], "it stays")
    assert (changed.data.on_bad_image, changed.data.max_pixels) == ("skip", 9)
    with pytest.raises(ConfigError, match=r"it stays: remove optimizer\.lr\. .*data\.on_bad_image \(--skip-bad\)"):
        with_free_settings(config, {"data.workers": 1, "optimizer.lr": 0.1}, "it stays")


def test_the_free_settings_of_a_configuration_exist() -> None:
    found = free_settings_of(resolve("folder", ["data.max_pixels=9"]))
    assert found.keys() == WITH_WEIGHTS.keys()
    assert found["data.max_pixels"] == 9
    assert found.keys() <= set(known_keys())


def test_differences_are_words_and_leave_free_settings_out() -> None:
    nested = {"settings": {"data": {"on_bad_image": "error", "root": "a"}, "optimizer": {"lr": 0.1}}, "steps": None}
    flat = {"settings": {"data.max_pixels": 3, "loss.options": {"k": 1}}, "images": {"train": "0f", "val": "1a"}}
    assert differences(nested, {**nested, "settings": {"data": {"on_bad_image": "skip"}}, "steps": 3}) == [
        "optimizer.lr is 0.1 there and not set here",
        "steps is not set there and 3 here",
    ]
    assert differences(flat, {"settings": {}, "images": {"train": "2", "val": "3"}}) == [
        "loss.options.k is 1 there and not set here",
        "the training images are others",
    ]
