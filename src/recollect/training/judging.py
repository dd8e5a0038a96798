"""The verdict: compares the trained network with the pre-trained one on the held-out classes.

Vectors come from the vector store, so with a frozen part the test images are embedded once for all three networks, and
``recollect eval`` and ``recollect report`` reuse them. Images that cannot be read are left out: a broken test photo must
not end a training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from recollect.common.errors import RecollectError
from recollect.common.images import BadImage
from recollect.common.text import Remark, number_of
from recollect.config.automatic import is_pretrained
from recollect.config.schema import Config
from recollect.data import ImageSet
from recollect.evaluation import Evaluation, Verdict, evaluate, verdict
from recollect.inference.models import load_initial_model, make_embedder
from recollect.inference.store import Keys, content_keys
from recollect.inference.training_record import TrainedOn, exclude_trained_classes, trained_on
from recollect.inference.vectors import SetRows, embed_set
from recollect.models import Embedder
from recollect.training.build import Training
from recollect.training.last_layer import start_last_layer, whitening_images

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
    keys = content_keys(test)
    known = trained_on(train)
    screened = exclude_trained_classes(test, keys, known, "keep")
    unseen = ~np.isin(np.array(test.class_names, object)[test.labels], screened.trained_classes)
    if not unseen.any():
        return JudgedTraining(reason="all images to test on were trained on")
    images, keys = test.subset(np.flatnonzero(unseen)), keys[unseen]
    device, frozen = embedder.device, config.model.freeze
    # The trained network first: with a frozen part its pass stores rows for the others.
    trained = _embedded(embedder, images, keys, frozen)
    vectors = {"trained": trained.rows}
    vectors[PRETRAINED] = _embedded(load_initial_model(config).embedder.to(device), images, keys, frozen).rows
    if steps and config.model.whitening == "all":
        start = make_embedder(config.model, config.run.seed).to(device).eval()
        closed_form = replace(config, run=replace(config.run, head_steps=0))
        chosen = whitening_images(closed_form, train)
        if chosen is not None:
            start_last_layer(closed_form, start, chosen, train)
            vectors[START] = _embedded(start, images, keys, frozen).rows
    read = np.all([np.isfinite(rows[:, 0]) for rows in vectors.values()], axis=0)
    labels = images.labels[read]
    if len(labels) < 2 or np.bincount(labels).max() < 2:
        return JudgedTraining(skipped=trained.skipped, reason="no held-out class has two images that can be read")
    found = {name: _evaluation(rows[read], labels) for name, rows in vectors.items()}
    verdicts = {name: verdict(found[name], found["trained"]) for name in (PRETRAINED, START) if name in found}
    if not steps:
        verdicts = {name: replace(each, subject=CLOSED_FORM) for name, each in verdicts.items()}
    return JudgedTraining(verdicts, trained.skipped, remarks=_remarks(test, images, labels, known, keys))


def _remarks(test: ImageSet, images: ImageSet, read: NDArray[np.int64], known: TrainedOn, keys: Keys) -> list[Remark]:
    """Which held-out classes a verdict leaves out, and how many of its images were trained on.

    Args:
        test: the images held out. images: those of unseen classes, with their ``keys``.
        read: labels of those that could be read.
        known: what was trained on.
    """
    sizes = np.bincount(read, minlength=len(images.class_names))
    here = np.bincount(images.labels, minlength=len(images.class_names)) > 0
    trained = len(np.unique(test.labels)) - int(here.sum())
    missing = (
        (trained, "class that was trained on/classes that were trained on"),
        (
            int((here & (sizes == 0)).sum()),
            "class without an image that can be read/classes without an image that can be read",
        ),
        (int((sizes == 1).sum()), "class with a single image/classes with a single image"),
    )
    said = "; ".join(number_of(count, words) for count, words in missing if count)
    remarks = [Remark(f"not included: {said}")] if said else []
    copies = exclude_trained_classes(images, keys, known, "keep").trained_images
    if copies:
        count = number_of(copies, "image of the held-out classes was/images of the held-out classes were")
        remarks.append(Remark(f"{count} trained on, in other classes", warning=True))
    return remarks


def _embedded(embedder: Embedder, images: ImageSet, keys: Any, frozen: str) -> SetRows:
    with torch.no_grad():
        return embed_set(embedder, images, keys=keys, frozen=frozen, on_bad_image="skip")


def _evaluation(vectors: Any, labels: Any) -> Evaluation:
    return evaluate(vectors, labels, ks=(1, 10), metrics=("r@k", "map@r"))


def judge_training(training: Training, steps: int, remark: Callable[[str], None]) -> JudgedTraining:
    """The verdicts on a training that is done, each told to ``remark``. What goes wrong with them is told, too.

    Args:
        training: after its last step, with the chosen weights in its network.
        steps: number of steps taken.
        remark: called with each line.
    """
    config, held_out, found = training.config, training.sets.held_out, JudgedTraining()
    if held_out is None:
        if config.run.verdict and config.data.train_split != "all":  # the plan has said so
            remark("verdict    none: there are no classes to test on that were not trained on")
        return found

    def work() -> None:
        nonlocal found
        try:
            found = judge(config, training.network.embedder, training.sets.train, held_out, steps)
        except RecollectError as error:
            found.reason = str(error)

    training.machine.team.first_alone(work)
    if found.reason:
        remark(f"verdict    none: {found.reason}")
    words = {PRETRAINED: f"{config.model.init} without training", START: "its own start (0 steps)"}
    for name, each in found.verdicts.items():
        classes = number_of(each.classes, "held-out class")
        remark(f"verdict    against {words[name]}, on {classes}: {each.sentence()}")
    for line in found.remarks:
        remark(f"verdict    {line}")
    return found
