"""Every setting of a training run, one frozen dataclass per component, and the checks for settings that contradict.

A field's default is that of the paper or its released settings. Where that depends on data and machine, it is ``"auto"``:
``automatic.py`` chooses the value before the first step and gives the reason. ``overrides.py`` fills these classes from
recipes and the command line. To add a setting: add a field here with its docstring, a number with its range
(``ranged``), use it where it applies, and add a check below if it can contradict another setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.data.registry import AUGMENTATIONS
from recollect.data.sources.revisited import SFM_NAME

Auto = Literal["auto"]


@dataclass(frozen=True)
class Range:
    """The valid values of a numeric setting. Bounds are included unless marked as open."""

    low: float
    high: float
    above: bool = False
    """The lower bound itself is left out."""
    below: bool = False
    """The upper bound itself is left out."""

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (
            (self.above and value == self.low) or (self.below and value == self.high)
        )

    def __str__(self) -> str:
        low = f"above {self.low:,}" if self.above else f"{self.low:,} or more"
        return f"{low} and {f'below {self.high:,}' if self.below else f'at most {self.high:,}'}"


def ranged(default: Any, low: float, high: float, *, above: bool = False, below: bool = False) -> Any:
    """A setting with a range; in a list of numbers, every number must be in it."""
    return field(default=default, metadata={"range": Range(low, high, above, below)})


_MANY = 10**9  # more steps, images or classes than any data set has


@dataclass(frozen=True)
class DataConfig:
    """The images, and how they are read and augmented."""

    name: str = "glyphs"
    """A data set of ``recollect data``, ``folder`` for a folder of your own, or a reference: ``my.py:load_mine``."""
    root: str | None = None
    """The folder of the data set."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that data set."""
    train_split: str = "train"
    """The split to train on."""
    test_split: str = "test"
    """The split that ``run.watch_test`` evaluates."""
    validation: Literal["none", "paper", "random", "sfm120k"] = "none"
    """Which half of the training classes is held out for validation: the second half, or a random one. ``sfm120k``: use
    the validation queries of SfM-120k (instance search); no training class is held out."""
    validation_root: str | None = None
    """The folder of ``sfm120k``; None for ``root``."""
    augmentation: str = "auto"
    """``crop``: random resized crop, as in the released code; ``glyph``: slight rotations and shifts, for characters;
    ``whole``: whole images with their aspect ratio (instance search); ``none``: the test transform; or a reference:
    ``my.py:augment``."""
    augmentation_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of your own augmentation."""
    crop_scale: tuple[float, float] = ranged((0.08, 1.0), 0, 1, above=True)
    """Range of the share of the image that a crop covers."""
    flip: bool = True
    """Mirror half of the images. Turn off if left and right have different meanings."""
    cache: Literal["none", "ram", "disk"] = "none"
    """Where to keep decoded images."""
    workers: int | None = ranged(None, 0, 1024)
    """Threads that decode images; None for one per core, at most 16."""
    prefetch_mb: int = ranged(512, 0, 2**20)
    """Memory for images that are decoded ahead of use."""
    on_bad_image: Literal["error", "skip"] = "error"
    """What to do with an image that cannot be read: stop, or skip and list it (in a batch, another image of its class is
    used instead)."""
    max_pixels: int | None = ranged(None, 1, 10**10)
    """Maximum number of pixels per image; larger images are refused. None for 100 million."""

    @property
    def title(self) -> str:
        """The name for readers: the data set's, or for a folder of your own that of the folder, without its path."""
        return Path(self.root).absolute().name or self.name if self.name == "folder" and self.root else self.name


@dataclass(frozen=True)
class ModelConfig:
    """The network; the fields are those of ``Embedder.create``. None means the default of the chosen initialisation."""

    init: str = "lite0-in1k"
    """A name of ``recollect models``, ``timm:<full tag>``, or a reference to a backbone: ``my.py:backbone``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of your own backbone."""
    weights: str | None = None
    """File or folder of its weights; ``none`` for random weights."""
    dim: int | Literal["default"] | None = ranged("default", 1, 2**16)
    """Dimension of the embedding; None for no last layer, as in the recipes of *init* rows."""
    image_size: int | None = ranged(None, 1, 10_000)
    """Side of the images in pixels; for whole images, the maximum of the longer side."""
    resize: int | Literal["default"] | None = ranged("default", 1, 10_000)
    """The shorter side before the centre crop at test time; by default in the model's own proportion to ``image_size``.
    None keeps images whole."""
    scales: tuple[float, ...] = ranged((), 0, 16, above=True)
    """Scales over which ``recollect eval`` averages the embeddings of an image on Revisited Oxford and Paris; empty for a
    single scale. Training and validation use a single scale."""
    pooling: str | None = None
    """How feature maps are pooled to one vector; see docs/models.md."""
    p: float = ranged(3.0, 0, 1000, above=True)
    """Exponent of GeM pooling."""
    learn_p: bool = True
    """Train the exponent of GeM pooling."""
    layer_norm: bool | None = None
    """Layer normalization before the last layer."""
    l2_before_head: bool | None = None
    """L2-normalize pooled features before the last layer."""
    whitening: int | Literal["auto", "all", "identity", "sfm120k"] | None = ranged(None, 1, _MANY)
    """Initialise the last layer as a whitening. A number: learned from pairs among that many training images, as for
    instance search; ``"sfm120k"``: from the whitening pairs of SfM-120k in ``data.validation_root``; ``"all"``: from the
    covariance within classes of all training images; ``"identity"``: the features as they are, with ``dim`` their length;
    ``"auto"``: ``"all"`` if a part is frozen. None: at random."""
    shrinkage: float | Auto = ranged("auto", 0, 1)
    """Shrinkage of ``whitening=all``; ``"auto"``: chosen on validation classes."""
    batch_norm: Literal["frozen", "statistics"] = "frozen"
    """The paper freezes BatchNorm, its released code only the statistics. Trained BatchNorm cannot be used with chunks."""
    interpolation: str | None = None
    """``bilinear``, ``bicubic`` or ``lanczos``: how images are resized, in training and at test time; None for the
    default of the initialisation. The released code uses bilinear for every network."""
    normalization: str | None = None
    """Name of the mean and standard deviation used to normalize pixels."""
    download: bool = False
    """Download weights that are not on this machine."""
    freeze: str = "none"
    """The part of the network that is frozen, with its features computed once: ``"none"``, ``"backbone"``, ``"pooling"``
    or the name of a stage. ``"auto"``: on a CPU, a pre-trained backbone with its pooling."""


@dataclass(frozen=True)
class LossConfig:
    """The loss, by its name in ``recollect losses`` or by reference (``my.py:MyLoss``), and its options."""

    name: str = "recall_at_k"
    """A loss of ``recollect losses``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that loss."""
    dims: tuple[int, ...] = ranged((), 1, 2**16)
    """Train so that these first numbers of an embedding work alone (Matryoshka); empty for the whole embedding only."""


@dataclass(frozen=True)
class BatchConfig:
    """The batch of one step."""

    size: int | Literal["auto", "all"] = ranged("auto", 1, _MANY)
    """M, the images per batch over all processes. ``"all"``: the whole training set (with a frozen backbone)."""
    samples_per_class: int = ranged(4, 1, _MANY)
    """Images per class in a batch."""
    chunk: int | Auto = ranged("auto", 1, _MANY)
    """Images passed through the network at once, on each process. Affects speed and memory, never the result."""
    policy: Literal["paper", "epoch"] = "paper"
    """``paper``: every batch draws classes anew; ``epoch``: batches go through all images, as in the released code."""
    small_classes: Literal["drop", "repeat"] = "drop"
    """Drop classes with fewer than ``samples_per_class`` images, or repeat their images."""
    batches_per_epoch: int | None = ranged(None, 1, _MANY)
    """Batches per epoch; None for the default of the policy."""
    skip_share: float = ranged(0.0, 0, 1, below=True)
    """Share of the sum of gradient norms that may be skipped to save second forward passes; 0 is exact."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its schedule."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    """The optimizer."""
    lr: float | Auto = ranged(1e-4, 0, 1000, above=True)
    """Learning rate. ``"auto"``: 1e-4 for pre-trained weights (the released setting for ResNets), 1e-3 for a network
    trained from scratch; with a frozen part, chosen on validation classes."""
    weight_decay: float = ranged(4e-4, 0, 1000)
    """Weight decay."""
    momentum: float = ranged(0.9, 0, 1, below=True)
    """Momentum of SGD."""
    head_multiplier: float = ranged(1.0, 0, 10**6)
    """Factor on the learning rate of the last layer. With 5, the released code was reported to lose 9 points on Cars196."""
    p_multiplier: float = ranged(1.0, 0, 10**6)
    """Factor on the learning rate of GeM's exponent."""
    decay_p: bool = False
    """Apply weight decay to GeM's exponent too, as the released code does."""
    loss_multiplier: float = ranged(1.0, 0, 10**6)
    """Factor on the learning rate of a loss's own parameters, such as proxies."""
    decay_norm_and_bias: bool = True
    """Apply weight decay to normalization layers and biases too."""
    schedule: Literal["milestones", "exponential", "cosine", "constant"] = "milestones"
    """``milestones`` and ``exponential`` multiply the learning rate by ``gamma``: at each milestone, or after every epoch."""
    milestones: tuple[float, ...] = ranged((), 0, _MANY)
    """Epochs after which the learning rate is multiplied by ``gamma``."""
    gamma: float = ranged(0.3, 0, 1000, above=True)
    """Factor of the ``milestones`` and ``exponential`` schedules."""
    warm_up: float = ranged(0.0, 0, _MANY)
    """Epochs over which the learning rate rises to its full value."""
    clip: float | None = ranged(None, 0, 1e30, above=True)
    """Maximum norm of the whole gradient; larger gradients are clipped."""


@dataclass(frozen=True)
class RunConfig:
    """Length of the training, device, evaluation and output."""

    epochs: int | Auto | None = ranged("auto", 0, _MANY)
    """Number of epochs. 0 trains nothing: a recipe for ``recollect eval``."""
    steps: int | None = ranged(None, 0, _MANY)
    """Number of steps, instead of epochs. 0 keeps the last layer as initialised by ``model.whitening``."""
    head_steps: int = ranged(0, 0, _MANY)
    """Steps that train only the last layer, on features of the unchanged network, before the whole network is trained."""
    verdict: bool = False
    """At the end, compare with the pre-trained network on the test classes."""
    seed: int = ranged(0, 0, 2**63 - 1)
    """Random seed."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:1``."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the network; losses are computed in at least single precision."""
    deterministic: bool = False
    """Use only deterministic algorithms, on GPUs too."""
    evaluate_every: int | Auto = ranged("auto", 1, _MANY)
    """Epochs between evaluations of the validation classes (and of the test set with ``watch_test``)."""
    evaluate_first: bool = True
    """Also evaluate before the first step."""
    watch_test: bool = False
    """Log test metrics during training. They are never used to choose anything."""
    select: str = "r@1"
    """The validation metric that selects the best weights: the name of a computed metric, or a reference: ``my.py:metric``."""
    checkpoint_minutes: float = ranged(5.0, 0, 10**6)
    """Minutes between checkpoints; one is always written at the end."""
    checkpoint_steps: int | None = ranged(None, 1, _MANY)
    """Steps between further checkpoints."""
    loss_limit: float = ranged(1e6, 0, 1e38, above=True)
    """A loss above this value stops the run."""
    loggers: tuple[str, ...] = ()
    """Where to log metrics besides ``metrics.jsonl``: ``tensorboard``, ``wandb``, ``mlflow``, or references:
    ``my.py:MyLogger``."""
    logger_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of each logger, by its name: ``{wandb: {project: flowers}}``."""
    tensorboard: bool = False
    """Same as adding ``tensorboard`` to ``loggers``."""


@dataclass(frozen=True)
class Config:
    """All settings of a training run. ``published`` passes a recipe's published numbers on to reports."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    name: str = "custom"
    """The recipe that the settings come from."""
    published: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for refusal in (_refuse_numbers, _refuse_combinations, _refuse_schedules):
            refusal(self)


def _refuse_numbers(config: Config) -> None:
    """Check that every number is in the range of its field."""
    for group in fields(config):
        part = getattr(config, group.name)
        for item in fields(part) if is_dataclass(part) else ():
            allowed: Range | None = item.metadata.get("range")
            value = getattr(part, item.name)
            for number in value if isinstance(value, tuple) else (value,):
                is_number = isinstance(number, int | float) and not isinstance(number, bool)
                if allowed is not None and is_number and number not in allowed:
                    raise ConfigError(f"{group.name}.{item.name} is {number}: it must be {allowed}.")
    if config.data.crop_scale[0] > config.data.crop_scale[1]:
        raise ConfigError(f"data.crop_scale is {list(config.data.crop_scale)}: put the smaller number first.")


def _refuse_combinations(config: Config) -> None:
    batch, run, model = config.batch, config.run, config.model
    augmentation, names = config.data.augmentation, ("auto", *AUGMENTATIONS)
    if augmentation not in names and not plugins.knows("augmentation", augmentation):
        raise plugins.unknown("augmentation", augmentation, names)
    if augmentation in names and config.data.augmentation_options:
        raise ConfigError(
            f"data.augmentation_options are for your own augmentation, but data.augmentation is {augmentation}: use "
            "data.crop_scale and data.flip instead."
        )
    frozen = model.freeze not in ("none", "auto")
    if isinstance(batch.size, int) and batch.size % batch.samples_per_class:
        below = batch.size // batch.samples_per_class * batch.samples_per_class
        raise ConfigError(
            f"batch.size {batch.size} is not a multiple of batch.samples_per_class {batch.samples_per_class}: "
            f"set it to {below or batch.samples_per_class} or {below + batch.samples_per_class}."
        )
    if batch.samples_per_class < 2:
        raise ConfigError(
            "with batch.samples_per_class 1 no query has a positive: set it to 2 or more (the paper uses 4)."
        )
    if batch.size == "all" and model.freeze == "none":
        raise ConfigError(
            "batch.size 'all' would pass the whole training set through the network in every step: freeze a part "
            "(model.freeze=backbone), or set batch.size to a number."
        )
    if run.epochs not in (None, "auto") and run.steps is not None:
        raise ConfigError(
            f"run.epochs {run.epochs} and run.steps {run.steps} both set the length of the run: set one of them to null."
        )
    if run.epochs is None and run.steps is None:
        raise ConfigError("the length of the run is not set: set run.epochs or run.steps.")
    if frozen and config.data.augmentation not in ("auto", "none"):
        raise ConfigError(
            f"data.augmentation {config.data.augmentation!r} cannot be used with model.freeze={model.freeze}, because "
            "features are computed once: set data.augmentation=none, or model.freeze=none."
        )
    if config.data.augmentation == "whole" and isinstance(model.resize, int):
        raise ConfigError(
            f"data.augmentation whole trains on whole images, but model.resize {model.resize} crops squares at test "
            "time: set model.resize=null, or data.augmentation=crop."
        )
    if unused := [name for name in run.logger_options if name not in run.loggers]:
        raise ConfigError(
            f"run.logger_options has {unused[0]!r}, which is not in run.loggers: add it, or remove its options."
        )
    if config.data.validation == SFM_NAME and not run.select.startswith(("map", "mp@")):
        raise ConfigError(
            f"run.select {run.select!r} is not computed on sfm120k, which has queries but no classes: set run.select=map."
        )
    if SFM_NAME not in (config.data.validation, model.whitening) and config.data.validation_root is not None:
        raise ConfigError(
            "data.validation_root is the folder of sfm120k: set data.validation=sfm120k or model.whitening=sfm120k, or remove "
            "it."
        )
    if model.whitening not in (None, "auto") and model.dim is None:
        raise ConfigError(
            "model.whitening initialises the last layer, but with model.dim null there is none: change one."
        )
    if run.steps == 0 and model.whitening is None and model.dim is not None:
        raise ConfigError(
            "run.steps 0 would leave the last layer random: set model.whitening=all, which needs no steps, or "
            "model.dim=null."
        )
    if run.head_steps and (model.dim is None or model.freeze not in ("none", "auto")):
        raise ConfigError(
            "run.head_steps trains the last layer before the whole network: set model.freeze=none, and model.dim to a number."
        )
    if run.precision == "fp16" and run.device == "cpu":
        raise ConfigError("run.precision fp16 is for GPUs: use bf16 or fp32 on the CPU.")


def _refuse_schedules(config: Config) -> None:
    optimizer, run = config.optimizer, config.run
    if optimizer.schedule != "milestones" and optimizer.milestones:
        raise ConfigError(
            f"optimizer.milestones {list(optimizer.milestones)} have no effect on the {optimizer.schedule} schedule: set "
            "optimizer.schedule=milestones, or optimizer.milestones=[]."
        )
    if list(optimizer.milestones) != sorted(set(optimizer.milestones)):
        raise ConfigError(f"optimizer.milestones {list(optimizer.milestones)} must be in ascending order.")
    if isinstance(run.epochs, int) and run.epochs > 0:
        late = [milestone for milestone in optimizer.milestones if milestone >= run.epochs]
        if late:
            raise ConfigError(
                f"optimizer.milestones {late} are beyond the last of {run.epochs} epochs: raise run.epochs or remove "
                "them."
            )
        if optimizer.warm_up >= run.epochs:
            raise ConfigError(
                f"optimizer.warm_up {optimizer.warm_up} takes up all of {run.epochs} epochs: set it lower."
            )
