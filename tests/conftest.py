from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Several test processes run side by side: one thread each, in the processes they start too. Before torch is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# Some virtual machines announce AMX and cannot run it: tests of half precision would end the process. Before torch
# computes, since oneDNN reads its variable once; workers and processes they start inherit it.
if Path("/proc/cpuinfo").exists() and " amx" in Path("/proc/cpuinfo").read_text(errors="replace"):
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

import pytest
import torch
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

from recollect.common import console, machine

# Timings on shared machines are noisy, so no test has a deadline.
settings.register_profile(
    "recollect", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("recollect")

# Plans are made of one measurement instead of up to nine: half of a small training would be its plan. How good plans are
# is not for tests to say (benchmarks/estimates.py).
machine.SECONDS = 0.0

# typer builds the whole command line at every call, which takes 0.06 s; the tests call it a thousand times.
typer.main.get_command = cache(typer.main.get_command)
typer.testing._get_command = typer.main.get_command

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than there are cores: tests of patience and of killed processes mostly wait."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests come first.

    With ``--dist loadfile --no-loadscope-reorder`` a process takes one file after another, in this order: what one of
    them does while the others have nothing left to do is then a quick file. A file is not divided: its fixtures are made once.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Each test begins with the same random numbers and leaves the switch ``--quiet`` as it found it."""
    torch.manual_seed(0)
    yield
    console.silent = False


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images beside the project; the test skips when it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("no folder of real images beside the project")
    return SHARED_DATA


@pytest.fixture(autouse=True, scope="session")
def _cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests share a cache of their own, in all processes, and leave the user's alone. Characters are drawn once."""
    mine = tmp_path_factory.getbasetemp()
    cache = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "cache"
    cache.mkdir(exist_ok=True)
    os.environ["RECOLLECT_CACHE"] = str(cache)
