"""Features of a frozen part of the network: computed once, kept on disk, read by every later step.

With ``model.freeze`` nothing before the cut changes, so each image needs to pass through it once in its life. Features
are a function of images, preprocessing, weights and the cut; a file is named by a digest of all of them and made
whole or not at all, so runs share it. Training on them is the ordinary loop with another ``Feed`` (``training/batches.py``).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError
from recollect.common.files import atomic_write
from recollect.common.locks import exclusive
from recollect.common.stopwatch import seconds_of
from recollect.data import ImageSet, Pipeline, test_transform
from recollect.models import Embedder
from recollect.step.model_inputs import take_rows

Features = NDArray[np.float32]
_PROBE = 32  # images that tell how long all will take


def frozen_features(
    embedder: Embedder,
    frozen: nn.Module,
    images: ImageSet,
    upto: str,
    *,
    folder: Path,
    batch_size: int = 64,
    workers: int | None = None,
) -> Features:
    """N × … float32 features of ``images`` behind the frozen part, memory-mapped from ``folder``.

    Args:
        embedder: whose frozen part it is, on its device.
        frozen: the first module of ``embedder.split(upto)``.
        images: what to embed, as for evaluation: no augmentation.
        upto: the name of the cut.
        folder: where features are kept.
        batch_size: images at once.
        workers: threads that decode.

    Raises:
        ConfigError: images of different sizes, whose features cannot be kept in one array.
    """
    if embedder.preprocessing.resize is None:
        raise ConfigError("a frozen part needs images of one size: set model.image_size, or model.freeze=none.")
    path = _place(embedder, frozen, images, upto, folder)
    if not path.exists():
        with exclusive(path.with_name(f".{path.name}.lock")):
            if not path.exists():  # by another process, which was waited for
                _compute(embedder, frozen, images, path, batch_size, workers)
    features: Features = np.load(path, mmap_mode="r", allow_pickle=False)
    return features


def seconds_of_features(
    embedder: Embedder, frozen: nn.Module, images: ImageSet, upto: str, *, folder: Path, workers: int | None = None
) -> float:
    """How long ``frozen_features`` will take, measured on a few images; nothing where the features are kept already."""
    if embedder.preprocessing.resize is None or _place(embedder, frozen, images, upto, folder).exists():
        return 0.0
    some = images.subset(np.arange(0, len(images), max(1, len(images) // _PROBE))[:_PROBE])
    was_training = frozen.training
    frozen.eval()
    with Pipeline(some, test_transform(embedder.preprocessing), workers=workers) as pipeline, torch.inference_mode():

        def work() -> None:
            for batch in pipeline.sequential(len(some)):
                frozen(take_rows(batch.images, slice(None), embedder.device)).float().cpu()

        seconds = seconds_of(work)
    frozen.train(was_training)
    return seconds * len(images) / len(some)


def _place(embedder: Embedder, frozen: nn.Module, images: ImageSet, upto: str, folder: Path) -> Path:
    return folder / f"{images.name}-{images.split}-{_digest(embedder, frozen, images, upto)}.npy"


def first_feature(embedder: Embedder, frozen: nn.Module, images: ImageSet) -> Tensor:
    """What the frozen part makes of the first image, 1 × …, on the CPU: enough to plan with."""
    was_training = frozen.training
    frozen.eval()
    with Pipeline(images, test_transform(embedder.preprocessing), workers=0) as pipeline, torch.no_grad():
        row: Tensor = frozen(take_rows(pipeline.load([0]).images, slice(None), embedder.device)).float().cpu()
    frozen.train(was_training)
    return row


def _compute(
    embedder: Embedder, frozen: nn.Module, images: ImageSet, path: Path, batch_size: int, workers: int | None
) -> None:
    was_training = frozen.training
    frozen.eval()
    pipeline = Pipeline(images, test_transform(embedder.preprocessing), workers=workers)
    with (
        atomic_write(path) as file,
        pipeline,
        torch.inference_mode(),
        ProgressLine(f"features of {images.name}/{images.split}, once", len(images)) as line,
    ):
        for number, batch in enumerate(pipeline.sequential(batch_size)):
            part = frozen(take_rows(batch.images, slice(None), embedder.device)).float().cpu().numpy()
            if number == 0:
                shape = (len(images), *part.shape[1:])
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_2_0(file, header)
            file.write(np.ascontiguousarray(part, dtype="<f4").tobytes())
            line.advance(len(part))
    frozen.train(was_training)


def _digest(embedder: Embedder, frozen: nn.Module, images: ImageSet, upto: str) -> str:
    """Changes with anything the features depend on."""
    digest = hashlib.sha256()
    about: list[Any] = [upto, embedder.config.architecture, embedder.preprocessing, images.fingerprint]
    digest.update(repr(about).encode())
    for name, tensor in frozen.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    # A fingerprint is of names; files under the same names may have changed since.
    if images.arrays is not None:
        digest.update(np.ascontiguousarray(images.arrays).tobytes())
    else:
        for index in range(len(images)):
            stat = images.path(index).stat()
            digest.update(f"{stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]
