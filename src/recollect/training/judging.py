"""The verdict: compares the trained network with the pre-trained one on the held-out classes.

Vectors come from the vector store, so with a frozen part the test images are embedded once for all three networks, and
``recollect eval`` and ``recollect report`` reuse them. Images that cannot be read are left out: a broken test photo must
not end a training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from recollect.common.errors import RecollectError
from recollect.config.automatic import is_pretrained
from recollect.config.schema import Config
from recollect.data import ImageSet
from recollect.evaluation import Evaluation, Verdict, evaluate, verdict
from recollect.inference.content_keys import content_keys
from recollect.inference.embedding_sets import embed_set
from recollect.inference.opening import make_embedder, open_start
from recollect.inference.trained_on import screen, trained_on
from recollect.models import Embedder
from recollect.training.build import Training
from recollect.training.last_layer import start_last_layer, whitening_images

PRETRAINED, START = "pretrained", "start"
"""The baselines: the pre-trained network without training, and the initial last layer (0 steps)."""


def judge(config: Config, embedder: Embedder, train: ImageSet, test: ImageSet, steps: int) -> dict[str, Verdict]:
    """Verdicts by baseline; empty if there are no test images or no baseline.

    Args:
        config: settings of the training.
        embedder: the trained network.
        train: the training images.
        test: images of held-out classes; trained classes among them are left out.
        steps: number of steps taken; with none, the start is the result.
    """
    if not is_pretrained(config.model):
        return {}
    keys = content_keys(test)
    known = trained_on(train)
    screened = screen(test, keys, known, "keep")
    unseen = ~np.isin(np.array(test.class_names, object)[test.labels], screened.trained_classes)
    if not unseen.any():
        return {}
    images, keys = test.subset(np.flatnonzero(unseen)), keys[unseen]
    device, frozen = embedder.device, config.model.freeze
    # The trained network first: with a frozen part its pass stores rows for the others.
    vectors = {"trained": _vectors(embedder, images, keys, frozen)}
    vectors[PRETRAINED] = _vectors(open_start(config).embedder.to(device), images, keys, frozen)
    if steps and frozen == "pooling" and config.model.whitening == "all":
        start = make_embedder(config.model, config.run.seed).to(device).eval()
        chosen = whitening_images(config, train)
        if chosen is not None:
            start_last_layer(config, start, chosen, train)
            vectors[START] = _vectors(start, images, keys, frozen)
    read = np.all([np.isfinite(rows[:, 0]) for rows in vectors.values()], axis=0)
    labels = images.labels[read]
    if len(labels) < 2 or np.bincount(labels).max() < 2:
        return {}
    found = {name: _evaluation(rows[read], labels) for name, rows in vectors.items()}
    return {name: verdict(found[name], found["trained"]) for name in (PRETRAINED, START) if name in found}


def _vectors(embedder: Embedder, images: ImageSet, keys: Any, frozen: str) -> Any:
    with torch.no_grad():
        return embed_set(embedder, images, keys=keys, frozen=frozen, on_bad_image="skip").vectors


def _evaluation(vectors: Any, labels: Any) -> Evaluation:
    return evaluate(vectors, labels, ks=(1, 10), metrics=("r@k", "map@r"))


def judge_training(training: Training, steps: int, remark: Callable[[str], None]) -> dict[str, Verdict]:
    """The verdicts on a finished training, each reported to ``remark``, as are errors.

    Args:
        training: after its last step, with the chosen weights in its network.
        steps: number of steps taken.
        remark: called with each line.
    """
    config, held_out, found = training.config, training.sets.held_out, dict[str, Verdict]()
    if held_out is None:
        return found

    def work() -> None:
        try:
            found.update(judge(config, training.network.embedder, training.sets.train, held_out, steps))
        except RecollectError as error:
            remark(f"verdict    none: {error}")

    training.machine.team.first_alone(work)
    words = {PRETRAINED: f"{config.model.init} without training", START: "its own start (0 steps)"}
    for name, each in found.items():
        said = each.sentence("training" if steps else "the closed form")
        remark(f"verdict    against {words[name]}, on {each.classes:,} held-out classes: {said}")
    return found
