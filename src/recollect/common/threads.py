"""How many of torch's threads to use for a piece of work, and how they wait for each other.

torch splits every operation above a certain size over all threads and waits for the slowest. Threads wait by spinning,
for milliseconds. Next to other busy processes one of them is often not running; the others then waste their share of the
processor by spinning, at every operation, and small operations take twenty times as long (``benchmarks/threads.py``). Two
remedies: small work runs on fewer threads (``threads_for``, ``limited_threads``), and in recollect's own programs threads
soon stop spinning and sleep (``spin_briefly``). The number of threads depends on the work and never on the load, so
results are bit-identical however busy the machine is. Importing this module does not import torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

WORTH_A_THREAD = 2e7
"""Multiply-adds per operation that justify a thread: about a millisecond, a hundred times the cost of splitting."""

_SPINS = 2000
# Turns of a waiting loop, some 50 µs. Measured on two cores, against 300,000 turns (the default) and none: training steps
# and evaluations of 50–150 ms take 4–9 % longer when idle (none: 10–20 %), and 1.3–2.2 times as long beside two busy
# processes instead of 4–20 times.


class Work(NamedTuple):
    """The amount of computation of a network."""

    multiply_adds: float
    operations: int


def threads_for(multiply_adds: float, operations: float = 1) -> int:
    """Threads for work of this size: at least 1, at most as many as torch uses now.

    Args:
        multiply_adds: number of multiply-adds of the whole work.
        operations: number of consecutive operations it consists of.

    Examples:
        >>> threads_for(1e6)
        1
        >>> import torch
        >>> threads_for(1e15) == torch.get_num_threads()
        True
    """
    import torch

    return max(1, min(torch.get_num_threads(), int(multiply_adds / operations / WORTH_A_THREAD)))


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Use at most ``count`` threads for torch's operations inside the block.

    The number belongs to the Python thread that sets it; a thread that first uses torch meanwhile starts with it and
    keeps it. So this is for programs with a single computing thread, not for servers.
    """
    import torch

    before = torch.get_num_threads()
    if count >= before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spin_briefly() -> None:
    """Let threads that wait for each other sleep after a short time. Call it at the beginning of a program.

    OpenMP reads these variables when torch is imported; afterwards, or if the user has set one of them, nothing is
    changed. Child processes inherit them.
    """
    decided = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    if "torch" not in sys.modules and not any(name in os.environ for name in decided):
        # The first is for OpenMP libraries other than GNU's, which uses the second.
        os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(_SPINS)}


def forward_work(network: nn.Module, inputs: Tensor) -> Work:
    """The work of convolutions and linear layers in one forward pass; other operations are not counted.

    The pass is done in evaluation mode and without a graph, so that no random number is drawn.

    Examples:
        >>> import torch
        >>> forward_work(torch.nn.Linear(8, 4), torch.zeros(2, 8))
        Work(multiply_adds=64.0, operations=1)
    """
    import torch
    from torch import nn

    total, count = 0.0, 0

    def add(layer: nn.Module, _: Any, output: Tensor) -> None:
        nonlocal total, count
        weight: Tensor = layer.weight  # type: ignore[assignment]
        total += output.numel() * weight[0].numel()  # every output is a sum of this many products
        count += 1

    layers = [module for module in network.modules() if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)]
    hooks = [layer.register_forward_hook(add) for layer in layers]
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            network(inputs)
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return Work(total, count)
