"""How many threads a step of a training is worth (``common/threads.py`` says why)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recollect.common.threads import forward_work, threads_for

_OPERATIONS_BESIDE = 50  # of a rank loss on one tile and of an optimizer, roughly


def step_threads(network: nn.Module, inputs: Tensor, batch: int, chunk: int) -> int:
    """Threads for a step on ``batch`` images; follows from the configuration and the number of threads torch has.

    A last layer on features of 1,280 dimensions gets a second thread from about 1,100 vectors a step on; a network on
    images nearly always gets all.

    Args:
        network: the part that is trained; on another device than the CPU these threads do not matter.
        inputs: one input of it or more, as large as any.
        batch: images of this process.
        chunk: images in the network at once.
    """
    if any(parameter.device.type != "cpu" for parameter in network.parameters()):
        return torch.get_num_threads()
    work = forward_work(network, inputs[:1])
    # A backward pass costs two forwards.
    multiply_adds = 3 * batch * work.multiply_adds
    operations = 3 * work.operations * -(-batch // chunk) + _OPERATIONS_BESIDE
    return threads_for(multiply_adds, operations)
