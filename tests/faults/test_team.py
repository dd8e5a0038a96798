"""Several processes that train together, one of which is killed, stopped or cut off."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from small_runs import make_images, small_config

from recollect.config.overrides import as_mapping
from recollect.training.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")]


def _start(config: Path, out: Path, size: int, *more: str) -> list[subprocess.Popen[str]]:
    """As torchrun does, but without its agent, which would kill the others on its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(size):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RECOLLECT_TEAM_MINUTES": "0.5",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "recollect", "train", str(config), "--out", str(out), *more]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return processes


def _config(tmp_path: Path, epochs: int) -> Path:
    root = make_images(tmp_path / "images")
    settings = {"run.epochs": epochs, "run.evaluate_every": 100, "run.checkpoint_minutes": 0}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(as_mapping(small_config(root, **settings))))
    return path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_with_a_sentence(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    processes = _start(_config(tmp_path, 2000), out, 4)
    try:
        while len(RunFolder(out).read_metrics()) < 6:
            assert all(process.poll() is None for process in processes), processes[0].communicate()
            time.sleep(0.1)
        processes[2].send_signal(number)
        for rank in (0, 1, 3):
            _, said = processes[rank].communicate(timeout=200)  # half a minute of patience, on a busy machine
            assert processes[rank].returncode == 1, said
            assert "Traceback" not in said
            assert "another of the 4 processes" in said
            assert f"--resume {out}" in said
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_one_process_prints_the_result(tmp_path: Path) -> None:
    processes = _start(_config(tmp_path, 1), tmp_path / "run", 2, "--json")
    printed = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert json.loads(printed[0][0])["steps"] == 3
    assert printed[1][0] == ""
