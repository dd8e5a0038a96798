"""Every loss by name: what it is, what it needs, and how to make it.

To add a loss to the package, add one row to ``_ENTRIES``. A row names a class or function as ``module:attribute``; its
arguments are the loss's options, so nothing is written twice. Listing the rows imports neither torch nor any loss.
Losses outside the package are found by ``common/plugins.py``: ``my.py:MyLoss``, or a name that an installed package adds.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recollect.common import plugins
from recollect.common.errors import ConfigError, RecollectError, in_one_line

if TYPE_CHECKING:
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


def _baseline(
    name: str, family: str, description: str, memory: str, *, parameters: bool = False, references: bool = True
) -> LossEntry:
    target = f"recollect.losses.baselines:{name}"
    return LossEntry(name, target, family, description, memory, "baselines", parameters, references)


_TILED = "(M + N)·d"
_ENTRIES = (
    LossEntry("recall_at_k", "recollect.losses.recall_at_k:RecallAtK", "rank", "RS@k, the recall@k surrogate", _TILED),
    LossEntry("smooth_ap", "recollect.losses.average_precision:SmoothAP", "rank", "AP with sigmoids for steps", _TILED),
    LossEntry(
        "sup_ap", "recollect.losses.average_precision:SupAP", "rank", "AP with ROADMAP's asymmetric step", _TILED
    ),
    LossEntry(
        "roadmap", "recollect.losses.average_precision:Roadmap", "rank", "SupAP with ROADMAP's calibration term", _TILED
    ),
    LossEntry(
        "hierarchical_ap",
        "recollect.losses.hierarchical_ap:HierarchicalAP",
        "rank",
        "AP of graded relevance, for labels with a coarser level",
        _TILED,
    ),
    LossEntry(
        "blackbox_ap",
        "recollect.losses.other_ap:BlackboxAP",
        "rank",
        "exact AP, differentiated as a black box",
        _TILED,
    ),
    LossEntry(
        "binned_ap", "recollect.losses.other_ap:BinnedAP", "rank", "AP on a soft histogram of similarities", _TILED
    ),
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
    known = {entry.name: entry for entry in _ENTRIES}
    added = [
        LossEntry(row["name"], row["reference"], "outside", f"from the package {row['package']}", "")
        for row in plugins.added("loss")
    ]
    return known | {entry.name: entry for entry in added if entry.name not in known}


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

    entry, maker = _found(name)
    plugins.check_options(maker, options, f"loss {name!r}", _parameters(maker) if _has_known_options(maker) else None)
    try:
        with plugins.errors_as_config(f"loss {name!r}") if entry.family == "outside" else nullcontext():
            loss = maker(**options)
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        if isinstance(error, RecollectError):
            raise
        # A value of the wrong kind, or one too large for the memory.
        given = ", ".join(f"{option}={value!r}" for option, value in options.items()) or "its defaults"
        raise ConfigError(f"loss {name!r} cannot be made with {given}: {in_one_line(error)}.") from error
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
    entry, maker = _found(name)
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


def _found(name: str) -> tuple[LossEntry, Callable[..., Any]]:
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
    about = (inspect.getdoc(loaded.target) or "a loss from outside").split("\n")[0]
    return LossEntry(name, loaded.reference, "outside", about, ""), loaded.target


def _has_known_options(maker: Callable[..., Any]) -> bool:
    """Whether ``_parameters`` are all its options; a loss from outside may take any with ``**``."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(maker).parameters.values())
    return not takes_any or getattr(maker, "options_type", None) is not None


def _parameters(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A maker's options; its ``**options``, if any, are the fields of its ``options_type``."""
    found = dict(inspect.signature(maker).parameters)
    catch_all = [name for name, parameter in found.items() if parameter.kind is parameter.VAR_KEYWORD]
    for name in catch_all:
        del found[name]
    shared = getattr(maker, "options_type", None) if catch_all else None
    return (
        found
        if shared is None
        else found | {n: p for n, p in inspect.signature(shared).parameters.items() if n not in found}
    )


available = available_losses  # its name inside the package
describe = describe_loss  # its name inside the package
