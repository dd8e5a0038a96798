"""Queries shared out over processes, results gathered: the same numbers as from one process, in the same order.

Each process ranks every W-th query against the whole gallery; only per-query values travel. Works with any
``torch.distributed`` backend, since what is gathered is small and goes as objects.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.distributed as dist

from recollect.common.errors import ConfigError
from recollect.evaluation.relevance import Ints


def shard(queries: int, distributed: bool) -> Ints | None:
    """The numbers of the queries this process does; None for all."""
    if not distributed:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "distributed=True, but this program runs as a single process: start it with torchrun and call "
            "torch.distributed.init_process_group first, or leave distributed off."
        )
    return np.arange(dist.get_rank(), queries, dist.get_world_size())


def gather(mine: Any, distributed: bool) -> list[Any]:
    """Every process's ``mine``, in the order of ranks, on every process."""
    if not distributed:
        return [mine]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone
