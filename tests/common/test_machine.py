"""This machine: memory from made-up files of the system, threads, devices, and the repair of torchvision."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import recollect
from recollect.common import machine
from recollect.common.errors import ConfigError
from recollect.common.machine import available_bytes, total_memory, usable_device

MB = 2**20


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    answers = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000 * MB // 4096}
    monkeypatch.setattr(machine.os, "sysconf", answers.__getitem__)


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


def version_1(folder: str) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/{folder}/memory.limit_in_bytes": f"{200 * MB}\n",
        f"sys/fs/cgroup/{folder}/memory.usage_in_bytes": f"{90 * MB}\n",
        f"sys/fs/cgroup/{folder}/memory.stat": f"inactive_file 3\ntotal_inactive_file {20 * MB}\n",
    }


OURS, DOCKER = "0::/jobs/ours\n", "5:devices:/docker/abc\n4:cpu,memory:/docker/abc\n0::/\n"
NESTED = {**version_2("/jobs", str(500 * MB), 450 * MB), **version_2("/jobs/ours", "max\n", 10 * MB)}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("groups", "files", "available", "total"),
    [
        ("", {}, 800, 1000),
        ("0::/\n", version_2("", f"{300 * MB}\n", 100 * MB, cached=40 * MB), 240, 300),  # cached pages can be had back
        (OURS, version_2("/jobs/ours", f"{300 * MB}\n", 100 * MB, cached=40 * MB), 240, 300),
        (OURS, version_2("/jobs/ours", str(100 * MB), 120 * MB), 0, 100),
        (OURS, NESTED, 50, 500),  # the tightest group around counts
        (DOCKER, version_1("memory/docker/abc"), 130, 200),  # with the path as the machine sees it
        (DOCKER, version_1("memory"), 130, 200),  # as the container does, whose group is the root
    ],
)
def test_memory_within_the_limits_of_a_container(
    tmp_path: Path, groups: str, files: dict[str, str], available: int, total: int
) -> None:
    system(tmp_path, {**MACHINE, "proc/self/cgroup": groups, **files})
    assert (available_bytes(tmp_path), total_memory(tmp_path)) == (available * MB, total * MB)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("processes", "share"), [("4", 200), ("1", 800)])
def test_processes_of_a_run_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str, share: int) -> None:
    system(tmp_path, MACHINE)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert available_bytes(tmp_path) == share * MB
    assert total_memory(tmp_path) == 1000 * MB, "a batch is split between them"


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
    ("variable", "rows"),
    [
        ({}, True),
        ({"RECOLLECT_MALLOC": "default"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ({"LD_PRELOAD": "/nowhere/libjemalloc.so.2"}, False),
    ],
    ids=str,
)
def test_a_command_uses_freed_memory_again_unless_the_user_decided_otherwise(
    variable: dict[str, str], rows: bool
) -> None:
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variable}
    command = [sys.executable, "-c", PAGES_OF_THE_SECOND_ARRAY]
    message = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (int(message.stdout.split()[-1]) < 10) == rows  # of 16,384, or of 32 large ones


@pytest.mark.parametrize("wanted", ["gpu", "cuda:99", "meta", ""])
def test_what_is_not_is_a_sentence(wanted: str) -> None:
    with pytest.raises(ConfigError, match="--device"):
        usable_device(wanted, "--device")


def test_a_device_without_float64_embeds_and_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Apple's: tensors of float32 only."""
    ones = torch.ones

    def without_float64(*size: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        if dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return ones(*size, dtype=dtype)

    monkeypatch.setattr(torch, "ones", without_float64)
    assert usable_device("mps").type == "mps"
    with pytest.raises(ConfigError, match=r"mps.*float64"):
        usable_device("mps", "run.device", training=True)


SOURCE = str(Path(recollect.__file__).parents[1])

# A torchvision whose import asks for an operator, as the CUDA build does beside a CPU torch.
BROKEN = """
import torch
def _fake(*_):
    raise NotImplementedError
torch.library.register_fake("torchvision::nms")(_fake)
value = "imported whole"
"""


def _run(code: str, path: str = "") -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [path, SOURCE]))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_broken_torchvision_is_repaired(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(BROKEN)
    code = """
import sys
try:
    import torchvision
except RuntimeError as error:
    assert "torchvision::nms does not exist" in str(error), error
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
else:
    raise SystemExit("the stand-in is not broken")
from recollect.common.machine import fix_torchvision
print(fix_torchvision(), fix_torchvision())
import torchvision
print(torchvision.value)
"""
    assert _run(code, str(tmp_path)).splitlines() == ["True True", "imported whole"]
