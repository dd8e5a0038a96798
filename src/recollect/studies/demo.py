"""The demonstration: all steps, small enough for any laptop. Used by ``recollect demo`` and ``make demo``.

Two ordinary trainings of the ``glyphs`` recipe that differ only in the loss, RS@k and contrastive, each from
the same random weights, with the same batches and number of steps; then their report. Characters of the test set are
never seen in training. A second demonstration makes new folders and does not touch the first; with the folder of an
interrupted one, it resumes that.
"""

from __future__ import annotations

import logging
import shlex
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from recollect.common.console import lines_every
from recollect.common.files import make_folder_for
from recollect.config.resolve import resolve
from recollect.report.page import write_report
from recollect.studies.runner import begin_or_resume, has_diverged
from recollect.training.callbacks import TrainingStoppedError
from recollect.training.run import refuse_used

logger = logging.getLogger(__name__)
STEPS = 150
"""Steps of each training: together about two minutes on two cores."""
LOSSES = {"RS@k": "recall_at_k", "contrastive": "contrastive"}
SECONDS_BETWEEN_LINES = 8.0
"""Seconds between progress lines, so that at most about ten pass without output, including the current step."""
REPORT = "report.html"
_EVALUATIONS = 3


def run_demo(out: Path | str | None = None, *, steps: int = STEPS, seed: int = 0) -> Path:
    """Train twice, evaluate before, during and after training, and write the report.

    Args:
        out: a new folder for both runs and the report, or that of an interrupted demonstration with the same steps and
            seed, to resume it; by default ``runs/demo-<date>-<time>``.
        steps: steps of each training.
        seed: random seed.

    Returns:
        The report.

    Example:
        It takes one to two minutes::

            report = recollect.run_demo("demo")
    """
    folder = Path(out) if out is not None else Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    files = (*LOSSES.values(), REPORT)
    if not folder.is_dir() or any(
        entry.name not in files and not fnmatch(entry.name, f".{REPORT}.*.part") for entry in folder.iterdir()
    ):
        refuse_used(folder)
    make_folder_for(folder / REPORT)
    logger.info(f"demo       characters in many typefaces; {steps} steps with each of {len(LOSSES)} losses")
    with lines_every(SECONDS_BETWEEN_LINES):
        runs = []
        try:
            for name, loss in LOSSES.items():
                logger.info(f"\n{name}")
                outcome = begin_or_resume(folder / loss, resolve("glyphs", demo_settings(loss, steps, seed)))
                logger.info(f"{name:<10} r@1 {100 * outcome.metrics['test']['r@1']:.1f} % on unseen characters")
                runs.append(outcome.folder)
        except TrainingStoppedError as error:
            if has_diverged(error):
                raise
            command = f"recollect demo --out {shlex.quote(str(folder))} --steps {steps} --seed {seed}"
            raise TrainingStoppedError(f"stopped on request: saved. Resume with: {command}", error.exit_code) from error
        logger.info("\nreport     embeds test characters with the networks before and after training")
        return write_report(
            runs,
            folder / REPORT,
            names=list(LOSSES),
            title="Characters never seen before",
            introduction="A network of four layers learned to recognise characters across typefaces, once with RS@k and "
            "once with the contrastive loss: the same random start, the same batches, as many steps. It is tested on "
            "characters that were not among those it learned from.",
        )


def demo_settings(loss: str, steps: int, seed: int) -> dict[str, Any]:
    """The demonstration's changes to the recipe: smaller sizes, so that it ends within minutes."""
    return {
        "loss.name": loss,
        "data.options": {"min_faces": 32},  # fewer characters with more images each
        "run.epochs": None,
        "run.steps": steps,
        "run.seed": seed,
        "batch.batches_per_epoch": max(1, steps // _EVALUATIONS),
        "run.evaluate_every": 1,
        "run.watch_test": True,
    }
