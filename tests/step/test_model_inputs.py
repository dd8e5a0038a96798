"""Inputs of every shape are counted, sliced and handed over alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from recollect.common.errors import InputError
from recollect.step.large_batch import call_model, count_rows, first_tensor, take_rows, tensors_of

ROWS = torch.arange(12.0).reshape(4, 3)
KINDS: dict[str, Any] = {
    "tensor": ROWS,
    "tuple": (ROWS, ROWS + 1),
    "dict": {"x": ROWS, "y": ROWS + 1},
    "list": [ROWS[:, : n + 1] for n in range(4)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_counted_and_taken(kind: str) -> None:
    images = KINDS[kind]
    assert count_rows(images, torch.arange(4)) == 4
    assert torch.equal(first_tensor(images), tensors_of(images)[0])
    for rows in (slice(1, 3), torch.tensor([1, 2])):
        taken = take_rows(images, rows, torch.device("cpu"))
        assert type(taken) is type(images)
        expected = images[1:3] if kind == "list" else [tensor[1:3] for tensor in tensors_of(images)]
        assert all(torch.equal(a, b) for a, b in zip(tensors_of(taken), expected, strict=True))


@pytest.mark.parametrize("wrong", ["text", (), [1, 2], {"x": None}])
def test_other_things_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="tuple, dict or list"):
        first_tensor(wrong)


@pytest.mark.parametrize("labels", [3, 5, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_as_many_images_as_labels(kind: str, labels: int) -> None:
    with pytest.raises(InputError, match=f"{labels} labels"):
        count_rows(KINDS[kind], torch.arange(labels))


def test_tuples_and_dicts_are_arguments() -> None:
    class Difference(nn.Module):
        def forward(self, x: Any, y: Any = 0) -> Any:
            return y - x

    assert torch.equal(call_model(Difference(), KINDS["tuple"]), torch.ones(4, 3))
    assert torch.equal(call_model(Difference(), KINDS["dict"]), torch.ones(4, 3))
    assert torch.equal(call_model(Difference(), ROWS), -ROWS)
    assert call_model(nn.Identity(), KINDS["list"]) is KINDS["list"]
