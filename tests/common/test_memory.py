"""How much memory a process is told to have, from made-up files of the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from recollect.common import memory
from recollect.common.memory import UNKNOWN, available_bytes, total_memory

MB = 2**20


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    answers = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000 * MB // 4096}
    monkeypatch.setattr(memory.os, "sysconf", answers.__getitem__)


def system(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


MACHINE = {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable:    {800 * 1024} kB\nSwapFree: 5 kB\n"}


def version_2(path: str, limit: str, used: int, cached: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup{path}"
    return {
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": str(used),
        f"{folder}/memory.stat": f"anon 1\ninactive_file {cached}\nactive_file 7\n",
    }


def test_without_groups_what_the_machine_has(tmp_path: Path) -> None:
    system(tmp_path, MACHINE)
    assert available_bytes(tmp_path) == 800 * MB
    assert total_memory(tmp_path) == 1000 * MB


def test_a_system_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(memory.os, "sysconf")
    assert available_bytes(tmp_path) == UNKNOWN
    assert total_memory(tmp_path) is None
    system(tmp_path, {"proc/meminfo": "MemAvailable: many\n\nMemAvailable:\n", "proc/self/cgroup": "nonsense\n"})
    assert available_bytes(tmp_path) == UNKNOWN


@pytest.mark.parametrize("path", ["/", "/jobs/ours"])
def test_the_limit_of_a_container_holds(tmp_path: Path, path: str) -> None:
    group = version_2(path.rstrip("/"), f"{300 * MB}\n", 100 * MB, cached=40 * MB)
    system(tmp_path, {**MACHINE, "proc/self/cgroup": f"0::{path}\n", **group})
    assert available_bytes(tmp_path) == 240 * MB, "cached pages of files can be had back"
    assert total_memory(tmp_path) == 300 * MB


def test_the_tightest_group_around_counts(tmp_path: Path) -> None:
    groups = {**version_2("/jobs", str(500 * MB), 450 * MB), **version_2("/jobs/ours", "max\n", 10 * MB)}
    system(tmp_path, {**MACHINE, "proc/self/cgroup": "0::/jobs/ours\n", **groups})
    assert available_bytes(tmp_path) == 50 * MB
    assert total_memory(tmp_path) == 500 * MB


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    group = version_2("/ours", str(100 * MB), 120 * MB)
    system(tmp_path, {**MACHINE, "proc/self/cgroup": "0::/ours\n", **group})
    assert available_bytes(tmp_path) == 0


@pytest.mark.parametrize("folder", ["memory/docker/abc", "memory"])
def test_groups_of_the_first_version(tmp_path: Path, folder: str) -> None:
    """With the path as the machine sees it, or as the container does, whose group is the root."""
    files = {
        "proc/self/cgroup": "5:devices:/docker/abc\n4:cpu,memory:/docker/abc\n0::/\n",
        f"sys/fs/cgroup/{folder}/memory.limit_in_bytes": f"{200 * MB}\n",
        f"sys/fs/cgroup/{folder}/memory.usage_in_bytes": f"{90 * MB}\n",
        f"sys/fs/cgroup/{folder}/memory.stat": f"inactive_file 3\ntotal_inactive_file {20 * MB}\n",
    }
    system(tmp_path, {**MACHINE, **files})
    assert available_bytes(tmp_path) == 130 * MB
    assert total_memory(tmp_path) == 200 * MB


def test_no_limit_in_the_first_version_is_a_huge_number(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{90 * MB}\n",
    }
    system(tmp_path, {**MACHINE, **files})
    assert (available_bytes(tmp_path), total_memory(tmp_path)) == (800 * MB, 1000 * MB)


@pytest.mark.parametrize(("processes", "share"), [("4", 200), ("1", 800), ("0", 800), ("many", 800)])
def test_processes_of_a_run_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str, share: int) -> None:
    system(tmp_path, MACHINE)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert available_bytes(tmp_path) == share * MB
    assert total_memory(tmp_path) == 1000 * MB, "a batch is split between them"


def test_this_machine() -> None:
    assert available_bytes() > 0


PAGES_OF_THE_SECOND_ARRAY = """
import resource, sys
import recollect.cli
try:
    sys.argv = ["recollect", "--version"]
    recollect.cli.main()
except SystemExit:
    import numpy as np
    np.empty(2**26, np.uint8).fill(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(2**26, np.uint8).fill(1)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="nothing is changed elsewhere")
@pytest.mark.parametrize(
    ("variable", "kept"),
    [
        ({}, True),
        ({"RECOLLECT_MALLOC": "default"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ({"LD_PRELOAD": "/nowhere/libjemalloc.so.2"}, False),
    ],
    ids=str,
)
def test_a_command_uses_freed_memory_again_unless_the_user_decided_otherwise(
    variable: dict[str, str], kept: bool
) -> None:
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variable}
    command = [sys.executable, "-c", PAGES_OF_THE_SECOND_ARRAY]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (int(said.stdout.split()[-1]) < 10) == kept  # of 16,384, or of 32 large ones
