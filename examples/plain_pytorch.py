"""RS@k in a plain PyTorch loop: a batch larger than memory, an exact gradient.

python examples/plain_pytorch.py
"""

from __future__ import annotations

import torch
from torch import nn

from recollect import RecallAtK, evaluate, large_batch_step


def network() -> nn.Module:
    """Any module that gives one unit vector per image; replace it by yours."""

    class Unit(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.normalize(x, dim=1)

    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 32), nn.ReLU(), nn.Linear(32, 16), Unit())


def toy_images(classes: int = 24, each: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose classes differ in six patterns, under six stronger ones that say nothing; and their classes."""
    signal, nuisance = torch.randn(2, 6, 3 * 8 * 8, generator=torch.Generator().manual_seed(42))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(each)
    amounts = torch.randn(classes, 6, generator=generator)[labels]
    images = amounts @ signal + 3 * torch.randn(len(labels), 6, generator=generator) @ nuisance
    return images.reshape(-1, 3, 8, 8) / 10, labels


def main(steps: int = 60) -> tuple[float, float]:
    """Train; r@1 on classes never seen, before and after."""
    torch.manual_seed(0)
    images, labels = toy_images()
    unseen, unseen_labels = toy_images(seed=1)
    model, loss = network(), RecallAtK()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    test = lambda: evaluate(model(unseen).detach(), unseen_labels, ks=[1]).metrics["r@1"]  # noqa: E731
    before = test()
    for _ in range(steps):
        optimizer.zero_grad()
        # All 192 images in one loss; never more than 32 of them in the network at once.
        large_batch_step(model, loss, images, labels, chunk_size=32)
        optimizer.step()
    return before, test()


if __name__ == "__main__":
    print("r@1 before {:.3f}, after {:.3f}".format(*main()))
