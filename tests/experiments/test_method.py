from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.__main__ import main
from experiments.method import ahead_at, draw_method, hits_at, push_at
from recollect.common.errors import InputError
from recollect.losses import RecallAtK

RANKS = torch.linspace(0, 12, 49, dtype=torch.float64)


def test_curves_are_the_equations() -> None:
    for k in (1, 2, 4):
        sigmoid = torch.sigmoid(k - RANKS)
        torch.testing.assert_close(hits_at(RANKS, [k]), sigmoid)
        torch.testing.assert_close(push_at(RANKS, [k]), sigmoid * (1 - sigmoid))
    torch.testing.assert_close(push_at(RANKS, [1, 2, 4]), sum(push_at(RANKS, [k]) for k in (1, 2, 4)))
    torch.testing.assert_close(
        push_at(RANKS, [4], 0.5), torch.sigmoid((4 - RANKS) / 0.5).mul(2).mul(1 - torch.sigmoid((4 - RANKS) / 0.5))
    )
    differences = torch.linspace(-0.1, 0.1, 41, dtype=torch.float64)
    torch.testing.assert_close(ahead_at(differences), torch.sigmoid(differences / 0.01))


def test_the_push_is_that_of_the_whole_loss() -> None:
    """One query, its positive and one negative, through the engine: the gradient's size is the curve's at that rank."""
    tau2 = 0.2
    angle = torch.tensor([0.0, 0.9, 1.1], dtype=torch.float64)
    embeddings = torch.stack([angle.cos(), angle.sin()], 1).requires_grad_()
    positive, negative = (embeddings[0] @ embeddings[i] for i in (1, 2))
    rank = 1 + torch.sigmoid((negative - positive) / tau2)
    loss = RecallAtK(k=[2], tau2=tau2)
    value = loss(embeddings[:1], torch.tensor([0]), embeddings[1:], torch.tensor([0, 1]))
    torch.testing.assert_close(value, 1 - hits_at(rank.detach()[None], [2])[0])
    (whole,) = torch.autograd.grad(value, embeddings, retain_graph=True)
    (of_rank,) = torch.autograd.grad(rank, embeddings)
    torch.testing.assert_close(whole, of_rank * push_at(rank.detach()[None], [2])[0])


@pytest.mark.release
def test_figures_are_written_small_and_the_same_each_time(tmp_path: Path) -> None:
    paths = draw_method(tmp_path / "a")
    names = ("sigmoids", "gradient-against-rank", "pairs-and-ranks", "recall-and-rs", "simix")
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in names for kind in ("svg", "png")]
    before = [path.read_bytes() for path in paths]
    assert all(len(content) < 150_000 for content in before)
    with pytest.raises(InputError, match="already exists"):
        draw_method(tmp_path / "a")
    main(["method", "--out", str(tmp_path / "a"), "--overwrite"])
    assert [path.read_bytes() for path in paths] == before
