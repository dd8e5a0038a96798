"""Evaluation during training, the rule that selects the weights to keep, and the verdict after the last step.

Weights are selected on validation images: by r@k of held-out classes, or by the mean average precision of queries with
ground truth (SfM-120k), never on the test set. Without validation the last weights are kept.

The verdict compares the trained network with the pre-trained one on the held-out classes. Vectors come from the vector store,
so with a frozen part the test images are embedded once for all three networks, and ``recollect eval`` and ``recollect report``
reuse them. Images that cannot be read are left out: a broken test photo must not end a training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from recollect.common import plugins
from recollect.common.console import ProgressLine
from recollect.common.errors import ConfigError, RecollectError
from recollect.common.images import BadImage
from recollect.common.text import Remark, number_of
from recollect.config.automatic import is_pretrained
from recollect.config.schema import Config
from recollect.data import ImageSet
from recollect.evaluation import Verdict, evaluate, verdict
from recollect.evaluation.metrics import TRACKED_KS, Metric, find_metric
from recollect.inference.evaluate import measure_benchmark, measure_labelled
from recollect.inference.models import load_initial_model, make_embedder
from recollect.inference.store import content_keys
from recollect.inference.training_record import ScreenedTestSet, exclude_trained_classes, trained_on
from recollect.inference.vectors import SetRows, embed_set, run_network
from recollect.models import Embedder
from recollect.step.distributed import Processes
from recollect.training.batches import Watched
from recollect.training.build import Training
from recollect.training.head import start_last_layer, whitening_images


def embed(
    network: nn.Module, watched: Watched, device: torch.device, dtype: torch.dtype | None, quiet: bool | None = None
) -> tuple[Tensor, Tensor]:
    """This process's embeddings of a set, and the numbers of the images. The network's mode is restored."""
    parts, places = [], []
    batches = ((batch.images, batch.indices + watched.start) for batch in watched.source.sequential(watched.at_once))
    with ProgressLine(f"evaluating {watched.name}", len(watched.images), quiet=quiet, live=False) as line:
        for part, place in run_network(network, batches, device, dtype):
            parts.append(part)
            places.append(place)
            line.advance(len(place))
    return torch.cat(parts), torch.from_numpy(np.concatenate(places)).to(device)


def evaluate_watched(
    network: nn.Module,
    watched: Watched,
    processes: Processes,
    device: torch.device,
    dtype: torch.dtype | None = None,
    select: str = "r@1",
) -> dict[str, float]:
    """Metrics of a set, r@k and mAP as fractions, the same on every process; ``select`` is among them if it can be."""
    whole = processes.gather(*embed(network, watched, device, dtype, quiet=None if processes.rank == 0 else True))
    shared = processes.size > 1
    if watched.benchmark is not None:
        database = torch.empty_like(whole.embeddings)
        database[whole.labels] = whole.embeddings  # images of equal size were embedded together
        return measure_benchmark(database, watched.benchmark, distributed=shared)
    labels = torch.from_numpy(watched.images.labels).to(device)[whole.labels]
    own = own_metric(select)
    # Without those that cannot fail: a query finds at most all other images.
    ks = [k for k in TRACKED_KS if k < len(watched.images) - 1 or k == 1 or f"r@{k}" == select]
    return measure_labelled(whole.embeddings, labels, ks=ks, more=[] if own is None else [own], distributed=shared)


def merit(metrics: Mapping[str, float], select: str, step: int) -> tuple[float, float, int]:
    """The key for comparing evaluations: the selection metric; among equals mAP@R, then the later step.

    r@1 of a few hundred queries has few distinct values, and without a rule the earliest of equal weights would be kept. A
    custom metric for which lower is better is negated.

    Raises:
        ConfigError: the selection metric is not among ``metrics``.
    """
    own = own_metric(select)
    sign = 1.0 if own is None or own.higher_is_better else -1.0
    if (name := column_of(select)) not in metrics:
        raise ConfigError(f"run.select {name!r} is not computed: choose one of {', '.join(metrics)}.")
    return sign * metrics[name], metrics.get("map@r", 0.0), step


def own_metric(select: str) -> Metric | None:
    """The custom metric that ``run.select`` names; None for those that are always computed."""
    return find_metric(select) if plugins.is_plugin("metric", select) else None


def column_of(select: str) -> str:
    """The name of ``run.select`` among the metrics; for a metric at several k, that of the first k."""
    own = own_metric(select)
    return select if own is None else next(iter(own.columns(TRACKED_KS)))


# The verdict -----------------------------------------------------------------------------------------------------------


PRETRAINED, START = "pretrained", "start"
"""The baselines: the pre-trained network without training, and the initial last layer (0 steps)."""
CLOSED_FORM = "the closed form"
"""What is judged where no step was taken."""


@dataclass
class JudgedTraining:
    """Verdicts by what they compare with, or why there are none, and the test images that could not be read.

    ``remarks``: classes that are not included, and images that were trained on.
    """

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    skipped: list[BadImage] = field(default_factory=list)
    reason: str = ""
    remarks: list[Remark] = field(default_factory=list)


def judge(config: Config, embedder: Embedder, train: ImageSet, test: ImageSet, steps: int) -> JudgedTraining:
    """What the held-out classes say; no verdict where there is nothing to compare on or with.

    Args:
        config: settings of the training.
        embedder: the trained network.
        train: the training images.
        test: images of held-out classes; trained classes among them are left out.
        steps: number of steps taken; with none, the start is the result.
    """
    if not is_pretrained(config.model):
        return JudgedTraining(reason="the network started from random weights")
    try:
        screened = exclude_trained_classes(test, content_keys(test), trained_on(train), "exclude")
    except ConfigError:
        return JudgedTraining(reason="all images to test on were trained on")
    images, device, frozen = screened.images, embedder.device, config.model.freeze

    def embedded(network: Embedder) -> SetRows:
        network.precision = embedder.precision
        with torch.no_grad():
            return embed_set(network, images, keys=screened.keys, frozen=frozen, on_bad_image="skip")

    trained = embedded(embedder)  # first: with a frozen part its pass stores rows for the others
    vectors = {"trained": trained.rows}
    vectors[PRETRAINED] = embedded(load_initial_model(config).embedder.to(device)).rows
    if steps and config.model.whitening == "all":
        start = make_embedder(config.model, config.run.seed).to(device).eval()
        closed_form = replace(config, run=replace(config.run, head_steps=0))
        whitening_set = whitening_images(closed_form, train)
        if whitening_set is not None:
            start_last_layer(closed_form, start, whitening_set, train)
            vectors[START] = embedded(start).rows
    read = np.all([np.isfinite(rows[:, 0]) for rows in vectors.values()], axis=0)
    labels = images.labels[read]
    if len(labels) < 2 or np.bincount(labels).max() < 2:
        return JudgedTraining(skipped=trained.skipped, reason="no held-out class has two images that can be read")
    results = {
        name: evaluate(rows[read], labels, ks=(1, 10), metrics=("r@k", "map@r")) for name, rows in vectors.items()
    }
    verdicts = {name: verdict(results[name], results["trained"]) for name in (PRETRAINED, START) if name in results}
    if not steps:
        verdicts = {name: replace(each, subject=CLOSED_FORM) for name, each in verdicts.items()}
    return JudgedTraining(verdicts, trained.skipped, remarks=_remarks(screened, labels))


def _remarks(screened: ScreenedTestSet, read: NDArray[np.int64]) -> list[Remark]:
    """Which held-out classes a verdict leaves out, and how many of its images were trained on.

    Args:
        screened: the images of unseen classes. read: labels of those that could be read.
    """
    sizes = np.bincount(read, minlength=len(screened.images.class_names))
    unread = int(((screened.images.class_sizes > 0) & (sizes == 0)).sum())
    missing = {
        "class that was trained on/classes that were trained on": len(screened.trained_classes),
        "class without an image that can be read/classes without an image that can be read": unread,
        "class with a single image/classes with a single image": int((sizes == 1).sum()),
    }
    text = "; ".join(number_of(count, words) for words, count in missing.items() if count)
    remarks = [Remark(f"not included: {text}")] if text else []
    if copies := screened.trained_images:
        count = number_of(copies, "image of the held-out classes was/images of the held-out classes were")
        remarks.append(Remark(f"{count} trained on, in other classes", warning=True))
    return remarks


def judge_training(training: Training, steps: int, remark: Callable[[str], None]) -> JudgedTraining:
    """The verdicts on a training that is done, each passed to ``remark``; so is what goes wrong with them.

    Args:
        training: after its last step, with the chosen weights in its network.
        steps: number of steps taken.
        remark: called with each line.
    """
    config, held_out, judged = training.config, training.sets.held_out, JudgedTraining()
    if held_out is None:
        if config.run.verdict and config.data.train_split != "all":  # the plan has said so
            remark("verdict    none: there are no classes to test on that were not trained on")
        return judged

    def work() -> None:
        nonlocal judged
        try:
            judged = judge(config, training.embedder, training.sets.train, held_out, steps)
        except RecollectError as error:
            judged.reason = str(error)

    training.processes.run_on_rank_zero(work)
    if judged.reason:
        remark(f"verdict    none: {judged.reason}")
    words = {PRETRAINED: f"{config.model.init} without training", START: "its own start (0 steps)"}
    for name, each in judged.verdicts.items():
        classes = number_of(each.classes, "held-out class")
        remark(f"verdict    against {words[name]}, on {classes}: {each.sentence()}")
    for line in judged.remarks:
        remark(f"verdict    {line}")
    return judged
