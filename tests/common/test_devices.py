"""Devices that are there, and a sentence for those that are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recollect.common.devices import usable_device
from recollect.common.errors import ConfigError


def test_what_is_here() -> None:
    assert usable_device("cpu", training=True).type == "cpu"
    assert usable_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize("wanted", ["gpu", "cuda:99", "meta", ""])
def test_what_is_not_is_a_sentence(wanted: str) -> None:
    with pytest.raises(ConfigError, match="--device"):
        usable_device(wanted, "--device")


def test_a_device_without_float64_embeds_and_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apple's: tensors of float32 only."""
    ones = torch.ones

    def without_float64(*size: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        if dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return ones(*size, dtype=dtype)

    monkeypatch.setattr(torch, "ones", without_float64)
    assert usable_device("mps").type == "mps"
    with pytest.raises(ConfigError, match=r"run\.device is mps, which has no float64"):
        usable_device("mps", "run.device", training=True)
