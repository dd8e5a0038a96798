"""Several processes that train together, one of which is killed or stopped."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from faults.teams import start_team, team_config
from recollect.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix"),
    pytest.mark.usefixtures("prepared"),
]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_with_a_sentence(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    processes = start_team(["train", str(team_config(tmp_path, 2000)), "--out", str(out)], tmp_path, 4)
    others = [processes[rank] for rank in (0, 1, 3)]
    try:
        while len(RunFolder(out).read_metrics()) < 6:
            assert not any(process.over() for process in processes), processes[0].wait()
            time.sleep(0.1)
        processes[2].send(number)
        for ended in [process.wait() for process in others]:  # half a minute of patience, on a busy machine
            assert ended.code == 1, ended
            assert "Traceback" not in ended.err
            assert "another of the 4 processes" in ended.err
            assert f"--resume {out}" in ended.err
    finally:
        for process in processes:
            process.end()


def test_one_process_prints_the_result(tmp_path: Path) -> None:
    command = ["train", str(team_config(tmp_path, 1)), "--out", str(tmp_path / "run"), "--json"]
    processes = start_team(command, tmp_path, 2)
    first, second = [process.wait() for process in processes]
    assert (first.code, second.code) == (0, 0), (first, second)
    assert json.loads(first.out)["steps"] == 3
    assert second.out == ""
