"""Every setting of a training, one frozen dataclass per component, and which settings exclude each other.

A field's default is what the paper or its released settings do or, where that depends on data and machine, ``"auto"``:
``automatic.py`` settles those before the first step and says why. Reading recipes and the command line's words into
these classes is ``overrides.py``'s work. To add a setting: add a field here with a comment, a number with its range
(``ranged``), use it where it acts, and add a refusal below if it can contradict another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from recollect.common.errors import ConfigError
from recollect.data.augmentation import NAMES, check_augmentation
from recollect.data.sources.revisited import SFM_NAME

Auto = Literal["auto"]


@dataclass(frozen=True)
class Range:
    """What values a numeric setting can have. Bounds belong to it unless they are said to be open."""

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
    """A setting with a range; of a list of numbers, each lies in it."""
    return field(default=default, metadata={"range": Range(low, high, above, below)})


_MANY = 10**9  # more steps, images or classes than anyone has


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are read and varied."""

    name: str = "glyphs"
    """A data set of ``recollect data``, ``folder`` for a folder of your own, or a reference: ``my.py:load_mine``."""
    root: str | None = None
    """The folder it lies in."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that data set."""
    train_split: str = "train"
    """The part that is trained on."""
    test_split: str = "test"
    """What ``run.watch_test`` logs."""
    validation: Literal["none", "paper", "random", "sfm120k"] = "none"
    """Half of the training classes that validate instead of training: the second half, or a random one. ``sfm120k``:
    the validation queries of SfM-120k, for instance search; no training class is held out."""
    validation_root: str | None = None
    """The folder that ``sfm120k`` lies in; None for ``root``."""
    augmentation: str = "auto"
    """``crop``: random resized crop (the released code's); ``glyph``: slight turns and shifts for characters; ``whole``: whole
    images that keep their shape (instance search); ``none``: as for the test; or a reference: ``my.py:augment``."""
    augmentation_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of an augmentation from outside."""
    crop_scale: tuple[float, float] = ranged((0.08, 1.0), 0, 1, above=True)
    """Share of the image that a crop covers, from and to."""
    flip: bool = True
    """Mirror half of the images. Leave out where left and right differ."""
    cache: Literal["none", "ram", "disk"] = "none"
    """Keep decoded images."""
    workers: int | None = ranged(None, 0, 1024)
    """Threads that decode images; None for one per core, at most 16."""
    prefetch_mb: int = ranged(512, 0, 2**20)
    """How much may be decoded ahead of use."""
    on_bad_image: Literal["error", "skip"] = "error"
    """What to do about an image that cannot be read: stop, or leave it out (in a batch, another of its class takes its place)
    and list it."""
    max_pixels: int | None = ranged(None, 1, 10**10)
    """Larger images are refused; None for 100 million pixels."""


@dataclass(frozen=True)
class ModelConfig:
    """The network; fields are those of ``Embedder.create``, None meaning that initialisation's own."""

    init: str = "lite0-in1k"
    """A name of ``recollect models``, ``timm:<full tag>``, or a reference to a backbone: ``my.py:backbone``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a backbone from outside."""
    weights: str | None = None
    """File or folder of its weights; ``none`` for random ones."""
    dim: int | Literal["default"] | None = ranged("default", 1, 2**16)
    """Length of the embedding; None for no last layer at all, as in the paper's *init* rows."""
    image_size: int | None = ranged(None, 1, 10_000)
    """Side of the images in pixels; of whole images the longer side at most."""
    resize: int | Literal["default"] | None = ranged("default", 1, 10_000)
    """The shorter side before the centre crop at test; by default in the model's own proportion to ``image_size``; None
    keeps images whole."""
    scales: tuple[float, ...] = ranged((), 0, 16, above=True)
    """Scales over which ``recollect eval`` averages an image's vectors on Revisited Oxford and Paris; empty for one.
    Training and validation see one."""
    pooling: str | None = None
    """How feature maps become one vector; see docs/models.md."""
    p: float = ranged(3.0, 0, 1000, above=True)
    """Exponent of GeM pooling."""
    learn_p: bool = True
    """Train that exponent."""
    layer_norm: bool | None = None
    """Layer normalization before the last layer."""
    l2_before_head: bool | None = None
    """Scale pooled features to length 1 before the last layer."""
    whitening: int | Literal["auto", "all", "sfm120k"] | None = ranged(None, 1, _MANY)
    """Start the last layer as a whitening learned from training images: so many of them, by pairs, as for instance
    search, or from the whitening pairs of SfM-120k in ``data.validation_root``; ``"all"``: all training images, by the
    covariance within classes; ``"auto"``: all, if features of a frozen part are at hand. None: at random."""
    shrinkage: float | Auto = ranged("auto", 0, 1)
    """Of ``whitening=all``; ``"auto"``: chosen on validation classes."""
    batch_norm: Literal["frozen", "statistics"] = "frozen"
    """The paper freezes BatchNorm, its released code only the statistics. Trained BatchNorm cannot be chunked."""
    interpolation: str | None = None
    """``bilinear``, ``bicubic`` or ``lanczos``: how images are resized, in training and at test; None for the
    initialisation's own. The released code resizes bilinearly for every network."""
    normalization: str | None = None
    """Mean and deviation by which pixels are normalized, by name."""
    download: bool = False
    """Fetch weights that are not on this machine."""
    freeze: str = "none"
    """``"none"``, or how far the network is not trained but computed once: ``"backbone"``, ``"pooling"``, a stage's
    name; ``"auto"``: on a CPU, a pre-trained backbone with its pooling."""


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
    """What one step sees."""

    size: int | Literal["auto", "all"] = ranged("auto", 1, _MANY)
    """M: images of one loss, over all processes. ``"all"``: the whole training set (with a frozen backbone)."""
    samples_per_class: int = ranged(4, 1, _MANY)
    """Images per class in a batch."""
    chunk: int | Auto = ranged("auto", 1, _MANY)
    """Images in the network at once, on each process. Changes speed and memory, never the result."""
    policy: Literal["paper", "epoch"] = "paper"
    """``paper``: every batch is a new draw of classes; ``epoch``: batches go through all images, as in the released code."""
    small_classes: Literal["drop", "repeat"] = "drop"
    """Leave out classes with fewer than ``samples_per_class`` images, or repeat their images."""
    batches_per_epoch: int | None = ranged(None, 1, _MANY)
    """Length of an epoch; None for the policy's own."""
    skip_share: float = ranged(0.0, 0, 1, below=True)
    """Share of the gradient's norm that may be left out to save second forwards; 0 is exact."""


@dataclass(frozen=True)
class OptimizerConfig:
    """How weights follow gradients."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    """The optimizer."""
    lr: float | Auto = ranged(1e-4, 0, 1000, above=True)
    """``"auto"``: 1e-4 for pre-trained weights (the released setting for ResNets), 1e-3 for a network from scratch;
    behind a frozen part chosen on validation classes."""
    weight_decay: float = ranged(4e-4, 0, 1000)
    """Weight decay."""
    momentum: float = ranged(0.9, 0, 1, below=True)
    """Of SGD."""
    head_multiplier: float = ranged(1.0, 0, 10**6)
    """Times the learning rate for the last layer. The released code was reported to lose 9 points on Cars196 with 5."""
    p_multiplier: float = ranged(1.0, 0, 10**6)
    """Times the learning rate for GeM's exponent."""
    decay_p: bool = False
    """Apply weight decay to GeM's exponent too, as the released code does."""
    loss_multiplier: float = ranged(1.0, 0, 10**6)
    """Times the learning rate for a loss's own parameters, such as proxies."""
    decay_norm_and_bias: bool = True
    """Apply weight decay to normalization layers and biases too."""
    schedule: Literal["milestones", "exponential", "cosine", "constant"] = "milestones"
    """``milestones`` and ``exponential`` multiply the learning rate by ``gamma``: at each milestone, or after every epoch."""
    milestones: tuple[float, ...] = ranged((), 0, _MANY)
    """Epochs after which the learning rate is multiplied by ``gamma``."""
    gamma: float = ranged(0.3, 0, 1000, above=True)
    """Factor of the ``milestones`` and ``exponential`` schedules."""
    warm_up: float = ranged(0.0, 0, _MANY)
    """Epochs over which the learning rate rises to its value."""
    clip: float | None = ranged(None, 0, 1e30, above=True)
    """Largest norm of the whole gradient."""


@dataclass(frozen=True)
class RunConfig:
    """How long, where, and what is written."""

    epochs: int | Auto | None = ranged("auto", 0, _MANY)
    """0: nothing is trained; a recipe for ``recollect eval``."""
    steps: int | None = ranged(None, 0, _MANY)
    """Instead of epochs. 0: the last layer as ``model.whitening`` makes it is the result."""
    head_steps: int = ranged(0, 0, _MANY)
    """Steps that train the last layer alone, on features of the network as it is, before all of it is trained."""
    verdict: bool = False
    """End with a comparison with the pre-trained network on the test classes."""
    seed: int = ranged(0, 0, 2**63 - 1)
    """Random seed."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:1``."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the network; losses are computed in at least single precision."""
    deterministic: bool = False
    """Only algorithms that repeat themselves to the bit, on GPUs too."""
    evaluate_every: int | Auto = ranged("auto", 1, _MANY)
    """Epochs between evaluations of the validation classes (and of the test set with ``watch_test``)."""
    evaluate_first: bool = True
    """Evaluate before the first step too."""
    watch_test: bool = False
    """Log test metrics on the way. They choose nothing."""
    select: str = "r@1"
    """The validation metric that picks the weights to keep: one that is measured, or a reference: ``my.py:metric``."""
    checkpoint_minutes: float = ranged(5.0, 0, 10**6)
    """A checkpoint is written whenever so much time has passed, and at the end."""
    checkpoint_steps: int | None = ranged(None, 1, _MANY)
    """Also after every so many steps."""
    loss_limit: float = ranged(1e6, 0, 1e38, above=True)
    """A loss beyond it stops the run."""
    loggers: tuple[str, ...] = ()
    """Where figures go besides ``metrics.jsonl``: ``tensorboard``, ``wandb``, ``mlflow``, or references: ``my.py:MyLogger``."""
    logger_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of each logger, by its name: ``{wandb: {project: flowers}}``."""
    tensorboard: bool = False
    """The same as ``tensorboard`` among ``loggers``."""


@dataclass(frozen=True)
class Config:
    """A whole training. ``published`` carries a recipe's published numbers on to reports."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    name: str = "custom"
    """The recipe it came from."""
    published: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for refusal in (_refuse_numbers, _refuse_combinations, _refuse_schedules):
            refusal(self)


def _refuse_numbers(config: Config) -> None:
    """Every number lies in the range that its field states."""
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
        raise ConfigError(f"data.crop_scale is {list(config.data.crop_scale)}: the smaller share comes first.")


def _refuse_combinations(config: Config) -> None:
    batch, run, model = config.batch, config.run, config.model
    if config.data.augmentation not in ("auto", *NAMES) or config.data.augmentation_options:
        check_augmentation(config.data.augmentation, config.data.augmentation_options)
    frozen = model.freeze not in ("none", "auto")
    if isinstance(batch.size, int) and batch.size % batch.samples_per_class:
        below = batch.size // batch.samples_per_class * batch.samples_per_class
        raise ConfigError(
            f"batch.size {batch.size} is not a multiple of batch.samples_per_class {batch.samples_per_class}: "
            f"set it to {below or batch.samples_per_class} or {below + batch.samples_per_class}."
        )
    if batch.samples_per_class < 2:
        raise ConfigError("batch.samples_per_class 1 gives no query a positive: set it to 2 or more (the paper: 4).")
    if batch.size == "all" and model.freeze == "none":
        raise ConfigError(
            "batch.size 'all' would send the whole training set through the network in every step: freeze a part "
            "(model.freeze=backbone), or set a number."
        )
    if run.epochs not in (None, "auto") and run.steps is not None:
        raise ConfigError(
            f"run.epochs {run.epochs} and run.steps {run.steps} both say when to stop: set one, the other to null."
        )
    if run.epochs is None and run.steps is None:
        raise ConfigError("nothing says when to stop: set run.epochs or run.steps.")
    if frozen and config.data.augmentation not in ("auto", "none"):
        raise ConfigError(
            f"data.augmentation {config.data.augmentation!r} varies images, but with model.freeze={model.freeze} their "
            "features are computed once: set data.augmentation=none, or model.freeze=none."
        )
    if config.data.augmentation == "whole" and isinstance(model.resize, int):
        raise ConfigError(
            f"data.augmentation whole trains on images that keep their shape, but model.resize {model.resize} cuts squares "
            "for the test: set model.resize=null, or data.augmentation=crop."
        )
    if unused := [name for name in run.logger_options if name not in run.loggers]:
        raise ConfigError(f"run.logger_options {unused[0]!r} is not among run.loggers: add it there, or leave it out.")
    if config.data.validation == SFM_NAME and not run.select.startswith(("map", "mp@")):
        raise ConfigError(
            f"run.select {run.select!r} is not measured on sfm120k, which has queries and no classes: set run.select=map."
        )
    if SFM_NAME not in (config.data.validation, model.whitening) and config.data.validation_root is not None:
        raise ConfigError(
            "data.validation_root is the folder of sfm120k: set data.validation=sfm120k or model.whitening=sfm120k, or leave "
            "it out."
        )
    if model.whitening is not None and model.dim is None:
        raise ConfigError("model.whitening initialises the last layer, and model.dim null leaves it out: set one.")
    if run.steps == 0 and model.whitening is None and model.dim is not None:
        raise ConfigError(
            "run.steps 0 would leave the last layer random: set model.whitening=all, which needs no steps, or "
            "model.dim=null."
        )
    if run.head_steps and (model.dim is None or model.freeze not in ("none", "auto")):
        raise ConfigError(
            "run.head_steps trains the last layer before the whole network: leave model.freeze at none, and model.dim set."
        )
    if run.precision == "fp16" and run.device == "cpu":
        raise ConfigError("run.precision fp16 is for GPUs: use bf16 or fp32 on the CPU.")


def _refuse_schedules(config: Config) -> None:
    optimizer, run = config.optimizer, config.run
    if optimizer.schedule != "milestones" and optimizer.milestones:
        raise ConfigError(
            f"optimizer.milestones {list(optimizer.milestones)} mean nothing to the {optimizer.schedule} schedule: set "
            "optimizer.schedule=milestones, or the milestones to []."
        )
    if list(optimizer.milestones) != sorted(set(optimizer.milestones)):
        raise ConfigError(f"optimizer.milestones {list(optimizer.milestones)} must rise from one to the next.")
    if isinstance(run.epochs, int) and run.epochs > 0:
        late = [milestone for milestone in optimizer.milestones if milestone >= run.epochs]
        if late:
            raise ConfigError(
                f"optimizer.milestones {late} lie beyond the last of {run.epochs} epochs: raise run.epochs or drop "
                "them."
            )
        if optimizer.warm_up >= run.epochs:
            raise ConfigError(f"optimizer.warm_up of {optimizer.warm_up} epochs leaves nothing of {run.epochs} epochs.")
