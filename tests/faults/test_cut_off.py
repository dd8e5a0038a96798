"""Processes that train together, on one machine or two, one of which stops responding for reasons that no signal tells."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.teams import start_team, team_config
from faults.wholeness import weights
from recollect.training.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix"),
    pytest.mark.usefixtures("prepared"),
]

TRAIN = ("-m", "recollect", "train")
ALONE = """
import os, signal, time
from recollect.step import team
found = team.start()
found.barrier()
os.environ["RECOLLECT_TEAM_MINUTES"] = "0.3"  # from now on: on a busy machine one process may start long after the other
found.first_alone(lambda: time.sleep(27))  # longer than the patience
print("done", flush=True)
with team.losing_no_process(found, lambda: ""):
    found.first_alone(lambda: os.kill(os.getpid(), signal.SIGSTOP))
"""


@dataclass(frozen=True)
class _Places:
    """Where the processes run: what comes before the command of each, and how they find one another."""

    address: str = "127.0.0.1"
    before: Callable[[int], Sequence[str]] = lambda rank: ()
    interface: str = "lo"


def _start(
    arguments: Sequence[str], size: int, minutes: float, places: _Places | None = None
) -> list[subprocess.Popen[str]]:
    """As torchrun does, but without its agent, which would kill the others on its own."""
    places = places or _Places()
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
            "MASTER_ADDR": places.address,
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": places.interface,
            "RECOLLECT_TEAM_MINUTES": str(minutes),
            "OMP_NUM_THREADS": "1",
        }
        command = [*places.before(rank), sys.executable, *arguments]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return processes


def test_work_of_the_first_may_take_long_but_it_must_respond() -> None:
    first, second = processes = _start(["-c", ALONE], 2, 10)
    try:
        out, said = second.communicate(timeout=600)
        assert out == "done\n", said
        assert "LostProcessError: another of the 2 processes ended or did not respond for 0.3 minutes" in said
        assert first.poll() is None
    finally:
        _end(processes)


def _take_steps(processes: list[subprocess.Popen[str]], out: Path) -> None:
    while len(RunFolder(out).read_metrics()) < 6:
        assert all(process.poll() is None for process in processes), processes[0].communicate()
        time.sleep(0.1)


def _ends_with_a_sentence(process: subprocess.Popen[str], out: Path) -> None:
    _, said = process.communicate(timeout=300)  # a minute of patience, on a busy machine
    assert process.returncode == 1, said
    assert "Traceback" not in said
    assert "another of the 4 processes" in said
    assert f"--resume {out}" in said


def _end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def cable() -> Iterator[tuple[_Places, Callable[[], None]]]:
    """Two machines on a switch, as network namespaces; process 2 is on the second one. The function pulls its cable."""
    if shutil.which("ip") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("needs ip (iproute2) and the right to make network namespaces")
    one, two, switch = names = [f"recollect-{os.getpid()}-{name}" for name in ("one", "two", "switch")]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("-n", switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", switch, "link", "set", "bridge", "up")
            for number, name in enumerate((one, two), 1):
                ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "net", "netns", name)
                ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
                ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "net")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "net", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made: {error.stderr.strip()}")
        places = _Places("10.77.0.1", lambda rank: ("ip", "netns", "exec", two if rank == 2 else one), "net")
        # The far end of the cable, so that a machine keeps its own address, and nobody is told that it is gone.
        yield places, lambda: ip("-n", switch, "link", "set", "port2", "down")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def test_a_process_that_is_cut_off(tmp_path: Path, cable: tuple[_Places, Callable[[], None]]) -> None:
    """Those on both sides of the cut end; resumed, they train the same network as without it."""
    places, pull = cable
    config, out, undisturbed = team_config(tmp_path, 12), tmp_path / "run", tmp_path / "undisturbed"
    processes = _start([*TRAIN, str(config), "--out", str(out)], 4, 1, places)
    try:
        _take_steps(processes, out)
        for process in processes:  # otherwise a fast machine might finish first
            process.send_signal(signal.SIGSTOP)
        pull()
        for process in processes:
            process.send_signal(signal.SIGCONT)
        for process in processes:
            _ends_with_a_sentence(process, out)
    finally:
        _end(processes)
    for arguments in (["--resume", str(out)], [str(config), "--out", str(undisturbed)]):
        ended = [process.wait() for process in start_team(["train", *arguments], tmp_path, 4)]
        assert [each.code for each in ended] == [0] * 4, ended
    assert weights(out / "model") == weights(undisturbed / "model")
