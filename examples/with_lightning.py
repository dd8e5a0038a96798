"""RS@k with PyTorch Lightning: manual optimization, because large_batch_step does its own backward passes.

pip install pytorch-lightning
python examples/with_lightning.py
"""

from __future__ import annotations

import pytorch_lightning as lightning
import torch
from plain_pytorch import network, toy_images
from torch.utils.data import DataLoader, TensorDataset

from recollect import RecallAtK, evaluate, large_batch_step


class Retrieval(lightning.LightningModule):
    """Any network with RS@k on the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.loss = network(), RecallAtK()

    def training_step(self, batch: list[torch.Tensor], _: int) -> None:
        """One large-batch step; ``.grad`` is complete afterwards."""
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.log("loss", large_batch_step(self.model, self.loss, *batch, chunk_size=32))
        optimizer.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As usual."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(epochs: int = 60) -> tuple[float, float]:
    """Train; r@1 on classes never seen, before and after."""
    lightning.seed_everything(0, verbose=False)
    images, labels = toy_images()
    unseen, unseen_labels = toy_images(seed=1)
    module = Retrieval()
    test = lambda: evaluate(module.model(unseen).detach(), unseen_labels, ks=[1]).metrics["r@1"]  # noqa: E731
    before = test()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, **quiet)
    trainer.fit(module, DataLoader(TensorDataset(images, labels), batch_size=len(labels)))
    return before, test()


if __name__ == "__main__":
    print("r@1 before {:.3f}, after {:.3f}".format(*main()))
