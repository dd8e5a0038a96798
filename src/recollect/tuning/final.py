"""The end of a study: one training on all training classes with the chosen settings, and one test.

The only file of this package that loads a test set: its list when the search is over, and its images after the choice has
been written to the database, which closes the study. The final training is claimed like a trial, in a study of one
trial next to the search: one of the processes does it, and if that process dies another continues. Once the test is done,
its result is shown and never computed again.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from recollect.common.errors import DataError
from recollect.common.reading import read_json
from recollect.common.text import number_of
from recollect.config.schema import Config
from recollect.data import ImageSet
from recollect.data.registry import find_source
from recollect.inference.evaluate import measure_and_keep
from recollect.inference.models import open_model
from recollect.inference.test_sets import as_test_set
from recollect.training.build import load_split
from recollect.training.run_folder import RunFolder
from recollect.tuning.protocol import Protocol, final_config
from recollect.tuning.results import TrialRecord
from recollect.tuning.study_database import Lease, StudyDatabase
from recollect.tuning.trial import run

logger = logging.getLogger(__name__)


def read_final(store: StudyDatabase) -> dict[str, Any] | None:
    """The result of the final training, if it is done."""
    done = [trial for trial in store.trials() if trial.state.name == "COMPLETE"]
    return dict(done[0].user_attrs["result"]) if done else None


def finish_study(store: StudyDatabase, protocol: Protocol, best: TrialRecord) -> None:
    """Train and test, unless that is already done or in progress.

    Args:
        store: the study whose only trial is the final training.
        protocol: the protocol of the search.
        best: the chosen trial. An earlier recorded choice is kept.

    Raises:
        DataError: the test set is missing. Nothing is lost, and the study stays open; run the same command again once
            it is available.
    """
    done = read_final(store)
    if done is not None:
        logger.info(f"final      already done, with trial {done['trial']:04d}: showing the result, not repeating it")
        _log_metrics(done["metrics"])
        return
    # Checked before hours of training, and before the study is closed: without a test set it must stay open.
    tests = sets_to_test(protocol.base)
    lease = store.claim(1)
    if lease is None:
        logger.info("final      is being trained by another process")
        return
    with store.at_work(lease):
        chosen = lease.trial.user_attrs.get("chosen")
        if chosen is None:
            chosen = {"trial": best.number, "settings": best.settings, "epoch": best.best_epoch, "value": best.value}
            lease.trial.set_user_attr("chosen", chosen)
        _finish(store, lease, protocol, chosen, tests)


def _finish(
    store: StudyDatabase,
    lease: Lease,
    protocol: Protocol,
    chosen: dict[str, Any],
    tests: dict[str, ImageSet],
) -> None:
    epochs = max(1, round(chosen["epoch"]))
    config = final_config(protocol, chosen["settings"], epochs)
    logger.info(
        f"chosen     trial {chosen['trial']:04d}: validation {config.run.select} {100 * chosen['value']:.2f} %, best at epoch "
        f"{chosen['epoch']:g}"
    )
    folder = store.folder / "final"
    logger.info(f"final      {number_of(epochs, 'epoch')} on all training classes, in {folder}")
    outcome = run(folder, config)
    metrics = {name: _test(folder, config, images) for name, images in tests.items()}
    _log_metrics(metrics)
    if not tests:
        logger.info(f"test       {config.data.title} has no test split: evaluate it with recollect eval {folder}")
    plan = RunFolder(folder).read_manifest().get("plan", {})
    result = {
        "folder": str(folder),
        "trial": chosen["trial"],
        "validation": chosen["value"],
        "settings": chosen["settings"],
        "epochs": epochs,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "images": outcome.steps * int(plan.get("batch", 0)),
        "classes": plan.get("classes"),
        "metrics": metrics,
    }
    store.finish(lease, "COMPLETE", chosen["value"], {"result": result})


def _log_metrics(metrics: dict[str, dict[str, float]]) -> None:
    for name, values in metrics.items():
        told = [f"{key} {100 * value:.2f}" for key, value in values.items() if key.startswith(("r@", "map@r"))]
        logger.info(f"test       {name}, in %: {'  '.join(told)}")


def sets_to_test(config: Config) -> dict[str, ImageSet]:
    """The test sets of a configuration's data, by name: VehicleID has three, GLDv1 has none."""
    data, known = config.data, find_source(config.data.name).test_splits
    splits = known if data.test_split == "test" and "test" not in known else (data.test_split,)
    return {f"{data.name}/{split}": load_split(data, split) for split in splits}


def _test(folder: Path, config: Config, images: ImageSet) -> dict[str, float]:
    """Metrics of one test set, computed once and stored where ``recollect eval`` stores them.

    Images that cannot be read are left out and named, as in the verdict of a training: a search may not look at the test
    images before, and one broken photo must not end it after days.
    """
    device = None if config.run.device == "auto" else config.run.device
    data = replace(config.data, test_split=images.split, on_bad_image="skip")
    # The search is over and the set belongs to the data set: no image is left out.
    test = as_test_set(images, data, folder, trained_classes="keep")
    place = folder / "eval" / test.name
    if (place / "metrics.json").exists():
        known = read_json(place / "metrics.json", dict).get("metrics")
        if isinstance(known, dict) and all(isinstance(value, int | float) for value in known.values()):
            return known
        raise DataError(f"{place / 'metrics.json'}: contains no metrics. Remove it to evaluate again.")
    metrics = measure_and_keep(open_model(folder, device=device), test, place)
    for bad in read_json(place / "metrics.json", dict)["source"]["skipped"]:
        logger.warning(f"left out of the test: {bad['reason']}")
    return metrics
