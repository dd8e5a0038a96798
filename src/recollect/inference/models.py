"""Opens the network that a user names: a run, a saved embedder or an initialisation; and reads run folders.

``open_model`` is the one rule for every command. For a finished run it opens the embedder in its folder ``model``; if that
is incomplete, it is refused and never replaced by other weights. For an unfinished run it uses the last checkpoint, and
``remark`` says so. For a name it opens the pre-trained network without training, as in the recipes of *init* rows.
``load_initial_model`` returns the weights that a run started from. ``load``, ``embed`` and ``export_onnx`` are functions of
the Python API. ``training/run.py`` writes what ``RunFiles`` reads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError, DataWarning
from recollect.common.machine import usable_precision
from recollect.common.reading import parse_yaml, read_json, read_text, read_torch, sha256
from recollect.config.automatic import is_pretrained
from recollect.config.resolve import from_mapping, missing_groups, untrusted_names
from recollect.config.schema import Config, DataConfig, ModelConfig
from recollect.data import ImageSet, list_images
from recollect.models import Embedder, onnx_export
from recollect.models.backbones import add_lora, merge_lora
from recollect.models.saving import DESCRIPTION, MODEL, TENSORS, hub_folder, is_hub_address, parse_address
from recollect.models.zoo import find

logger = logging.getLogger(__name__)

TO_END, END = ", up to the line of its end.", "# The end."
"""Start and end of a ``config.yaml``, by which a truncated one is recognized; files of earlier versions do not have them."""

CHECKPOINT_FORMAT = 1
CHECKPOINT_REMEDY = (
    "Restore it from a complete copy, or remove checkpoints/last.pt: the run then starts again from its first step."
)
_EMBEDDER_SETTINGS = (
    *("options", "weights", "download", "dim", "pooling", "p", "learn_p", "layer_norm", "l2_before_head", "batch_norm"),
    *("resize", "interpolation", "normalization"),
)
_MANIFEST_GROUPS = ("versions", "machine", "data", "weights", "plan", "outcome", "pruned", "verdicts")


class RunFiles:
    """Paths of a run, and the content of its small files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.manifest_file = path / "manifest.json"
        self.last = path / "checkpoints" / "last.pt"
        self.model = path / "model"

    @property
    def is_run(self) -> bool:
        """Whether there is a run."""
        return self.config_file.is_file()

    def read_config(self) -> Config:
        """The run's configuration, with the current folder of its images and with its references sealed.

        The folder of the images is the recorded one, or the one relative to the run if both were moved together.

        Raises:
            DataError: the file is incomplete: missing settings would silently get defaults. ConfigError: it is not
                valid.
        """
        text = read_text(self.config_file)
        values = parse_yaml(text, str(self.config_file))
        missing = missing_groups(values) if isinstance(values, Mapping) else ["everything"]
        if TO_END in text.partition("\n")[0] and f"\n{END}" not in text:
            missing = missing or ["the end"]
        if missing:
            what = f"incomplete, {', '.join(missing)} is missing"
            raise DataError(f"{self.config_file}: {what}. Restore it from a complete copy.")
        config = untrusted_names(from_mapping(values, str(self.config_file)))
        relative, changes = dict[str, str](), dict[str, Any]()
        with contextlib.suppress(DataError):  # reported by the callers that need the manifest
            relative = self.read_manifest().get("data", {}).get("relative") or {}
        for name in ("root", "validation_root"):
            root = getattr(config.data, name)
            if root is not None and name in relative and not Path(root).expanduser().exists():
                moved = Path(os.path.normpath(self.path.absolute() / relative[name]))
                changes[name] = str(moved) if moved.exists() else root
        if config.data.name == "folder":  # which folders are the classes was settled when the run was trained
            changes["options"] = {**config.data.options, "nested": True}
        return replace(config, data=replace(config.data, **changes))

    def read_manifest(self) -> dict[str, Any]:
        """The content of ``manifest.json``; empty if there is none.

        Raises:
            DataError: it is damaged.
        """
        if not self.manifest_file.exists():
            return {}
        content: dict[str, Any] = read_json(self.manifest_file, dict)
        content = {name: value for name, value in content.items() if value is not None}
        if wrong := [group for group in _MANIFEST_GROUPS if not isinstance(content.get(group, {}), dict)]:
            raise DataError(f"{self.manifest_file}: {wrong[0]} is not what recollect writes. Restore a complete copy.")
        return content


def refuse_moved(data: DataConfig) -> None:
    """Check that the folder of a run's images is there.

    Raises:
        DataError: it is not; the message says how to name another.
    """
    if data.root is not None and not Path(data.root).expanduser().exists():
        what = "name their list" if Path(data.root).suffix else "name their folder"
        raise DataError(f"the run's images are no longer in {data.root}: {what} with --root.")


def absolute_paths(config: Config) -> Config:
    """``config`` with absolute paths of images and starting weights, as ``config.yaml`` keeps them: a run is used from any
    folder.
    """
    data, model = config.data, config.model
    data = replace(data, root=_absolute(data.root), validation_root=_absolute(data.validation_root))
    if model.weights != "none":
        model = replace(model, weights=_absolute(model.weights))
    return replace(config, data=data, model=model)


def places_of_images(data: DataConfig, run: Path) -> dict[str, Any]:
    """Where the images are, for ``manifest.json``: ``"root"``, and ``"relative"`` to the run."""
    relative: dict[str, str] = {}
    for name in ("root", "validation_root"):
        if (root := getattr(data, name)) is not None:
            with contextlib.suppress(ValueError):  # another drive
                relative[name] = Path(os.path.relpath(Path(root).expanduser(), run)).as_posix()
    return {"root": _absolute(data.root), "relative": relative}


def _absolute(path: str | None) -> str | None:
    # Links are not resolved: the user chose that name.
    return None if path is None else os.path.abspath(Path(path).expanduser())  # noqa: PTH100


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint with at least a model's weights, on the CPU; no code in the file is ever run.

    Raises:
        DataError: it cannot be read, or is not a checkpoint.
    """
    try:
        content = read_torch(path)
    except DataError as error:
        raise DataError(f"{error} {CHECKPOINT_REMEDY}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise DataError(f"{path}: not a checkpoint with a model. {CHECKPOINT_REMEDY}")
    if content.get("format") != CHECKPOINT_FORMAT:
        raise DataError(f"{path}: checkpoint format {content.get('format')}; only {CHECKPOINT_FORMAT} is known here.")
    return content


@dataclass(frozen=True)
class LoadedModel:
    """An opened model and where it came from.

    Attributes:
        embedder: in evaluation mode.
        name: short, for titles.
        weights: which weights these are, in a few words.
        provenance: its record in results: ``model``, and ``sha256`` of the weights or ``weights``, the user's choice of them.
        folder: of the run or the embedder; None for an initialisation.
        run: the run it comes from, if any. recipe: the settings of an initialisation.
        remark: a message for the user, if any.
    """

    embedder: Embedder
    name: str
    weights: str
    provenance: dict[str, str | None]
    folder: Path | None = None
    run: RunFiles | None = None
    recipe: Config | None = None
    remark: str | None = None

    @cached_property
    def config(self) -> Config | None:
        """Its settings, read when first needed; None if there are none, or if a finished run's cannot be read."""
        with contextlib.suppress(ConfigError, DataError):
            return self.recipe if self.run is None else self.run.read_config()
        return None

    @property
    def frozen(self) -> str | None:
        """The stage up to which training froze the network."""
        return None if self.config is None else self.config.model.freeze

    @property
    def results(self) -> Path:
        """The default folder for results of evaluations."""
        kind = "hub" if is_hub_address(self.provenance.get("model")) else "init"
        return (self.folder or Path("runs") / f"{kind}-{self.name}") / "eval"


def open_model(
    model: str | Path,
    *,
    weights: str | None = None,
    download: bool = False,
    device: str | torch.device | None = None,
    recipe: Config | None = None,
    dim: int | None = None,
    precision: str | None = None,
) -> LoadedModel:
    """Open a run, a saved embedder or an initialisation.

    Args:
        model: the folder of a run, the folder of an embedder, ``hf://user/name`` of the Hugging Face Hub, or a name of
            ``recollect models`` (or ``timm:…``).
        weights: file or folder of an initialisation's weights.
        download: download them if they are missing.
        device: the device; the CPU by default.
        recipe: settings for an initialisation; by default its plain features are used.
        dim: shorten its vectors to this many numbers (``Embedder.shortened``).
        precision: of its network: ``"fp32"`` by default, ``"bf16"``, ``"fp16"`` or ``"auto"``.

    Raises:
        DataError: no such folder, or neither a run nor an embedder. WeightsError: the weights are missing or damaged.
        ConfigError: an unknown initialisation, or one with random weights; ``weights`` for anything else.
    """
    path, text = Path(model), str(model)
    if weights is not None and (is_hub_address(model) or path.is_dir()):
        raise ConfigError(f"{model} has weights of its own: remove --weights {weights}, which is for initialisations.")
    if is_hub_address(model):
        folder, address = hub_folder(text, download=download)
        loaded = _open_embedder(folder, parse_address(text).repository.replace("/", "--"), address, address)
    elif path.is_dir() and RunFiles(path).is_run:
        loaded = _open_run(RunFiles(path))
    elif path.is_dir():
        folder = path if (path / DESCRIPTION).is_file() else path / MODEL
        if not (folder / DESCRIPTION).is_file():
            raise DataError(f"{path} is neither a run (no config.yaml) nor a saved embedder (no {DESCRIPTION}).")
        loaded = replace(_open_embedder(folder, path.resolve().name, "trained", str(path.resolve())), folder=path)
    else:
        loaded = _open_initialisation(model, weights, download, recipe)
    if dim is not None:
        loaded = replace(loaded, embedder=loaded.embedder.shortened(dim))
    if device is not None:
        loaded.embedder.to(device)
    loaded.embedder.precision = usable_precision(precision or "fp32", loaded.embedder.device)
    loaded.embedder.eval()
    return loaded


def _open_embedder(folder: Path, name: str, weights: str, address: str, backbone: str | None = None) -> LoadedModel:
    embedder = Embedder.load(folder, backbone=backbone)
    digest = read_json(folder / DESCRIPTION, dict)["sha256"][TENSORS]  # which ``Embedder.load`` compared with the file
    return LoadedModel(embedder, name, weights, {"model": address, "sha256": digest})


def _open_run(run: RunFiles) -> LoadedModel:
    path, outcome = run.path, run.read_manifest().get("outcome")
    if outcome is None and not (run.model / DESCRIPTION).is_file():
        return _open_checkpoint(run)
    for name in (TENSORS, DESCRIPTION):
        if not (run.model / name).is_file():
            raise DataError(f"{path}: the run is finished, but {run.model / name} is missing. Restore it from a copy.")
    step = None if outcome is None else outcome.get("chosen_step")
    weights = "trained" if step is None else f"weights of step {step:,}"
    network = read_json(run.model / DESCRIPTION, dict).get("embedder")
    # Of code from outside the package, only the settings name the folder.
    is_outside = isinstance(network, dict) and network.get("code") is not None
    backbone = run.read_config().model.init if is_outside else None
    loaded = _open_embedder(run.model, path.resolve().name, weights, str(path.resolve()), backbone)
    loaded = replace(loaded, folder=path, run=run)
    if step == 0 and loaded.config is not None and loaded.config.model.whitening is not None:
        loaded = replace(loaded, weights="last layer as a whitening, without a step")
    return loaded


def _open_checkpoint(run: RunFiles) -> LoadedModel:
    path, config = run.path, run.read_config()
    if not run.last.is_file():
        raise DataError(
            f"{path}: the run has neither a model nor a checkpoint yet. Resume it with recollect train --resume {path}."
        )
    # Without its pre-trained weights, which the checkpoint replaces anyway and which may be missing.
    embedder = make_embedder(replace(config.model, weights="none"), config.run.seed)
    content = read_checkpoint(run.last)
    if config.model.lora is not None:
        add_lora(embedder.backbone, config.model.lora)
    try:
        embedder.load_state_dict({**content["model"], **content.get("average", {}).get("values", {})})
    except RuntimeError as error:
        raise DataError(f"{run.last}: not a checkpoint of this network ({str(error).splitlines()[0]}).") from error
    merge_lora(embedder.backbone)
    step = (content.get("progress") or {}).get("step")
    words = "the last checkpoint" if step is None else f"the last checkpoint, after step {step:,},"
    return LoadedModel(
        embedder,
        path.resolve().name,
        "last checkpoint of an unfinished run",
        {"model": str(path.resolve()), "sha256": sha256(run.last)},
        path,
        run,
        remark=f"{path} is not finished: {words} is used ({run.last}).",
    )


def _open_initialisation(model: str | Path, weights: str | None, download: bool, recipe: Config | None) -> LoadedModel:
    name = str(model)
    is_path = ("/" in name or "\\" in name) and not name.startswith("timm:") and not plugins.is_reference(name)
    if isinstance(model, Path) or is_path:
        raise DataError(f"{model}: no such run or folder of a saved embedder.")
    try:
        pretrained = find(name).pretrained and weights != "none"
    except ConfigError as error:
        raise ConfigError(f"{name!r} is neither a folder nor an initialisation: {error}") from error
    if recipe is not None and recipe.model.init == name:
        settings = recipe.model
        settings = replace(settings, weights=weights or settings.weights, download=download or settings.download)
        embedder = make_embedder(settings, recipe.run.seed)
    elif not pretrained:
        # Its weights differ each time it is created, so its vectors could not be compared with earlier ones.
        raise ConfigError(f"{name} without training has random weights: train it first, and give the run.")
    else:
        embedder = Embedder.create(name, weights=weights, dim=None, download=download)
    provenance = {"model": name, "weights": weights}
    return LoadedModel(embedder, name, f"{name} without training", provenance, recipe=recipe)


def load_initial_model(config: Config) -> LoadedModel:
    """The network that a run started from. A pre-trained network is returned without the new, random last layer."""
    model, words = config.model, f"{config.model.init}, random weights"
    if is_pretrained(model):
        words = f"{model.init} without training, without the new last layer"
        model = replace(model, dim=None, pooling=None, layer_norm=None, l2_before_head=None, stages=0)
    embedder = make_embedder(model, config.run.seed).eval()
    return LoadedModel(embedder, "init", words, {"model": model.init, "weights": model.weights}, recipe=config)


def make_embedder(model: ModelConfig, seed: int, module: nn.Module | None = None) -> Embedder:
    """The embedder of a configuration at the start of training, with seeded new layers; ``module``: its backbone."""
    torch.manual_seed(seed)
    stages = 0 if model.stages == "auto" else model.stages
    settings = {name: getattr(model, name) for name in _EMBEDDER_SETTINGS}
    return Embedder.create(model.init if module is None else module, size=model.image_size, stages=stages, **settings)


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
    with plugins.trusting(trust):
        if backbone is not None:
            return Embedder.load(model, device, backbone=backbone)
        loaded = open_model(model, weights=weights, download=download, device=device)
    if loaded.remark is not None:
        logger.warning(loaded.remark)
    return loaded.embedder


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
    paths: Any = [images] if isinstance(images, str | Path) else images
    folders = isinstance(paths, list | tuple) and any(isinstance(p, str | Path) and Path(p).is_dir() for p in paths)
    if folders or paths is not images:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # about labels, which vectors do not have
            paths = list_images(paths).paths
    return embedder.embed(paths, batch_size=batch_size, device=device, on_bad_image=on_bad_image, progress=progress)


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
        loaded = open_model(model, dim=dim, download=download)
        embedder = loaded.embedder
        if loaded.remark is not None:
            logger.info(loaded.remark)
    path = Path(path)
    difference = onnx_export.export_onnx(embedder, path, overwrite=overwrite)
    size, limit = path.stat().st_size / 2**20, onnx_export.TOLERANCE
    logger.info(f"{path}: {size:.1f} MB, differs from the model by at most {difference:.1e} (limit {limit:.0e}).")
    reference = onnx_export.reference_path(path)
    logger.info(f"{reference}: preprocess() computes the input pixels; it needs only numpy and Pillow.")
    return difference
