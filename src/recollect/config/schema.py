"""Every setting of a training run, one frozen dataclass per component, and checks for contradictory settings.

A field's default is that of the paper or its released settings. Where that depends on data and machine, it is ``"auto"``:
``automatic.py`` chooses the value before the first step and gives the reason. ``resolve.py`` fills these classes from
recipes and the command line. To add a setting: add a field here with its docstring, a number with its range
(``setting``), use it where it applies, and add a check below if it can contradict another setting. With ``panel`` it is
also an option of ``recollect train``, whose help is the first sentence of the docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from recollect.common import plugins
from recollect.common.errors import ConfigError

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

    @property
    def interval(self) -> str:
        """``[0<x<=1]``, as the help of an option has it."""
        return f"[{self.low}{'<' if self.above else '<='}x{'<' if self.below else '<='}{self.high}]"

    def __str__(self) -> str:
        low = f"above {self.low:,}" if self.above else f"{self.low:,} or more"
        return f"{low} and {f'below {self.high:,}' if self.below else f'at most {self.high:,}'}"


PANELS = MODEL, STEPS, WATCH, MACHINE = "Model", "Loss, batch and length", "Validation and logging", "Machine"
"""Groups of options in the help of ``recollect train``."""


def setting(
    default: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    above: bool = False,
    below: bool = False,
    panel: str = "",
    option: str = "",
) -> Any:
    """A setting with a range, or one that is an option of ``recollect train``.

    Args:
        default: its default.
        low, high, above, below: the range of a number; in a list of numbers, every number must be in it.
        panel: one of ``PANELS``, for an option. option: the option's name, if not that of the field.
    """
    allowed = None if low is None or high is None else Range(low, high, above, below)
    return field(default=default, metadata={"range": allowed, "panel": panel, "option": option})


def meanings() -> dict[str, str]:
    """The docstring of every setting, by its dotted key; Python itself does not keep the strings below fields."""
    texts = {}
    classes = {f"{group.name.title()}Config": group.name for group in fields(Config)}
    for node in ast.parse(Path(__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for line, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(line, ast.AnnAssign) and isinstance(below, ast.Expr):
                    text = re.sub(r"\s+", " ", ast.literal_eval(below.value))
                    texts[f"{classes[node.name]}.{ast.unparse(line.target)}"] = text
    return texts


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
    validation: Literal["none", "paper", "random", "sfm120k"] = setting("none", panel=WATCH)
    """``none``, ``paper`` or ``random``: half of the training classes pick the best weights. ``paper``: the second half.
    ``sfm120k``: use the validation queries of SfM-120k (instance search); no training class is held out."""
    validation_root: str | None = None
    """The folder of ``sfm120k``; None for ``root``."""
    augmentation: str = "auto"
    """``crop``: random resized crop, as in the released code; ``glyph``: slight rotations and shifts, for characters;
    ``whole``: whole images with their aspect ratio (instance search); ``none``: the test transform; or a reference:
    ``my.py:augment``."""
    augmentation_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of your own augmentation."""
    crop_scale: tuple[float, float] = setting((0.08, 1.0), 0, 1, above=True)
    """Range of the share of the image that a crop covers."""
    flip: bool = True
    """Mirror half of the images. Turn off if left and right have different meanings."""
    cache: Literal["none", "ram", "disk"] = setting("none", panel=MACHINE)
    """Keep decoded images: ``none``, ``ram`` or ``disk``."""
    cache_size: int | None = setting(None, 16, 8192, panel=MACHINE)
    """Shrink cached images to this shorter side, before they are augmented; None keeps them as decoded."""
    workers: int | None = setting(None, 0, 1024, panel=MACHINE)
    """Threads or processes that decode images. None for one per core, shared by the processes of a run; at most 16 threads."""
    worker_type: Literal["auto", "threads", "processes"] = setting("auto", panel=MACHINE)
    """What decodes images: ``threads``, ``processes``, or ``auto``: processes if there are more than 4 workers."""
    prefetch_mb: int | None = setting(None, 0, 2**20)
    """Memory for images that are decoded ahead of use. None for 1.5 batches."""
    on_bad_image: Literal["error", "skip"] = "error"
    """What to do with an image that cannot be read: stop, or skip and list it (in a batch, another image of its class is
    used instead)."""
    max_pixels: int | None = setting(None, 1, 10**10)
    """Maximum number of pixels per image; larger images are refused. None for 100 million."""

    @property
    def title(self) -> str:
        """The name for readers: the data set's, or for a folder of your own that of the folder, without its path."""
        return Path(self.root).absolute().name or self.name if self.name == "folder" and self.root else self.name


@dataclass(frozen=True)
class ModelConfig:
    """The network; the fields are those of ``Embedder.create``. None means the default of the chosen initialisation."""

    init: str = setting("lite0-in1k", panel=MODEL)
    """Initialisation; see ``recollect models``. Also ``timm:<full tag>``, or a reference to a backbone:
    ``my.py:backbone``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of your own backbone."""
    weights: str | None = setting(None, panel=MODEL)
    """A weights file, or ``none`` for random weights. A folder is searched for the file."""
    dim: int | Literal["default"] | None = setting("default", 1, 2**16, panel=MODEL)
    """Length of the embedding. None for no last layer, as in the recipes of *init* rows."""
    image_size: int | None = setting(None, 1, 10_000, panel=MODEL)
    """Side of the images in pixels. For whole images, the maximum of the longer side."""
    resize: int | Literal["default"] | None = setting("default", 1, 10_000)
    """The shorter side before the centre crop at test time; by default in the model's own proportion to ``image_size``.
    None keeps images whole."""
    scales: tuple[float, ...] = setting((), 0, 16, above=True)
    """Scales over which ``recollect eval`` averages the embeddings of an image on Revisited Oxford and Paris; empty for a
    single scale. Training and validation use a single scale."""
    pooling: str | None = None
    """How feature maps are pooled to one vector; see docs/models.md."""
    stages: int | Auto = setting(0, 0, 3, panel=MODEL)
    """Use features of this many earlier stages besides those of the last layer, at most 3. Mean and standard deviation over
    positions; for the blocks of a transformer class token and mean. ``"auto"``: chosen on validation classes."""
    p: float = setting(3.0, 0, 1000, above=True)
    """Exponent of GeM pooling."""
    learn_p: bool = True
    """Train the exponent of GeM pooling."""
    layer_norm: bool | None = None
    """Layer normalization before the last layer."""
    l2_before_head: bool | None = None
    """L2-normalize pooled features before the last layer."""
    whitening: int | Literal["auto", "all", "identity", "sfm120k"] | None = setting(None, 1, _MANY)
    """Initialise the last layer as a whitening. A number: learned from pairs among that many training images, as for
    instance search; ``"sfm120k"``: from the whitening pairs of SfM-120k in ``data.validation_root``; ``"all"``: from the
    covariance within classes of all training images; ``"identity"``: the features as they are, with ``dim`` their length;
    ``"auto"``: ``"all"`` if a part is frozen. None: at random."""
    shrinkage: float | Auto = setting("auto", 0, 1)
    """Shrinkage of ``whitening=all``; ``"auto"``: chosen on validation classes."""
    batch_norm: Literal["frozen", "statistics"] = "frozen"
    """The paper freezes BatchNorm, its released code only the statistics. Trained BatchNorm cannot be used with chunks."""
    interpolation: str | None = None
    """``bilinear``, ``bicubic`` or ``lanczos``: how images are resized, in training and at test time; None for the
    default of the initialisation. The released code uses bilinear for every network."""
    normalization: str | None = None
    """Name of the mean and standard deviation used to normalize pixels."""
    download: bool = setting(False, panel=MODEL)
    """Download weights that are not on this machine."""
    lora: int | None = setting(None, 1, 1024, panel=MODEL)
    """Train low-rank updates of a transformer's attention, of this rank, instead of its weights (LoRA; extra ``lora``). They
    are merged when the model is saved."""
    freeze: str = setting("none", panel=MODEL)
    """``none``, ``backbone``, ``pooling`` or a stage: train only what comes after it. The features of the frozen part are
    computed once; with an augmentation they are computed in every step, without gradient. ``"auto"``: on a CPU, a
    pre-trained backbone with its pooling."""


@dataclass(frozen=True)
class LossConfig:
    """The loss, by its name in ``recollect losses`` or by reference (``my.py:MyLoss``), and its options."""

    name: str = setting("recall_at_k", panel=STEPS, option="loss")
    """See ``recollect losses``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that loss."""
    dims: tuple[int, ...] = setting((), 1, 2**16, panel=STEPS)
    """Lengths at which vectors can be cut, e.g. 64,128,256 (Matryoshka). Empty for the whole embedding only."""


@dataclass(frozen=True)
class BatchConfig:
    """The batch of one step."""

    size: int | Literal["auto", "all"] = setting("auto", 1, _MANY, panel=STEPS, option="batch_size")
    """Images per batch; ``all``, with ``--freeze``. M in the paper, summed over processes."""
    samples_per_class: int = setting(4, 1, _MANY)
    """Images per class in a batch."""
    chunk: int | Auto = setting("auto", 1, _MANY, panel=STEPS)
    """Images in the network at a time; does not change the result. On each process; affects speed and memory."""
    policy: Literal["paper", "epoch"] = "paper"
    """``paper``: every batch draws classes anew; ``epoch``: batches go through all images, as in the released code."""
    small_classes: Literal["drop", "repeat"] = "drop"
    """Drop classes with fewer than ``samples_per_class`` images, or repeat their images."""
    batches_per_epoch: int | None = setting(None, 1, _MANY)
    """Batches per epoch; None for the default of the policy."""
    skip_share: float = setting(0.0, 0, 1, below=True)
    """Share of the sum of gradient norms that may be skipped to save second forward passes; 0 is exact."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its schedule."""

    name: str = "adam"
    """The optimizer: ``adam``, ``adamw``, ``sgd``, or your own as ``package.module:name`` or ``my.py:name``."""
    lr: float | Auto = setting(1e-4, 0, 1000, above=True, panel=STEPS)
    """Learning rate. ``"auto"``: 1e-4 for pre-trained weights (the released setting for ResNets), 1e-3 for a network
    trained from scratch; with a frozen part, chosen on validation classes."""
    weight_decay: float = setting(4e-4, 0, 1000)
    """Weight decay."""
    momentum: float = setting(0.9, 0, 1, below=True)
    """Momentum of SGD."""
    head_multiplier: float = setting(1.0, 0, 10**6)
    """Factor on the learning rate of the last layer. With 5, the released code was reported to lose 9 points on Cars196."""
    p_multiplier: float = setting(1.0, 0, 10**6)
    """Factor on the learning rate of GeM's exponent."""
    decay_p: bool = False
    """Apply weight decay to GeM's exponent too, as the released code does."""
    loss_multiplier: float = setting(1.0, 0, 10**6)
    """Factor on the learning rate of a loss's own parameters, such as proxies."""
    decay_norm_and_bias: bool = True
    """Apply weight decay to normalization layers and biases too."""
    schedule: Literal["milestones", "exponential", "cosine", "constant"] = "milestones"
    """``milestones`` and ``exponential`` multiply the learning rate by ``gamma``: at each milestone, or after every epoch."""
    milestones: tuple[float, ...] = setting((), 0, _MANY)
    """Epochs after which the learning rate is multiplied by ``gamma``."""
    gamma: float = setting(0.3, 0, 1000, above=True)
    """Factor of the ``milestones`` and ``exponential`` schedules."""
    layer_decay: float = setting(1.0, 0, 1, above=True)
    """Factor on the learning rate from each layer of the backbone to the one before it; 1 for equal rates."""
    ema: float = setting(0.0, 0, 1, below=True)
    """Decay of a moving average of the weights per step, e.g. 0.999. The average is evaluated and saved instead of the
    weights; 0 for none."""
    warm_up: float = setting(0.0, 0, _MANY)
    """Epochs over which the learning rate rises to its full value."""
    clip: float | None = setting(None, 0, 1e30, above=True)
    """Maximum norm of the whole gradient; larger gradients are clipped."""


@dataclass(frozen=True)
class RunConfig:
    """Length of the training, device, evaluation and output."""

    epochs: int | Auto | None = setting("auto", 0, _MANY, panel=STEPS)
    """Number of epochs. With 0, nothing is trained: a recipe for ``recollect eval``."""
    steps: int | None = setting(None, 0, _MANY, panel=STEPS)
    """Number of steps. Instead of epochs; 0 keeps the last layer as initialised by ``model.whitening``."""
    head_steps: int = setting(0, 0, _MANY)
    """Steps that train only the last layer, on features of the unchanged network, before the whole network is trained."""
    verdict: bool = False
    """At the end, compare with the pre-trained network on the test classes."""
    seed: int = setting(0, 0, 2**63 - 1, panel=STEPS)
    """Random seed."""
    device: str = setting("auto", panel=MACHINE)
    """``auto``, ``cpu`` or ``cuda``. ``cuda:1`` selects a GPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting("auto", panel=MACHINE)
    """``auto``, ``fp32``, ``bf16`` or ``fp16``. Precision of the network; losses are computed in at least single precision.
    ``auto``: ``bf16`` on GPUs that have it, otherwise ``fp32``."""
    compile: bool = False
    """Compile the network with ``torch.compile``: minutes of preparation, then faster steps on a GPU."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: larger chunks fit, steps take about a third longer. Does not change the
    result."""
    shard: bool = False
    """Divide the optimizer's state and, between steps, weights and gradients among the processes of ``torchrun`` (FSDP2). Does
    not change the result."""
    deterministic: bool = False
    """Use only deterministic algorithms, on GPUs too."""
    evaluate_every: int | Auto = setting("auto", 1, _MANY)
    """Epochs between evaluations of the validation classes (and of the test set with ``watch_test``)."""
    evaluate_first: bool = True
    """Also evaluate before the first step."""
    watch_test: bool = setting(False, panel=WATCH)
    """Log test metrics, without using them for any choice."""
    select: str = "r@1"
    """The validation metric that selects the best weights: the name of a computed metric, or a reference: ``my.py:metric``."""
    checkpoint_minutes: float = setting(5.0, 0, 10**6)
    """Minutes between checkpoints; one is always written at the end."""
    checkpoint_steps: int | None = setting(None, 1, _MANY)
    """Steps between further checkpoints."""
    loss_limit: float = setting(1e6, 0, 1e38, above=True)
    """A loss above this value stops the run."""
    loggers: tuple[str, ...] = setting((), panel=WATCH, option="logger")
    """``tensorboard``, ``wandb``, ``mlflow``, or your own: ``file.py:name``; may be given several times. Where to log
    metrics besides ``metrics.jsonl``."""
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
        _check_ranges(self)
        _check_combinations(self)

    @property
    def trains_on_features(self) -> bool:
        """Whether a frozen part is computed once per image: where photos are augmented, it is computed in every step."""
        return self.model.freeze != "none" and self.data.augmentation in ("auto", "none")


def _check_ranges(config: Config) -> None:
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


def _check_combinations(config: Config) -> None:
    # Not at the top: it takes a fifth of a second, and the command line needs only the fields.
    from recollect.data.registry import AUGMENTATIONS

    batch, run, model, optimizer = config.batch, config.run, config.model, config.optimizer
    augmentation, names = config.data.augmentation, ("auto", *AUGMENTATIONS)
    if augmentation not in names and not plugins.is_plugin("augmentation", augmentation):
        raise plugins.unknown("augmentation", augmentation, names)
    if augmentation in names and config.data.augmentation_options:
        raise ConfigError(
            f"data.augmentation_options are for your own augmentation, but data.augmentation is {augmentation}: use "
            "data.crop_scale and data.flip instead."
        )
    if isinstance(batch.size, int) and batch.size % batch.samples_per_class:
        below = batch.size // batch.samples_per_class * batch.samples_per_class
        raise ConfigError(
            f"batch.size {batch.size} is not a multiple of batch.samples_per_class {batch.samples_per_class}: "
            f"set it to {below or batch.samples_per_class} or {below + batch.samples_per_class}."
        )
    if batch.samples_per_class < 2:
        raise ConfigError("with batch.samples_per_class 1 no query has a positive: set it to 2 or more.")
    if batch.size == "all" and (model.freeze == "none" or augmentation not in ("auto", "none")):
        raise ConfigError(
            "batch.size 'all' is for stored features: freeze a part (model.freeze=backbone), with data.augmentation=none."
        )
    if run.epochs not in (None, "auto") and run.steps is not None:
        raise ConfigError(
            f"run.epochs {run.epochs} and run.steps {run.steps} are two lengths: set one of them to null."
        )
    if run.epochs is None and run.steps is None:
        raise ConfigError("the length of the run is not set: set run.epochs or run.steps.")
    if model.stages not in (0, "auto") and model.freeze not in ("none", "auto", "pooling"):
        raise ConfigError(
            f"model.stages {model.stages} needs the features of several stages, of which model.freeze={model.freeze} would "
            "store one: set model.freeze=pooling or none."
        )
    if config.data.augmentation == "whole" and isinstance(model.resize, int):
        raise ConfigError(
            f"data.augmentation whole trains on whole images, but model.resize {model.resize} crops squares at test "
            "time: set model.resize=null, or data.augmentation=crop."
        )
    if config.data.cache_size is not None and config.data.cache == "none":
        raise ConfigError("data.cache_size is for cached images: set data.cache to ram or disk, or remove it.")
    if unused := [name for name in run.logger_options if name not in run.loggers]:
        raise ConfigError(f"run.logger_options {unused[0]!r} is not in run.loggers: add it, or remove its options.")
    if config.data.validation == "sfm120k" and not run.select.startswith(("map", "mp@")):
        raise ConfigError(f"run.select {run.select!r} is not computed on sfm120k: set run.select=map.")
    if "sfm120k" not in (config.data.validation, model.whitening) and config.data.validation_root is not None:
        raise ConfigError("data.validation_root is for data.validation or model.whitening sfm120k: remove it.")
    if model.whitening not in (None, "auto") and model.dim is None:
        raise ConfigError("model.whitening needs a last layer: set model.dim to a number, or model.whitening=null.")
    if run.steps == 0 and model.whitening is None and model.dim is not None:
        raise ConfigError("run.steps 0 would leave the last layer random: set model.whitening=all, or model.dim=null.")
    if run.head_steps and (model.dim is None or model.freeze not in ("none", "auto")):
        raise ConfigError("run.head_steps is for training the whole network: set model.freeze=none, and model.dim.")
    if run.activation_checkpointing and model.freeze != "auto" and config.trains_on_features:
        raise ConfigError(
            "run.activation_checkpointing is for training on images, but model.freeze stores features: remove it."
        )
    if model.lora is not None and model.freeze not in ("none", "auto"):
        raise ConfigError("model.lora leaves the backbone's own weights as they are: set model.freeze=none.")
    whole = model.freeze in ("none", "auto") and model.whitening in (None, "auto") and not run.head_steps
    if run.shard and not (whole and model.lora is None and run.precision != "fp16" and not run.compile):
        raise ConfigError(
            "run.shard is for a whole network that is trained from the first step: it takes no model.freeze, model.whitening, "
            "model.lora, run.head_steps, run.compile or fp16."
        )
    if run.precision == "fp16" and run.device == "cpu":
        raise ConfigError("run.precision fp16 is for GPUs: use bf16 or fp32 on the CPU.")
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
            raise ConfigError(f"optimizer.milestones {late} are beyond the last of {run.epochs} epochs: remove them.")
        if optimizer.warm_up >= run.epochs:
            raise ConfigError(f"optimizer.warm_up {optimizer.warm_up} takes up all {run.epochs} epochs: lower it.")
