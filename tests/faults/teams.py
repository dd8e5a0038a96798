"""Several processes that run one command together, as torchrun starts them, but without its agent.

The agent would kill the others on its own when one of them dies, and it and every process would first import torch: these
are forks of the test's process, which has imported everything.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import yaml
from small_runs import make_images, small_config

from faults.trials import Running
from recollect.config.overrides import as_mapping


def start_team(arguments: Sequence[str], folder: Path, size: int) -> list[Running]:
    """One process for each rank, in order.

    Args:
        arguments: of ``recollect``, the same for all.
        folder: the working folder.
        size: the number of processes. They wait half a minute for one that does not answer.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [Running(arguments, folder, partial(_join, rank, size, port)) for rank in range(size)]


def _join(rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)  # threads of the test's process do not survive the fork
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RECOLLECT_TEAM_MINUTES": "0.5",
    }


def team_config(tmp_path: Path, epochs: int) -> Path:
    """The configuration of a small training with a checkpoint after every step."""
    root = make_images(tmp_path / "images")
    settings = {"run.epochs": epochs, "run.evaluate_every": 100, "run.checkpoint_minutes": 0}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(as_mapping(small_config(root, **settings))))
    return path
