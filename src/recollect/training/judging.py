"""Whether a training helped: the trained network beside the pre-trained one, on the classes that were held out.

Vectors come through the vector store, so with a frozen part the test images go through the network once for all three
networks, and ``recollect eval`` and ``recollect report`` find them there. Images that cannot be read are left out: a
broken test photo must not cost a training.
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
"""What is compared with: the pre-trained network without training, and the last layer as it started (0 steps)."""


def judge(config: Config, embedder: Embedder, train: ImageSet, test: ImageSet, steps: int) -> dict[str, Verdict]:
    """Verdicts by what they compare with; empty where there is nothing to compare on or with.

    Args:
        config: of the training.
        embedder: what came of it.
        train: the training images.
        test: images of held-out classes; trained classes among them are left out.
        steps: how many were taken; without any, the start is the result.
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
    # First the trained one: with a frozen part its pass keeps rows for the others.
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
    """The verdicts on a training that is done, each told to ``remark``. What goes wrong with them is told, too.

    Args:
        training: after its last step, the weights that were chosen in its network.
        steps: how many were taken.
        remark: receives lines.
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
