"""What is kept of the batch at which a training lost its way, so that someone can look at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from recollect.common.files import atomic_write, write_json
from recollect.data import ImageSet
from recollect.training.batches import Fed
from recollect.training.checkpoint import Progress


def save_for_inspection(
    folder: Path, rank: int, progress: Progress, batch: Fed, images: ImageSet, loss: float, norm: float
) -> Path:
    """Write the batch's tensors (``batch.pt``) and the names of its images (``batch.json``); returns the folder."""
    folder = folder / f"step-{progress.step + 1}" / f"process-{rank}"
    with atomic_write(folder / "batch.pt") as file:
        torch.save({"inputs": batch.inputs, "labels": batch.labels, "indices": torch.from_numpy(batch.indices)}, file)
    about: dict[str, Any] = {
        "step": progress.step + 1,
        "epoch": progress.epoch,
        "loss": str(loss),
        "gradient_norm": str(norm),
        "images": [images.names[index] for index in batch.indices.tolist()],
        "classes": [images.class_names[label] for label in batch.labels.tolist()],
    }
    write_json(folder / "batch.json", about)
    return folder
