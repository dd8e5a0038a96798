"""Checkpoints are restored whole or not at all, and run no code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.common.errors import DataError
from recollect.step.distributed import Processes
from recollect.training import run


def test_an_unreadable_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"bad\.pt: not a "):
        run.read_checkpoint(tmp_path / "bad.pt")

    class Evil:
        def __reduce__(self) -> Any:
            return (os.system, ("true",))

    torch.save({"format": 1, "evil": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(DataError, match=r"not .*weights"):
        run.read_checkpoint(tmp_path / "evil.pt")


def _small_training(seed: int) -> run.Trained:
    torch.manual_seed(seed)
    model, loss = torch.nn.Linear(2, 3), torch.nn.PReLU()
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()])
    loss(model(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return run.Trained(model, loss, optimizer, scaler, torch.device("cpu"), Processes())


def _states(trained: run.Trained) -> list[Tensor]:
    moments = [state["exp_avg"] for state in trained.optimizer.state.values()]
    tensors = [*trained.model.state_dict().values(), *trained.loss.state_dict().values(), *moments]
    return [*(tensor.clone() for tensor in tensors), torch.get_rng_state()]


_SPOILED: dict[str, tuple[Any, str]] = {
    "no optimizer": (lambda good: {k: v for k, v in good.items() if k != "optimizer"}, "optimizer"),
    "other shapes": (lambda good: {**good, "model": {"weight": torch.ones(3, 2), "bias": torch.ones(4)}}, "bias"),
    "another optimizer": (
        lambda good: {**good, "optimizer": torch.optim.SGD([torch.ones(1)], lr=1).state_dict()},
        "group that doesn't match",
    ),
    "other random states": (lambda good: {**good, "random": [[torch.zeros(3)]]}, "ByteTensor"),
}


@pytest.mark.parametrize("how", _SPOILED)
def test_a_spoiled_checkpoint_is_a_sentence(tmp_path: Path, how: str) -> None:
    path, (spoil, message) = tmp_path / "last.pt", _SPOILED[how]
    run.save_checkpoint(path, _small_training(1), run.Progress(step=4), {}, 2)
    torch.save(spoil(torch.load(path, weights_only=True)), path)
    with pytest.raises(DataError, match=rf"last\.pt: .*{message}.* Restore it from a complete copy") as refused:
        run.load_checkpoint(path, _small_training(2))
    assert "\n" not in str(refused.value)


def test_a_whole_checkpoint_is_restored(tmp_path: Path) -> None:
    written = _small_training(1)
    expected = _states(written)
    run.save_checkpoint(tmp_path / "last.pt", written, run.Progress(step=4), {"epoch": 1}, 2)
    trained = _small_training(2)
    progress, sampler, chunk = run.load_checkpoint(tmp_path / "last.pt", trained)
    assert (progress.step, sampler, chunk) == (4, {"epoch": 1}, 2)
    assert all(map(torch.equal, expected, _states(trained)))
