"""Every loss by name: what it is, what it needs, and how to make it.

Adding a loss is adding one row to ``_ENTRIES``. A row points at a class or function by its dotted place; its arguments
are the loss's options, so nothing is written twice. Listing the rows imports neither torch nor any loss.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recollect.common.errors import ConfigError, RecollectError, in_one_line
from recollect.common.words import did_you_mean

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class LossEntry:
    """One loss of the registry.

    Args:
        name: what ``create`` takes.
        target: ``"module:attribute"`` of the class or function that makes it.
        family: ``rank`` (the order of a query's whole list), ``pair``, ``triplet``, ``proxy`` (class vectors),
            ``memory``.
        description: one line.
        memory: the order of what it holds; M batch, N references (M without), d dimensions, C classes, m images a
            class. Losses that go tile by tile hold one tile of bounded size beside it.
        extra: the extra of recollect it needs, if any.
        parameters: whether it has parameters of its own, which must reach the optimizer.
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
    LossEntry("smooth_ap", "recollect.losses.smooth_ap:SmoothAP", "rank", "AP with sigmoids for steps", _TILED),
    LossEntry("sup_ap", "recollect.losses.sup_ap:SupAP", "rank", "AP with ROADMAP's asymmetric step", _TILED),
    LossEntry("roadmap", "recollect.losses.sup_ap:Roadmap", "rank", "SupAP with ROADMAP's calibration term", _TILED),
    LossEntry(
        "blackbox_ap",
        "recollect.losses.blackbox_ap:BlackboxAP",
        "rank",
        "exact AP, differentiated as a black box",
        _TILED,
    ),
    LossEntry(
        "binned_ap", "recollect.losses.binned_ap:BinnedAP", "rank", "AP on a soft histogram of similarities", _TILED
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


def available() -> dict[str, LossEntry]:
    """Every loss that ``create`` knows, by name.

    Examples:
        >>> available()["arcface"].parameters
        True
    """
    return {entry.name: entry for entry in _ENTRIES}


def create(name: str, **options: Any) -> nn.Module:
    """Make a loss; call it as ``loss(embeddings, labels, ref_emb=None, ref_labels=None)``.

    Args:
        name: a name of ``available()``.
        options: the loss's own options; ``recollect losses NAME`` lists them.

    Raises:
        ConfigError: an unknown name or option, a required option left out, a value out of range.
        MissingExtraError: the loss needs a package that is not installed.

    Examples:
        >>> loss = create("binned_ap", bins=20)
    """
    entry = _entry(name)
    maker = _load(entry)
    check_options(name, maker, options)
    try:
        loss: nn.Module = maker(**options)
    except (TypeError, ValueError, RuntimeError, MemoryError) as error:
        if isinstance(error, RecollectError):
            raise
        # Nothing but a value of the wrong kind, or one too large for the memory, can fail there.
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise ConfigError(f"loss {name!r} cannot be made with {given}: {in_one_line(error)}.") from error
    return loss


def describe(name: str) -> LossDescription:
    """What ``recollect losses NAME`` prints: options with defaults, and the documentation up to its arguments."""
    entry = _entry(name)
    maker = _load(entry)
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


def check_options(name: str, maker: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options that ``maker`` does not have, and name those it needs.

    Raises:
        ConfigError: with the options that exist.
    """
    parameters = _parameters(maker)
    known = ", ".join(parameters) or "none"
    for option in options:
        if option not in parameters:
            raise ConfigError(
                f"loss {name!r} has no option {option!r}.{did_you_mean(option, parameters)} Its options are: {known}."
            )
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in options]
    if missing:
        needed = " and ".join(missing)
        raise ConfigError(f"loss {name!r} needs the option {needed}; its options are: {known}.")


def _entry(name: str) -> LossEntry:
    entries = available()
    if name not in entries:
        guess = did_you_mean(name.lower().replace("-", "_"), entries)
        raise ConfigError(f"loss {name!r} is unknown.{guess} The losses are: {', '.join(entries)}.")
    return entries[name]


def _load(entry: LossEntry) -> Callable[..., Any]:
    module, attribute = entry.target.split(":")
    maker: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return maker


def _parameters(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A maker's options; its ``**options``, if any, stand for the fields of its ``options_type``."""
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
