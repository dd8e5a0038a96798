"""``open_model``: opens the network that a user names: a run, a saved embedder or an initialisation.

One rule for every command. For a finished run it opens the embedder in its folder ``model``; if that is incomplete, it is
refused and never replaced by other weights. For an unfinished run it uses the last checkpoint, and ``remark`` says so. For
a name it opens the pre-trained network without training, as in the recipes of *init* rows. ``open_start`` returns the
weights that a run started from.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError
from recollect.common.files import sha256
from recollect.config.automatic import is_pretrained
from recollect.config.schema import Config, ModelConfig
from recollect.inference.run_files import RunFiles, read_checkpoint
from recollect.models import Embedder
from recollect.models.hub import hub_folder, is_hub_address, parse_address
from recollect.models.saving import DESCRIPTION, MODEL, TENSORS
from recollect.models.zoo import find

_OF_AN_EMBEDDER = (DESCRIPTION, TENSORS, f"{MODEL}/{DESCRIPTION}")


@dataclass(frozen=True)
class Opened:
    """A network and its description.

    Attributes:
        embedder: in evaluation mode.
        name: short, for titles.
        weights: which weights these are, in a few words.
        source: its record in results: ``model``, and ``sha256`` of the weights or ``weights``, the user's choice of them.
        folder: of the run or the embedder; None for an initialisation.
        run: the run it comes from, if any. config: its settings, if they can be read.
        remark: a message for the user, if any.
    """

    embedder: Embedder
    name: str
    weights: str
    source: dict[str, str | None]
    folder: Path | None = None
    run: RunFiles | None = None
    config: Config | None = None
    remark: str | None = None

    @property
    def frozen(self) -> str | None:
        """The stage up to which training froze the network."""
        return None if self.config is None else self.config.model.freeze

    @property
    def results(self) -> Path:
        """The default folder for results of evaluations."""
        kind = "hub" if is_hub_address(self.source.get("model")) else "init"
        return (self.folder or Path("runs") / f"{kind}-{self.name}") / "eval"


def open_model(
    model: str | Path,
    *,
    weights: str | None = None,
    download: bool = False,
    device: str | torch.device | None = None,
    recipe: Config | None = None,
    dim: int | None = None,
) -> Opened:
    """Open a run, a saved embedder or an initialisation.

    Args:
        model: the folder of a run, the folder of an embedder, ``hf://user/name`` of the Hugging Face Hub, or a name of
            ``recollect models`` (or ``timm:…``).
        weights: file or folder of an initialisation's weights.
        download: download them if they are missing.
        device: the device; the CPU by default.
        recipe: settings for an initialisation; by default its plain features are used.
        dim: shorten its vectors to this many numbers (``Embedder.shortened``).

    Raises:
        DataError: no such folder, or neither a run nor an embedder. WeightsError: the weights are missing or damaged.
        ConfigError: an unknown initialisation, or one with random weights; ``weights`` for anything else.
    """
    check_model(model)
    path = Path(model)
    if weights is not None and (is_hub_address(model) or path.is_dir()):
        raise ConfigError(f"{model} has weights of its own: remove --weights {weights}, which is for initialisations.")
    if is_hub_address(model):
        opened = _from_hub(str(model), download)
    elif path.is_dir():
        opened = _run(RunFiles(path)) if RunFiles(path).is_run else _embedder(path)
    else:
        opened = _initialisation(str(model), weights, download, recipe)
    if dim is not None:
        opened = dataclasses.replace(opened, embedder=opened.embedder.shortened(dim))
    if device is not None:
        opened.embedder.to(device)
    opened.embedder.eval()
    return opened


def check_model(model: str | Path) -> None:
    """Check that ``open_model`` can open ``model``, without opening it.

    Raises:
        DataError: no such folder, or neither a run nor an embedder. ConfigError: no such initialisation.
    """
    path, text = Path(model), str(model)
    if is_hub_address(model):
        parse_address(text)
        return
    if path.is_dir():
        if not RunFiles(path).is_run and not any((path / name).exists() for name in _OF_AN_EMBEDDER):
            raise DataError(
                f"{path} is neither a run (it has no config.yaml) nor a saved embedder (it has no {DESCRIPTION})."
            )
        return
    is_path = ("/" in text or "\\" in text) and not text.startswith("timm:") and not plugins.is_reference(text)
    if isinstance(model, Path) or is_path:
        raise DataError(f"{model}: no such run or folder of a saved embedder.")
    try:
        find(text)
    except ConfigError as error:
        raise ConfigError(f"{text!r} is neither a folder nor an initialisation: {error}") from error


def open_start(config: Config) -> Opened:
    """The network that a run started from. A pre-trained network is returned without the new, random last layer."""
    model = config.model
    if not is_pretrained(model):
        words = f"{model.init}, random weights"
        embedder = make_embedder(model, config.run.seed)
    else:
        words = f"{model.init} without training, without the new last layer"
        embedder = Embedder.create(
            model.init,
            options=model.options,
            weights=model.weights,
            dim=None,
            size=model.image_size,
            resize=model.resize,
            interpolation=model.interpolation,
            normalization=model.normalization,
        )
    return Opened(embedder.eval(), "init", words, {"model": model.init, "weights": model.weights}, config=config)


def make_embedder(model: ModelConfig, seed: int, module: nn.Module | None = None) -> Embedder:
    """The embedder of a configuration at the start of training, with seeded new layers; ``module``: its backbone."""
    torch.manual_seed(seed)
    return Embedder.create(
        model.init if module is None else module,
        options=model.options,
        weights=model.weights,
        dim=model.dim,
        pooling=model.pooling,
        p=model.p,
        learn_p=model.learn_p,
        layer_norm=model.layer_norm,
        l2_before_head=model.l2_before_head,
        batch_norm=model.batch_norm,
        size=model.image_size,
        resize=model.resize,
        interpolation=model.interpolation,
        normalization=model.normalization,
        download=model.download,
    )


def _words(step: int | None, config: Config | None) -> str:
    if step == 0 and config is not None and config.model.whitening is not None:
        return "last layer as a whitening, without a step"
    return "trained" if step is None else f"weights of step {step:,}"


def _run(run: RunFiles) -> Opened:
    path, manifest = run.path, run.read_manifest()
    outcome = manifest.get("outcome")
    if isinstance(outcome, dict) or (run.model / DESCRIPTION).is_file():
        missing = [name for name in (TENSORS, DESCRIPTION) if not (run.model / name).is_file()]
        if missing:
            raise DataError(
                f"{path}: the run is finished, but {run.model / missing[0]} is missing. Restore it from a copy; "
                "other weights are never used instead."
            )
        step = outcome.get("chosen_step") if isinstance(outcome, dict) else None
        config = _config(run)
        init = None if config is None else config.model.init
        return Opened(
            Embedder.load(run.model, backbone=init if init is not None and plugins.is_reference(init) else None),
            path.resolve().name,
            _words(step, config),
            _source(path, run.model / TENSORS),
            path,
            run,
            config,
        )
    if not run.last.is_file():
        raise DataError(
            f"{path}: the run has neither a model nor a checkpoint yet. Resume it with recollect train --resume {path}."
        )
    config = run.read_config()
    # Without its pre-trained weights, which the checkpoint replaces anyway and which may be missing.
    embedder = make_embedder(dataclasses.replace(config.model, weights="none"), config.run.seed)
    content = read_checkpoint(run.last)
    try:
        embedder.load_state_dict(content["model"])
    except RuntimeError as error:
        raise DataError(f"{run.last}: not a checkpoint of this network ({str(error).splitlines()[0]}).") from error
    progress = content.get("progress")
    step = progress.get("step") if isinstance(progress, dict) else None
    words = "the last checkpoint" if step is None else f"the last checkpoint, after step {step:,},"
    return Opened(
        embedder,
        path.resolve().name,
        "last checkpoint of an unfinished run",
        _source(path, run.last),
        path,
        run,
        config,
        f"{path} is not finished: {words} is used ({run.last}).",
    )


def _config(run: RunFiles) -> Config | None:
    """Settings, if they can be read: a finished model does not need them."""
    try:
        return run.read_config()
    except (ConfigError, DataError):
        return None


def _from_hub(address: str, download: bool) -> Opened:
    folder, found = hub_folder(address, download=download)
    embedder = Embedder.load(folder)
    name = parse_address(address).repository.replace("/", "--")
    return Opened(embedder, name, found, {"model": found, "sha256": sha256(folder / TENSORS)})


def _embedder(folder: Path) -> Opened:
    embedder = Embedder.load(folder)
    place = folder if (folder / DESCRIPTION).is_file() else folder / MODEL
    return Opened(embedder, folder.resolve().name, "trained", _source(folder, place / TENSORS), folder)


def _source(folder: Path, weights: Path) -> dict[str, str | None]:
    return {"model": str(folder.resolve()), "sha256": sha256(weights)}


def _initialisation(name: str, weights: str | None, download: bool, recipe: Config | None) -> Opened:
    pretrained = find(name).pretrained and weights != "none"
    if recipe is not None and recipe.model.init == name:
        model = recipe.model
        model = dataclasses.replace(model, weights=weights or model.weights, download=download or model.download)
        embedder = make_embedder(model, recipe.run.seed)
    elif not pretrained:
        # Its weights differ each time it is created, so its vectors could not be compared with earlier ones.
        raise ConfigError(f"{name} without training has random weights: train it first, and give the run.")
    else:
        embedder = Embedder.create(name, weights=weights, dim=None, download=download)
    words = f"{name} without training"
    return Opened(embedder, name, words, {"model": name, "weights": weights}, config=recipe)
