"""The number of threads follows from the work, is never raised, and is put back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from recollect import evaluate
from recollect.common import threads
from recollect.common.threads import WORTH_A_THREAD, forward_work, limited_threads, spin_briefly, threads_for


@pytest.fixture(params=[1, 4])
def available(request: pytest.FixtureRequest) -> Iterator[int]:
    """As many threads as torch is told to use, whatever this machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_small_work_has_one_thread_and_large_work_all(available: int) -> None:
    assert threads_for(0) == threads_for(1.9 * WORTH_A_THREAD) == 1
    assert threads_for(3 * WORTH_A_THREAD) == min(available, 3)
    assert threads_for(30 * WORTH_A_THREAD, operations=10) == min(available, 3)
    assert threads_for(1e18) == available


@given(work=st.floats(0, 1e15), more=st.floats(1, 10), operations=st.integers(1, 1000))
def test_more_work_never_has_fewer_threads(work: float, more: float, operations: int) -> None:
    few, many = threads_for(work, operations), threads_for(work * more, operations)
    assert 1 <= few <= many <= torch.get_num_threads()
    assert threads_for(work, operations * more) <= few


def test_a_limit_holds_inside_the_block_only(available: int) -> None:
    with limited_threads(2):
        assert torch.get_num_threads() == min(available, 2)
        with limited_threads(3):  # never raised
            assert torch.get_num_threads() == min(available, 2)
        with limited_threads(1):
            assert torch.get_num_threads() == 1
            assert threads_for(1e18) == 1
        assert torch.get_num_threads() == min(available, 2)
    assert torch.get_num_threads() == available
    with pytest.raises(KeyError), limited_threads(1):
        raise KeyError
    assert torch.get_num_threads() == available


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1, groups=2, stride=2)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.conv(x)).mean((2, 3)))


def test_what_a_network_computes() -> None:
    network, inputs = Net().train(), torch.randn(3, 4, 6, 6)
    state = torch.get_rng_state()
    work = forward_work(network, inputs)
    # Every output of the convolution sums 2 channels of 3 × 3; there are 3 images × 8 channels × 3 × 3 places.
    assert work == (3 * 8 * 9 * 2 * 9 + 3 * 5 * 8, 2)
    assert torch.equal(torch.get_rng_state(), state), "no random number is drawn"
    assert network.training
    assert network.drop.training
    assert not network.conv._forward_hooks


def test_a_network_that_fails_is_left_as_it_was() -> None:
    network = Net().train()
    with pytest.raises(RuntimeError):
        forward_work(network, torch.zeros(1))
    assert network.training
    assert not network.head._forward_hooks


SPINNING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SPINNING:
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("undecided")
def test_waiting_threads_soon_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    spin_briefly()
    assert not any(name in os.environ for name in SPINNING), "torch is imported: too late"
    monkeypatch.setattr(threads.sys, "modules", {})
    spin_briefly()
    assert (os.environ["OMP_WAIT_POLICY"], os.environ["GOMP_SPINCOUNT"]) == ("PASSIVE", "2000")


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize("name", SPINNING)
def test_the_user_has_decided(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(threads.sys, "modules", {})
    monkeypatch.setenv(name, "7")
    spin_briefly()
    assert [(other, os.environ.get(other)) for other in SPINNING if other in os.environ] == [(name, "7")]


def test_the_command_line_sets_it_before_torch() -> None:
    script = """
import os, sys
import recollect.cli
try:
    sys.argv = ["recollect", "--version"]
    recollect.cli.main()
except SystemExit:
    print(os.environ["GOMP_SPINCOUNT"], "torch" in sys.modules)
"""
    environment = {name: value for name, value in os.environ.items() if name not in SPINNING}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split()[-2:] == ["2000", "False"]


@pytest.mark.parametrize(("worth", "expected"), [(WORTH_A_THREAD, 1), (1e-3, 4)])
def test_a_small_evaluation_has_one_thread(monkeypatch: pytest.MonkeyPatch, worth: float, expected: int) -> None:
    seen: list[int] = []
    product = torch.mm

    def counted(*arguments: Any, **options: Any) -> Any:
        seen.append(torch.get_num_threads())
        return product(*arguments, **options)

    before = torch.get_num_threads()
    vectors = nn.functional.normalize(torch.randn(60, 8))
    try:
        torch.set_num_threads(4)
        monkeypatch.setattr(threads, "WORTH_A_THREAD", worth)
        monkeypatch.setattr(torch, "mm", counted)
        evaluate(vectors, [number // 3 for number in range(60)])
        assert set(seen) == {expected}
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
