"""Every loss by name: what it is, what it needs, and how to make it.

To add a loss to the package, add one row to ``_ENTRIES``. A row names a class or function as ``module:attribute``; its
arguments are the loss's options, so nothing is written twice. Listing the rows imports neither torch nor any loss.
Losses outside the package are found by ``common/plugins.py``: ``my.py:MyLoss``, or a name that an installed package adds.
Training calls ``loss(embeddings, labels)`` and needs one number that depends on the embeddings; a loss from outside is
tried before (``try_loss``), because one that returns something else would fail in the first step, or silently train nothing.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recollect.common import plugins
from recollect.common.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class LossEntry:
    """One loss of the registry.

    Args:
        name: what ``create`` takes.
        target: ``"module:attribute"`` of the class or function that makes it.
        family: ``rank`` (the order of a query's whole list), ``pair``, ``triplet``, ``proxy`` (class vectors),
            ``memory``; ``outside`` for a loss that is not recollect's.
        description: one line.
        memory: order of the memory it needs, with batch size M, N references (M if there are none), d dimensions, C
            classes, m images per class. Tiled losses also need one tile of bounded size. Empty if it is not known.
        extra: the extra of recollect it needs, if any.
        parameters: whether it has parameters, which must be passed to the optimizer.
        references: whether it takes a separate reference set.
    """

    name: str
    target: str
    family: str
    description: str
    memory: str
    extra: str | None = None
    parameters: bool = False
    references: bool = True


@dataclass(frozen=True)
class LossOption:
    """One option of a loss; ``required`` options have no default."""

    name: str
    type: str
    default: Any
    required: bool


@dataclass(frozen=True)
class LossDescription:
    """A loss with its options and the text of its documentation."""

    entry: LossEntry
    options: tuple[LossOption, ...]
    summary: str


_TILED = "(M + N)·d"


def _tiled(name: str, target: str, description: str) -> LossEntry:
    return LossEntry(name, f"recollect.losses.{target}", "rank", description, _TILED)


def _baseline(name: str, family: str, description: str, memory: str, **more: bool) -> LossEntry:
    return LossEntry(name, f"recollect.losses.baselines:{name}", family, description, memory, "baselines", **more)


_ENTRIES = (
    _tiled("recall_at_k", "recall_at_k:RecallAtK", "RS@k, the recall@k surrogate"),
    _tiled("smooth_ap", "average_precision:SmoothAP", "AP with sigmoids for steps"),
    _tiled("sup_ap", "average_precision:SupAP", "AP with ROADMAP's asymmetric step"),
    _tiled("roadmap", "average_precision:Roadmap", "SupAP with ROADMAP's calibration term"),
    _tiled(
        "hierarchical_ap", "hierarchical_ap:HierarchicalAP", "AP of graded relevance, for labels with a coarser level"
    ),
    _tiled("blackbox_ap", "average_precision:BlackboxAP", "exact AP, differentiated as a black box"),
    _tiled("binned_ap", "average_precision:BinnedAP", "AP on a soft histogram of similarities"),
    _baseline("fast_ap", "rank", "AP on a soft histogram of distances", "bins·M²", references=False),
    _baseline("contrastive", "pair", "pairs within or beyond a margin", "M·N"),
    _baseline("multi_similarity", "pair", "soft weights over a query's hard pairs", "M·N"),
    _baseline("supcon", "pair", "each positive against all others by softmax", "M·N"),
    _baseline("triplet", "triplet", "a positive closer than a negative by a margin", "M·N·m"),
    _baseline("margin", "triplet", "learned boundary between positives and negatives", "M·N", parameters=True),
    _baseline("norm_softmax", "proxy", "softmax over unit class vectors", "M·C", parameters=True, references=False),
    _baseline("proxy_nca", "proxy", "softmax over distances to proxies", "M·C", parameters=True, references=False),
    _baseline("proxy_anchor", "proxy", "each proxy against the batch", "M·C", parameters=True, references=False),
    _baseline("arcface", "proxy", "softmax with an angular margin", "M·C", parameters=True, references=False),
    _baseline("cosface", "proxy", "softmax with a cosine margin", "M·C", parameters=True, references=False),
    LossEntry(
        "cross_batch_memory",
        "recollect.losses.cross_batch_memory:CrossBatchMemory",
        "memory",
        "a pair or rank loss against earlier batches",
        "M·memory_size",
        "baselines",
        references=False,
    ),
)


def available_losses() -> dict[str, LossEntry]:
    """Every loss that has a name: recollect's, then those of installed packages, which are not imported.

    Examples:
        >>> available()["arcface"].parameters
        True
    """
    plugged_in = {
        row["name"]: LossEntry(row["name"], row["reference"], "outside", f"from the package {row['package']}", "")
        for row in plugins.list_installed("loss")
    }
    own = {entry.name: entry for entry in _ENTRIES}
    return own | {name: entry for name, entry in plugged_in.items() if name not in own}


def create(name: str, **options: Any) -> nn.Module:
    """Make a loss; call it as ``loss(embeddings, labels, ref_emb=None, ref_labels=None)``.

    Args:
        name: a name of ``available()``, or a reference: ``my.py:MyLoss``, ``package.module:MyLoss``.
        options: the loss's own options; ``recollect losses NAME`` lists them.

    Raises:
        ConfigError: an unknown name or option, a required option left out, a value out of range.
        MissingExtraError: the loss needs a package that is not installed.

    Examples:
        >>> loss = create("binned_ap", bins=20)
    """
    from torch import nn

    _, maker = _lookup(name)
    # A loss from outside may take any option with **.
    known = _parameters(maker) if hasattr(maker, "options_type") else None
    plugins.check_options(maker, options, f"loss {name!r}", known)
    settings = ", ".join(f"{option}={value!r}" for option, value in options.items())
    with plugins.errors_as_config(f"loss {name!r}" + (f" with {settings}" if settings else "")):
        loss = maker(**options)
    if not isinstance(loss, nn.Module):
        raise ConfigError(
            f"loss {name!r} returned a {type(loss).__name__}: it must be an nn.Module, or a function that returns one."
        )
    return loss


def describe_loss(name: str) -> LossDescription:
    """What ``recollect losses NAME`` prints: options with defaults, and the documentation up to its arguments.

    Args:
        name: a name of ``available()``, or a reference: ``my.py:MyLoss``.

    Raises:
        ConfigError: there is no such loss.

    Example:
        >>> [option.name for option in describe("smooth_ap").options][:2]
        ['tau', 'count_query']
    """
    entry, maker = _lookup(name)
    options = tuple(
        LossOption(
            parameter.name,
            "" if parameter.annotation is parameter.empty else str(parameter.annotation),
            None if parameter.default is parameter.empty else parameter.default,
            parameter.default is parameter.empty,
        )
        for parameter in _parameters(maker).values()
    )
    text = (inspect.getdoc(maker) or entry.description).split("\nArgs:")[0].replace("``", "")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    return LossDescription(entry, options, "\n\n".join(paragraphs))


def _lookup(name: str) -> tuple[LossEntry, Callable[..., Any]]:
    """The row called ``name`` and what makes it; for an outside loss a row is made.

    Raises:
        ConfigError: there is no such loss.
    """
    entry = next((entry for entry in _ENTRIES if entry.name == name), None)
    if entry is not None:
        module, attribute = entry.target.split(":")
        return entry, getattr(importlib.import_module(module), attribute)
    loaded = plugins.load("loss", name)
    if loaded is None:
        raise plugins.unknown("loss", name, (entry.name for entry in _ENTRIES))
    if not callable(loaded.target):
        raise ConfigError(f"loss {name!r} is a {type(loaded.target).__name__}: it must be a class or a function.")
    summary = (inspect.getdoc(loaded.target) or "a loss from outside").split("\n")[0]
    return LossEntry(name, loaded.reference, "outside", summary, ""), loaded.target


def _parameters(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A maker's options; its ``**options``, if any, are those of its ``options_type``."""
    own, more = plugins.options_of(maker), getattr(maker, "options_type", None)
    is_open = len(own) < len(inspect.signature(maker).parameters)
    inherited = {} if more is None or not is_open else _parameters(more)
    return own | {name: parameter for name, parameter in inherited.items() if name not in own}


_MOST = 8
"""Number of classes, and of images per class, that a loss is tried with."""


def try_loss(
    loss: nn.Module,
    name: str,
    dim: int,
    num_classes: int,
    *,
    samples_per_class: int = 4,
    device: torch.device | str = "cpu",
) -> None:
    """Call a loss on random vectors of length 1, and refuse one that cannot train.

    Args:
        loss: the loss; its state may change.
        name: for messages.
        dim: length of the embeddings.
        num_classes: labels are below this number.
        samples_per_class: vectors of each label, at most 8.
        device: where it will be called; it is moved there.

    Raises:
        ConfigError: it fails, does not return one number, or that number or its gradient is not finite or does not depend
            on the embeddings.

    Example:
        >>> from torch import nn
        >>> class Spread(nn.Module):
        ...     def forward(self, embeddings, labels):
        ...         return (embeddings @ embeddings.T).mean(dim=1)
        >>> try_loss(Spread(), "Spread", dim=8, num_classes=4)
        Traceback (most recent call last):
        ...
        recollect.common.errors.ConfigError: loss 'Spread' returns 16 numbers: return one, such as their mean.
    """
    import torch
    from torch import Tensor, nn

    what = f"loss {name!r}"
    labels = torch.arange(max(1, min(_MOST, num_classes))).repeat_interleave(min(_MOST, samples_per_class))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        vectors = nn.functional.normalize(torch.randn(len(labels), dim), dim=1)
        embeddings = vectors.to(device).requires_grad_()
        with plugins.errors_as_config(what):
            value: Any = loss.to(device)(embeddings, labels.to(device))
        if not isinstance(value, Tensor):
            raise ConfigError(f"{what} returns a {type(value).__name__}: return a tensor with one number.")
        if value.numel() != 1:
            raise ConfigError(f"{what} returns {value.numel()} numbers: return one, such as their mean.")
        gradient = None
        if value.requires_grad:
            with plugins.errors_as_config(what):
                (gradient,) = torch.autograd.grad(value.squeeze(), embeddings, allow_unused=True)
    if gradient is None:
        raise ConfigError(
            f"{what} does not depend on the embeddings, so it would train nothing: compute it from them with torch, "
            "without detach(), item() or numpy."
        )
    if not bool(value.isfinite().all()):
        raise ConfigError(
            f"{what} returns {float(value)} for {len(labels)} random vectors of length 1: check it for log(0), 0/0 or overflow."
        )
    if not bool(gradient.isfinite().all()):
        raise ConfigError(
            f"the gradient of {what} is not finite for {len(labels)} random vectors of length 1. A common cause is the square "
            "root or the norm of 0, for example the distance of a vector to itself: add a small number, or mask it."
        )


def try_copy(loss: nn.Module, name: str, dim: int, num_classes: int, **options: Any) -> None:
    """``try_loss`` on a copy of an object; one that cannot be copied, or is recollect's own, is not tried."""
    if type(loss).__module__.startswith("recollect."):
        return
    try:
        copied = copy.deepcopy(loss)
    except Exception:  # it contains something that cannot be copied, such as an open file
        return
    try_loss(copied, name, dim, num_classes, **options)


available = available_losses  # its name inside the package
describe = describe_loss  # its name inside the package
