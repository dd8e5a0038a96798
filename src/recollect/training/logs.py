"""Where a training's figures always go: ``metrics.jsonl``, the progress line, ``train.log``. Others: ``loggers.py``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from recollect.common.console import PROGRESS, ProgressLine
from recollect.training.run_folder import RunFolder

logger = logging.getLogger(__name__)

resource: ModuleType | None
try:
    resource = import_module("resource")
except ImportError:  # Windows has none
    resource = None


class Log:
    """Takes one record per step and one per evaluation.

    Args:
        folder: the run; None on all processes but the first, which then keep quiet.
        line: the progress line.
    """

    def __init__(self, folder: RunFolder | None, line: ProgressLine) -> None:
        self.folder, self.line = folder, line
        self.latest: dict[str, dict[str, float]] = {}
        self._watched = ""
        for record in () if folder is None else folder.read_metrics():  # of a run that is resumed
            if record["kind"] == "evaluation":
                values = {key: value for key, value in record.items() if key not in ("kind", "step", "split")}
                self.latest[record["split"]] = values

    def step(self, **record: Any) -> None:
        """One optimizer step."""
        memory = record["memory_mb"]
        # What matters most comes first: a narrow terminal cuts the rest.
        note = (
            f"loss {record['loss']:.4f} {record['images_per_second']:,.0f} images/s{self._watched} "
            f"epoch {record['epoch']:.1f}{'' if memory is None else f' {memory:,} MB'}"
        )
        told = self.line.advance(1, note=note)
        if told is not None and self.folder is not None:
            self.folder.append_log(told)
        self._write({"kind": "step", **record})

    def evaluation(self, name: str, step: int, metrics: Mapping[str, float]) -> None:
        """One evaluation of the set ``name``."""
        self.latest[name] = dict(metrics)
        first = next(iter(metrics))
        self._watched = f" {name} {first} {100 * metrics[first]:.1f}"
        if self.folder is not None:
            # A metric of one's own need not be a share.
            figures = "  ".join(
                f"{key} {100 * v:.1f}" if abs(v) <= 1 else f"{key} ({v:.4g})" for key, v in metrics.items()
            )
            line = f"{name:<10} after step {step:,}, in %: {figures}"
            logger.info(line, extra=PROGRESS)
            self.folder.append_log(line)
        self._write({"kind": "evaluation", "step": step, "split": name, **metrics})

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.folder is not None:
            self.folder.append_metrics(record)


def peak_memory_mb(device: torch.device) -> int | None:
    """The most memory held so far: of the GPU, or of this process; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device) >> 20)
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak >> 20 if sys.platform == "darwin" else peak >> 10)
