"""Precision and compilation of the network: what ``auto`` means, which vectors are shared, and that results stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import built, losses, small_config
from torch import nn
from training_toys import NPair, batch, convnet, difference, gradients

from recollect import write_evaluation
from recollect.common.errors import ConfigError
from recollect.common.machine import tf32, usable_precision
from recollect.config.automatic import resolve_auto
from recollect.data import load
from recollect.inference.vectors import embed_set
from recollect.models import Embedder
from recollect.search import Index, OtherModelError
from recollect.step import large_batch_step
from recollect.training.trainer import train


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module", autouse=True)
def _compiled_without_a_compiler() -> Iterator[None]:
    """The default back end would compile C++ for minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager"))
        yield


@pytest.mark.parametrize(("capability", "precision"), [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp32")])
def test_auto_follows_the_gpu_and_says_why(
    root: Path, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precision: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    images, config = load("folder", root, "train"), small_config(root)
    config, choices = resolve_auto(config, images, torch.device("cuda"), pretrained=True)
    assert config.run.precision == precision
    assert any(choice.name == "run.precision" and "bf16" in choice.reason for choice in choices)
    config, choices = resolve_auto(small_config(root), images, torch.device("cpu"), pretrained=True)
    assert config.run.precision == "fp32"
    assert all(choice.name != "run.precision" for choice in choices)


def test_precisions_that_cannot_be_are_refused() -> None:
    for precision, message in (("fp16", "fp16 is for GPUs"), ("half", "choose one of auto, fp32")):
        with pytest.raises(ConfigError, match=message):
            usable_precision(precision, torch.device("cpu"))


def test_a_network_may_use_tf32_and_its_loss_never_does(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    class Watching(nn.Module):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
            seen[labels is None] = torch.get_float32_matmul_precision()
            return x if labels is None else x.sum()

    with tf32(torch.device("cuda")):
        large_batch_step(Watching(), Watching(), torch.ones(2, 3), torch.arange(2), 2)
    assert seen == {True: "high", False: "highest"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_other_precisions_have_vectors_of_their_own(root: Path, tmp_path: Path) -> None:
    images, embedder = load("folder", root, "test"), Embedder.create("tiny", size=24, dim=16)
    single = embed_set(embedder, images).rows
    embedder.precision = "bf16"
    half = embed_set(embedder, images).rows
    assert 1e-4 < np.abs(single - half).max() < 0.05
    embedder.precision = "fp32"
    assert np.array_equal(embed_set(embedder, images).rows, single)
    embedder.save(tmp_path / "model")
    written = [
        write_evaluation(tmp_path / "model", root, precision=precision, metrics_out=tmp_path / f"{precision}.json",
                         queries_out=tmp_path / f"{precision}.npz", compare=compare)
        for precision, compare in (("fp32", None), ("bf16", tmp_path / "fp32.npz"))
    ]  # fmt: skip
    assert written[0].summary["source"].get("precision") is None
    assert written[1].summary["compared_with"]["differences"] == ["precision: fp32 there, bf16 here"]


def test_an_index_is_searched_with_the_precision_it_was_made_with(root: Path, tmp_path: Path) -> None:
    Embedder.create("tiny", size=24, dim=16).save(tmp_path / "model")
    address, photo = str(tmp_path / "i.db"), root / "test" / "test-00" / "0.png"
    with Index.create(address, str(tmp_path / "model"), precision="bf16") as index:
        index.sync(root / "test")
    for model in (None, str(tmp_path / "model")):
        with Index.open(address, model) as index:
            assert index.search(photo)[0].similarity == pytest.approx(1, abs=1e-3)
    with Index.open(address, precision="fp32") as index, pytest.raises(OtherModelError, match="precision differ"):
        index.search(photo)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.4, "drop_path": 0.5}])
def test_a_compiled_network_has_the_same_gradient(options: dict[str, float]) -> None:
    model, (images, labels) = convnet(**options).double(), batch()
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        if compiled:
            model.compile()
        results.append((large_batch_step(model, NPair(), images, labels, 7), gradients(model)))
        model.zero_grad()
    assert float(results[0][0]) == pytest.approx(float(results[1][0]), abs=1e-12)
    assert difference(results[0][1], results[1][1]) < 1e-12


@pytest.mark.release
def test_a_compiled_training_is_the_same_training(root: Path, tmp_path: Path) -> None:
    settings = {"data.validation": "paper", "optimizer.name": "sgd", "batch.chunk": "auto"}
    for compiled in (False, True):
        train(small_config(root, **settings, **{"run.compile": compiled}), tmp_path / str(compiled))
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), abs=1e-4)
    embedder = Embedder.create("tiny", size=24, dim=16)
    embedder.compile()
    assert train(small_config(root), tmp_path / "passed", model=embedder).steps == 6
    with built(
        small_config(root, **{"run.compile": True, "model.freeze": "backbone", "data.augmentation": "none"})
    ) as it:
        assert it.network._compiled_call_impl is not None
