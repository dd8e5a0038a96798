"""Values nobody should give: every loss answers with a finite number or a sentence, and always answers.

Also covers ``losses/checks.py``.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from recollect.common.errors import ConfigError, InputError, RecollectError
from recollect.losses import RecallAtK, Roadmap, SmoothAP, SupAP, available, create
from recollect.losses.registry import describe

TILED = ["recall_at_k", "smooth_ap", "sup_ap", "roadmap", "binned_ap", "blackbox_ap"]
VALUES: list[Any] = [
    0, -1, 1, 5, 2**63, 10**30, -(10**30), 0.0, -0.5, 1.5, 1e-40, 1e-320, 1e40, math.inf, -math.inf, math.nan,
    True, None, "", "1", "abc", (), (0,), (10**30,), (math.nan,), ("1",), [1.5], {}, torch.ones(2), object,
]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A loop that does not advance fails its test after two minutes of processor time, however busy the machine is."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise AssertionError("a loop does not advance")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 120)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def answers(loss: torch.nn.Module, embeddings: torch.Tensor, labels: torch.Tensor) -> None:
    """A finite value with a finite gradient, or a sentence."""
    leaf = embeddings.clone().requires_grad_()
    try:
        value = loss(leaf, labels)
    except InputError:
        return
    value.backward()
    assert bool(value.isfinite())
    assert leaf.grad is not None
    assert bool(leaf.grad.isfinite().all())


@pytest.mark.parametrize("name", TILED)
def test_embeddings_of_any_length_are_answered(name: str) -> None:
    for scale in (1e-30, 1e-18, 1e-3, 1e2, 1e4, 1e9, 1e18, 1e19, 1e25, 3e38, 1e200):
        for dtype in (torch.float32, torch.float64):
            embeddings = torch.randn(40, 8, dtype=torch.float64) * scale
            answers(create(name), embeddings.to(dtype), torch.arange(40) // 4)


def test_similarities_that_overflow_are_refused() -> None:
    labels = torch.arange(40) // 4
    for loss in (RecallAtK(), SmoothAP(), SupAP(), Roadmap()):
        with pytest.raises(InputError, match="similarities"):
            loss(torch.randn(40, 8) * 1e18, labels)
    with pytest.raises(InputError, match="tau = 1e-08"):
        RecallAtK(tau2=1e-8)(torch.nn.functional.normalize(torch.randn(40, 8), dim=1), labels)


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 12),
    exponents=st.lists(st.integers(-45, 38), min_size=1, max_size=12),
    tau=st.sampled_from([1e-8, 1e-5, 1e-3, 0.01, 1.0, 1e3, 1e8]),
    simix=st.booleans(),
)
@settings(max_examples=40)
def test_rows_of_mixed_lengths_are_answered(
    seed: int, rows: int, exponents: list[int], tau: float, simix: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([10.0 ** exponents[row % len(exponents)] for row in range(rows)])
    embeddings = torch.randn(rows, 4, generator=generator) * lengths[:, None]
    embeddings[::5] = 0
    labels = torch.randint(0, 3, (rows,), generator=generator)
    embeddings.nan_to_num_()
    for loss in (RecallAtK(tau2=tau, simix=simix), SmoothAP(tau, simix=simix), SupAP(tau, simix=simix)):
        answers(loss, embeddings, labels)


@pytest.mark.parametrize("name", list(available()))
def test_no_value_of_an_option_ends_in_a_traceback(name: str) -> None:
    """Each option of each loss with each value: made and answered, or refused with a sentence."""
    if available()[name].extra is not None:
        pytest.importorskip("pytorch_metric_learning")
    described = describe(name)
    known = {"num_classes": 10, "dim": 8, "coarse": [0, 0, 1, 1]}
    needed = {option.name: known[option.name] for option in described.options if option.required}
    embeddings, labels = torch.nn.functional.normalize(torch.randn(12, 8), dim=1), torch.arange(12) // 3
    for option in described.options:
        for value in VALUES:
            told = ""
            try:
                loss = create(name, **{**needed, option.name: value})
            except RecollectError as error:
                told = str(error)
            if told:
                assert option.name in told
            elif name in TILED:
                answers(loss, embeddings, labels)


@pytest.mark.parametrize("name", TILED)
def test_tensors_without_plain_values_are_refused(name: str) -> None:
    loss, labels = create(name), torch.arange(4) // 2
    for embeddings in (
        torch.randn(4, 3).to_sparse(),
        torch.randn(4, 3, device="meta"),
        torch.randn(4, 3).to_sparse_csr(),
    ):
        with pytest.raises(InputError, match="ordinary"):
            loss(embeddings, labels)
    with pytest.raises(InputError, match="ordinary"):
        loss(torch.randn(4, 3), labels.to("meta"))
    with pytest.raises(InputError, match="floating point"):
        loss(torch.randn(4, 3).to(torch.float8_e4m3fn), labels)


def test_impossible_k_is_refused() -> None:
    for k in ((10**30,), 0, -1, 1.5, math.nan, math.inf, "5", (), range(10**9), {}, object()):
        with pytest.raises(ConfigError, match="k must be"):
            RecallAtK(k=k)  # type: ignore[arg-type]
    assert RecallAtK(k=5).k == (5,)
    assert RecallAtK(k=(1.0, 2)).k == (1, 2)
