"""Fake CUDA tensors on a machine without a GPU: shapes and devices are checked, nothing is computed.

``with fake_cuda():`` lets forward code run on ``torch.empty(…, device="cuda")``. An operation that mixes a CPU tensor with a
CUDA one raises, as it would on a real GPU. Indexing is spelled out as plain operators, because Python's own indexing asks
for a CUDA runtime before the fake mode is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode


class _PlainIndexing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and args[0].is_cuda:
            return _get(*args)
        if func is torch.Tensor.__setitem__ and args[0].is_cuda:
            place, value = _get(*args[:2]), args[2]
            write = torch.ops.aten.copy_ if isinstance(value, torch.Tensor) else torch.ops.aten.fill_
            return write(place, value)
        return func(*args, **(kwargs or {}))


def _get(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    dim = 0
    for item in index if isinstance(index, tuple) else (index,):
        if item is None:
            tensor = torch.ops.aten.unsqueeze(tensor, dim)
        elif isinstance(item, slice):
            tensor = torch.ops.aten.slice(tensor, dim, item.start, item.stop, item.step or 1)
        elif isinstance(item, int):
            tensor, dim = torch.ops.aten.select(tensor, dim, item), dim - 1
        else:
            tensor = torch.ops.aten.index_select(tensor, dim, item)
        dim += 1
    return tensor


@contextmanager
def fake_cuda() -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), _PlainIndexing():
        yield
