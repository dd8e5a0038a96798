"""A second device that computes, on a machine with a CPU only: ``torch.device("second")``, by torch's public extension points.

Its tensors hold tensors of the CPU but are of another device type for torch: an operation that mixes devices raises, the
device has a generator of its own, and the autograd engine and ``.to`` treat it as any accelerator. ``DEVICE.waits`` counts
what would make the host of a GPU wait for it. Not simulated: what torch does for CUDA only, and speed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
WAITING = {aten._local_scalar_dense, aten.nonzero, aten._unique2, aten.unique_consecutive, aten.bincount, aten.equal}
"""Operations whose result, or its size, is a number for the host."""
INDEXING = {aten.index, aten.index_put, aten.index_put_}


class Device:
    """What torch asks of the module of a device; and counts."""

    def __init__(self) -> None:
        self.generator, self.operations, self.waits = torch.Generator().manual_seed(1), 0, Counter[str]()
        self.is_available = self.is_initialized = lambda: True
        self._is_in_bad_fork, self.current_device, self.device_count = (lambda: False), (lambda: 0), (lambda: 1)
        self.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]

    def reset(self) -> None:
        self.operations, self.waits = 0, Counter()

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self.generator.set_state(state)


class SecondTensor(torch.Tensor):
    """A tensor of the second device."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> SecondTensor:
        outer = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device="second:0"
        )
        outer.inner = inner
        return outer

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, op.overloadpacket
        copies = name in (aten._to_copy, aten.copy_)
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and type(tensor) is not cls and tensor.ndim and not copies:
                raise RuntimeError(
                    f"{op} mixes the second device with a tensor of shape {tuple(tensor.shape)} on the CPU"
                )
        DEVICE.operations += 1
        to_host = "device" in kwargs and torch.device(kwargs["device"]).type == "cpu"
        to_host |= name is aten.copy_ and type(args[0]) is not cls
        from_host = name is aten.copy_ and type(args[1]) is not cls and (*args[2:], *kwargs.values()) != (True,)
        masked = name in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
        if name in WAITING or masked or to_host or from_host:
            DEVICE.waits[str(name)] += 1
        inner = tree_map(lambda value: value.inner if type(value) is cls else value, (args, kwargs))
        if "device" in kwargs:
            inner[1]["device"] = torch.device("cpu")
        result = _drawn(op, *inner) if torch.Tag.nondeterministic_seeded in op.tags else op(*inner[0], **inner[1])
        if to_host:
            return result
        outer = tree_map(lambda value: cls(value) if type(value) is torch.Tensor else value, result)
        return return_and_correct_aliasing(op, args, kwargs, outer)


def _drawn(op: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation that draws from the device's own generator."""
    host = torch.get_rng_state()
    torch.set_rng_state(DEVICE.generator.get_state())
    try:
        return op(*args, **kwargs)
    finally:
        DEVICE.generator.set_state(torch.get_rng_state())
        torch.set_rng_state(host)


def _empty(size: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
    return SecondTensor(torch.empty(size, dtype=dtype or torch.get_default_dtype()))


def _arange(*bounds: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
    return SecondTensor(torch.arange(*bounds, dtype=dtype))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
    return SecondTensor(torch.empty_strided(size, stride, dtype=dtype or torch.get_default_dtype()))


def _copy_from(source: torch.Tensor, target: SecondTensor, waits: bool = False) -> torch.Tensor:
    """What ``torch.tensor(…, device=…)`` does."""
    DEVICE.waits["torch.tensor"] += 1
    target.inner.copy_(source)
    return target


DEVICE = Device()
backend_registration._setup_privateuseone_for_python_backend("second", DEVICE)
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "PrivateUse1")
_library.impl("empty_strided", _empty_strided, "PrivateUse1")
for name in ("arange", "arange.start", "arange.start_step"):  # by default they resize a tensor, which this one cannot
    _library.impl(name, _arange, "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
