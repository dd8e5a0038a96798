"""RS@k with Hugging Face Accelerate, which manages devices and processes; recollect computes the large batch.

    pip install accelerate
    accelerate launch examples/with_accelerate.py

With several processes, each reads its own part of a batch, and the loss is computed on all parts together. Pass the bare model:
large_batch_step sums the gradients over processes itself, so the model is not wrapped in DistributedDataParallel.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from plain_pytorch import network, toy_images
from torch.utils.data import DataLoader, TensorDataset

from recollect import RecallAtK, evaluate, large_batch_step


def main(epochs: int = 60) -> tuple[float, float]:
    """Train; r@1 on classes never seen, before and after."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    images, labels = toy_images()
    unseen, unseen_labels = toy_images(seed=1)
    model, loss = network().to(accelerator.device), RecallAtK()
    per_process = -(-len(labels) // accelerator.num_processes)
    loader = DataLoader(TensorDataset(images, labels), batch_size=per_process)
    optimizer, loader = accelerator.prepare(torch.optim.Adam(model.parameters(), lr=3e-3), loader)

    def test() -> float:
        vectors = model(unseen.to(accelerator.device)).detach().cpu()
        return evaluate(vectors, unseen_labels, ks=[1]).metrics["r@1"]

    before = test()
    for _ in range(epochs):
        for batch, classes in loader:
            optimizer.zero_grad()
            large_batch_step(model, loss, batch, classes, chunk_size=32)
            optimizer.step()
    return before, test()


if __name__ == "__main__":
    print("r@1 before {:.3f}, after {:.3f}".format(*main()))
