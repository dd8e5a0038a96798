"""What a run's images are embedded with: the weights it started from and those that came out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

from recollect.common.errors import DataError
from recollect.common.files import sha256
from recollect.config.schema import Config
from recollect.report.runs import Run

if TYPE_CHECKING:
    from recollect.models import Embedder


def _from_scratch(config: Config) -> bool:
    from recollect.config.automatic import is_pretrained

    return not is_pretrained(config.model)


def initial(config: Config) -> Embedder:
    """What training started from. Pre-trained networks are taken as they come, without the new, random last layer."""
    from recollect.models import Embedder
    from recollect.training.build import make_embedder

    if _from_scratch(config):
        return make_embedder(config.model, config.run.seed)
    model = config.model
    return Embedder.create(
        model.init,
        weights=model.weights,
        dim=None,
        size=model.image_size,
        resize=model.resize,
        normalization=model.normalization,
    )


def trained(run: Run) -> Embedder:
    """The run's model; of a run without one, the weights of its last checkpoint."""
    from recollect.models import Embedder
    from recollect.training.build import make_embedder
    from recollect.training.checkpoint import read_checkpoint

    if (run.folder.model / "model.safetensors").is_file():
        return Embedder.load(run.folder.model)
    if not run.folder.last.is_file() or run.config is None:
        raise DataError(f"{run.folder.path}: the run has neither a model nor a checkpoint yet.")
    # Without its pre-trained weights, which the checkpoint replaces anyway and which may not be here.
    embedder = make_embedder(dataclasses.replace(run.config.model, weights="none"), run.config.run.seed)
    try:
        embedder.load_state_dict(read_checkpoint(run.folder.last)["model"])
    except (RuntimeError, KeyError) as error:
        raise DataError(f"{run.folder.last}: not a checkpoint of this network ({error}).") from error
    return embedder


def initial_words(run: Run) -> str:
    """In a few words, what ``initial`` gives."""
    if run.config is not None and _from_scratch(run.config):
        return f"{run.config.model.init}, random weights"
    return f"{run.setting('model.init')} as it comes, without the new last layer"


def trained_words(run: Run) -> str:
    """In a few words, what ``trained`` gives."""
    if not (run.folder.model / "model.safetensors").is_file():
        return "last checkpoint of a run that is not finished"
    step = run.manifest.get("outcome", {}).get("chosen_step") if run.finished else None
    return "trained" if step is None else f"weights of step {step:,}"


def init_key(run: Run) -> str:
    """Equal for runs that started from the same weights."""
    config = run.config
    if config is None:
        return ""
    seed = config.run.seed if _from_scratch(config) else None
    facts = [dataclasses.asdict(config.model), seed, run.manifest.get("weights")]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def trained_key(run: Run) -> str:
    """Changes when the trained weights do."""
    for path in (run.folder.model / "model.safetensors", run.folder.last):
        if path.is_file():
            return sha256(path)
    return ""
