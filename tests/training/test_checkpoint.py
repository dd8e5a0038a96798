"""Checkpoints are restored whole or not at all, and run no code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.common.errors import DataError
from recollect.step.team import Team
from recollect.training import checkpoint


def test_an_unreadable_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"bad\.pt: not a "):
        checkpoint.read_checkpoint(tmp_path / "bad.pt")

    class Evil:
        def __reduce__(self) -> Any:
            return (os.system, ("true",))

    torch.save({"format": 1, "evil": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(DataError, match=r"not .*weights"):
        checkpoint.read_checkpoint(tmp_path / "evil.pt")


def _small_training(seed: int) -> checkpoint.Trained:
    torch.manual_seed(seed)
    model, loss = torch.nn.Linear(2, 3), torch.nn.PReLU()
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()])
    loss(model(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return checkpoint.Trained(model, loss, optimizer, scaler, torch.device("cpu"), Team())


def _states(trained: checkpoint.Trained) -> list[Tensor]:
    moments = [state["exp_avg"] for state in trained.optimizer.state.values()]
    tensors = [*trained.model.state_dict().values(), *trained.loss.state_dict().values(), *moments]
    return [*(tensor.clone() for tensor in tensors), torch.get_rng_state()]


_SPOILED: dict[str, tuple[Any, str]] = {
    "a list": (lambda good: [1, 2], "contains a list"),
    "a tensor": (lambda good: torch.zeros(3), "contains a Tensor"),
    "a number": (lambda good: {"format": 1}, "model is missing"),
    "no optimizer": (lambda good: {k: v for k, v in good.items() if k != "optimizer"}, "optimizer is missing"),
    "no weights": (lambda good: {**good, "model": {}}, "another network; 2 of its entries"),
    "half the weights": (lambda good: {**good, "model": {"weight": torch.ones(3, 2)}}, "'bias'"),
    "other shapes": (lambda good: {**good, "model": {"weight": torch.ones(3, 2), "bias": torch.ones(4)}}, "'bias'"),
    "another loss": (lambda good: {**good, "loss": {"weight": torch.ones(9)}}, "another loss"),
    "an empty optimizer": (lambda good: {**good, "optimizer": {}}, "KeyError"),
    "another optimizer": (
        lambda good: {**good, "optimizer": torch.optim.SGD([torch.ones(1)], lr=1).state_dict()},
        "group that doesn't match",
    ),
    "strange progress": (lambda good: {**good, "progress": {"steps": 3}}, "unexpected keyword"),
    "no random states": (lambda good: {**good, "random": [[]]}, "random"),
    "other random states": (lambda good: {**good, "random": [[torch.zeros(3)]]}, "random"),
}


@pytest.mark.parametrize("how", _SPOILED)
def test_a_spoiled_checkpoint_is_a_sentence_and_restores_nothing(tmp_path: Path, how: str) -> None:
    path, (spoil, said) = tmp_path / "last.pt", _SPOILED[how]
    checkpoint.save_checkpoint(path, _small_training(1), checkpoint.Progress(step=4), {}, 2)
    torch.save(spoil(torch.load(path, weights_only=True)), path)
    trained = _small_training(2)
    before = _states(trained)
    with pytest.raises(DataError, match=rf"last\.pt: .*{said}.* Restore it from a complete copy") as refused:
        checkpoint.load_checkpoint(path, trained)
    assert "\n" not in str(refused.value)
    assert all(map(torch.equal, before, _states(trained)))


def test_a_whole_checkpoint_is_restored(tmp_path: Path) -> None:
    written = _small_training(1)
    expected = _states(written)
    checkpoint.save_checkpoint(tmp_path / "last.pt", written, checkpoint.Progress(step=4), {"epoch": 1}, 2)
    trained = _small_training(2)
    progress, sampler, chunk = checkpoint.load_checkpoint(tmp_path / "last.pt", trained)
    assert (progress.step, sampler, chunk) == (4, {"epoch": 1}, 2)
    assert all(map(torch.equal, expected, _states(trained)))
