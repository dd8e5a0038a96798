"""The functions of the Python API that use a model: ``load``, ``embed``, ``evaluate_model``, ``export_onnx``.

They are ``recollect.load``, …; each is a few lines on top of the functions that the command line uses.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recollect.common.errors import DataWarning
from recollect.common.plugins import trusting
from recollect.data import ImageSet, list_images
from recollect.evaluation import Evaluation
from recollect.evaluation.metrics import METRICS, MetricLike
from recollect.inference.evaluating import evaluate_target
from recollect.inference.opening import Opened, open_model
from recollect.inference.target_vectors import embed_test
from recollect.inference.test_sets import TestChoice, as_test_set, choose_test, load_test
from recollect.models import Embedder, onnx_export

logger = logging.getLogger(__name__)


def load(
    model: str | Path,
    *,
    weights: str | None = None,
    download: bool = False,
    device: str | torch.device | None = None,
    backbone: str | nn.Module | None = None,
    trust: bool = False,
) -> Embedder:
    """Open a model: a run, a saved embedder, or an initialisation by name.

    Args:
        model: the folder of a run (finished or not), the folder of a saved embedder, or a name of ``recollect models``.
        weights: file or folder of an initialisation's weights. download: download them if they are missing.
        device: the device; the CPU by default.
        backbone: for a model with your own backbone: the reference to it, or the untrained module.
        trust: run the code that the folder names as its backbone. Only for folders whose origin you know.

    Returns:
        The embedder, in evaluation mode.

    Raises:
        DataError: there is no such run or embedder. WeightsError: the weights are missing or damaged.
        ConfigError: an unknown initialisation, or your own backbone that is neither given nor trusted.

    Example:
        >>> load("run").dim
        128
    """
    with trusting(trust):
        if backbone is not None:
            return Embedder.load(model, device, backbone=backbone)
        opened = open_model(model, weights=weights, download=download, device=device)
    if opened.remark is not None:
        logger.warning(opened.remark)
    return opened.embedder


def embed(
    model: Embedder | str | Path,
    images: str | Path | Iterable[Any] | ImageSet | Tensor,
    *,
    batch_size: int = 64,
    device: str | torch.device | None = None,
    on_bad_image: str = "error",
    progress: bool = True,
) -> Tensor:
    """Vectors of images: N × dim float32 of length 1, row i for image i.

    Args:
        model: an embedder, or what ``recollect.load`` takes.
        images: a folder, a file, or a list of them; a sequence of bytes, PIL images or uint8 arrays; an ``ImageSet``; or a
            preprocessed tensor. With folders, the rows are in the order of ``recollect.data.list_images``, and an image that is
            given twice has one row.
        batch_size: images per batch.
        device: where to compute; None for the embedder's device.
        on_bad_image: ``"error"`` raises the first unreadable file's error; ``"skip"`` sets its row to NaN.
        progress: show a progress line on a terminal.

    Example:
        >>> import numpy as np
        >>> embed(Embedder.create("tiny"), [np.zeros((32, 32, 3), np.uint8)], progress=False).shape
        torch.Size([1, 128])
    """
    embedder = model if isinstance(model, Embedder) else load(model)
    if isinstance(images, str | Path):
        images = _listed([images])
    elif isinstance(images, list | tuple) and _has_folder(images):
        images = _listed(images)
    return embedder.embed(
        images,
        batch_size=batch_size,
        device=device,
        on_bad_image=on_bad_image,  # type: ignore[arg-type]
        progress=progress,
    )


def evaluate_model(
    model: Embedder | str | Path,
    data: ImageSet | str | Path | None = None,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    ks: Sequence[int] | None = None,
    metrics: Sequence[MetricLike] = (),
    batch_size: int = 64,
    device: str | None = None,
    skip_bad: bool = False,
    trust: bool = False,
) -> Evaluation:
    """Measure recall@k and more of a model on labelled images, everything against everything.

    Args:
        model: an embedder, or anything that ``recollect.load`` takes.
        data: an ``ImageSet``, a data set by name or reference, or a folder of images; None for the run's own test images.
        root: the folder of a data set. split: the split to use; the test split by default.
        ks: the k of r@k; by default those of the data set.
        metrics: further metrics: functions of (ranks, positives), ``Metric`` objects, or references.
        batch_size: images per batch while embedding. device: where to compute.
        skip_bad: leave out images that cannot be read; they are named by a warning.
        trust: run the code that a run or a saved embedder names (references).

    Returns:
        ``.metrics`` has the means as fractions, e.g. ``{"r@1": 0.81, …}``; ``.per_query`` the values of every query.

    Raises:
        ConfigError: no images are given, or they are a benchmark with ground truth (use ``recollect eval`` for those).

    Example:
        >>> result = evaluate_model("run", "photos", ks=[1, 5])
        >>> result.metrics["r@1"] <= result.metrics["r@5"]
        True
    """
    with trusting(trust):
        opened = _opened(model, device)
        if isinstance(data, ImageSet):
            test = as_test_set(TestChoice(data.name, data.root, data.split), data, opened.folder)
        else:
            choice = choose_test(
                opened.run,
                data=None if data is None else str(data),
                root=None if root is None else Path(root),
                split=split,
            )
            test = load_test(choice, opened.folder, skip_bad=skip_bad)
        for note in [] if test.screened is None else test.screened.remarks():
            warnings.warn(note.removeprefix("WARNING: "), DataWarning, stacklevel=2)
        target = embed_test(opened, test, batch_size=batch_size, skip_bad=skip_bad)
        for bad in target.source.get("skipped", []):
            warnings.warn(f"left out: {bad['reason']}", DataWarning, stacklevel=2)
        more: dict[str, Any] = {"metrics": [*METRICS, *metrics]} if metrics else {}
        result, _ = evaluate_target(target, ks, **more)
    if not isinstance(result, Evaluation):
        raise TypeError("labelled images are evaluated by the protocol all")
    return result


def export_onnx(
    model: Embedder | str | Path,
    path: str | Path,
    *,
    dim: int | None = None,
    download: bool = False,
    overwrite: bool = False,
) -> float:
    """Write an embedder as ONNX, checked against the original, and a Python file with its preprocessing next to it.

    Args:
        model: an embedder, or what ``recollect.load`` takes.
        path: the ONNX file to write.
        dim: shorten its vectors to this many numbers.
        download: download weights that are not on this machine.
        overwrite: replace existing files.

    Returns:
        The largest difference between the two on random images.

    Raises:
        ConfigError: the model cannot be exported. InputError: ``path`` exists. MissingExtraError: onnx is not installed.

    Example:
        >>> export_onnx("run", "run.onnx", dim=64) < 1e-3
        True
    """
    if isinstance(model, Embedder):
        embedder = model if dim is None else model.shortened(dim)
    else:
        opened = open_model(model, dim=dim, download=download)
        embedder = opened.embedder
        if opened.remark is not None:
            logger.info(opened.remark)
    path = Path(path)
    difference = onnx_export.export_onnx(embedder, path, overwrite=overwrite)
    size, limit = path.stat().st_size / 2**20, onnx_export.TOLERANCE
    logger.info(f"{path}: {size:.1f} MB, differs from the model by at most {difference:.1e} (limit {limit:.0e}).")
    reference = onnx_export.reference_path(path)
    logger.info(f"{reference}: preprocess() computes the input pixels; it needs only numpy and Pillow.")
    return difference


def _listed(images: Sequence[Path | str]) -> list[Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # about labels, which vectors do not have
        return list_images(images).paths


def _has_folder(images: Sequence[Any]) -> bool:
    return any(isinstance(each, str | Path) and Path(each).is_dir() for each in images)


def _opened(model: Embedder | str | Path, device: str | None) -> Opened:
    if not isinstance(model, Embedder):
        opened = open_model(model, device=device)
        if opened.remark is not None:
            logger.warning(opened.remark)
        return opened
    embedder = model if device is None else model.to(device)
    return Opened(embedder, embedder.config.init, "of the embedder", {"model": embedder.config.init})
