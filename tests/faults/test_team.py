"""Processes that train together, on one machine or two, one of which is killed, stopped, slow or cut off."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from killed import signal_at
from small_runs import make_images, small_config

from faults.trials import Arm, Ended, start_team
from recollect.config.resolve import as_mapping

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix"),
    pytest.mark.usefixtures("prepared"),
]

MINUTES = 0.06
"""How long processes wait for one another: longer than forks on a busy machine take to start."""


def _config(tmp_path: Path, epochs: int = 4, **settings: object) -> Path:
    """A small training with a checkpoint after every step."""
    root = make_images(tmp_path / "images", classes=40, each=4)
    settings = {"run.epochs": epochs, "run.evaluate_every": 100, "run.checkpoint_minutes": 0, **settings}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(as_mapping(small_config(root, **settings))))
    return path


def _ends_with_a_sentence(ended: Ended, size: int, out: Path) -> None:
    assert ended.code == 1, ended
    assert "Traceback" not in ended.err
    assert f"another of the {size} processes ended or did not respond for 0.06 minutes" in ended.err
    assert str(out) in ended.err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_with_a_sentence(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    command = ["train", str(_config(tmp_path)), "--out", str(out)]
    processes = start_team(command, tmp_path, 3, MINUTES, {2: signal_at("step", 6, number)})
    try:
        for process in processes[:2]:
            ended = process.wait()
            _ends_with_a_sentence(ended, 3, out)
            assert f"--resume {out}" in ended.err
    finally:
        for process in processes:
            process.end()


@pytest.mark.release
def test_the_others_wait_for_long_work_of_the_first_but_it_must_respond(tmp_path: Path) -> None:
    """The first computes the whitening alone, longer than the others wait for one that does not respond."""

    def first(work: Callable[[], None]) -> Arm:
        def arm() -> None:
            from recollect.inference import whitening

            features = whitening.head_inputs

            def after_work(*arguments: object, **options: object) -> object:
                work()
                return features(*arguments, **options)  # type: ignore[arg-type]

            whitening.head_inputs = after_work  # type: ignore[assignment]

        return arm

    config = _config(tmp_path, 1, **{"model.whitening": 160})
    command = ["train", str(config), "--out", str(tmp_path / "slow")]
    team = start_team(command, tmp_path, 2, MINUTES, {0: first(lambda: time.sleep(80 * MINUTES))})
    ends = [process.wait() for process in team]
    assert [ended.code for ended in ends] == [0, 0], ends
    command[-1] = str(tmp_path / "stopped")
    arm = first(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    stopped, second = start_team(command, tmp_path, 2, MINUTES, {0: arm})
    try:
        _ends_with_a_sentence(second.wait(), 2, tmp_path / "stopped")
        assert not stopped.over()
    finally:
        stopped.end()


def test_one_process_prints_the_result(tmp_path: Path) -> None:
    command = ["train", str(_config(tmp_path, 1)), "--out", str(tmp_path / "run"), "--json"]
    first, second = [process.wait() for process in start_team(command, tmp_path, 2)]
    assert (first.code, second.code) == (0, 0), (first, second)
    assert json.loads(first.out)["steps"] == 3
    assert second.out == ""
