"""Things from outside the package, chosen by name: ``package.module:attribute``, ``path/file.py:attribute``, entry points.

Wherever a setting names a loss, a data set, a backbone, an augmentation, a metric, a logger or a store, the registry of
that kind asks here for what it does not know itself. Loading a reference runs the code it names, as importing does: so
a reference is followed when a user says it, and never because a file from elsewhere holds it (``Loaded.sha256`` is what
a run remembers of it, and compares).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from recollect.common.errors import ConfigError, in_one_line
from recollect.common.words import did_you_mean

GROUPS = {
    "loss": "recollect.losses",
    "data set": "recollect.data",
    "backbone": "recollect.models",
    "augmentation": "recollect.augmentations",
    "metric": "recollect.metrics",
    "logger": "recollect.loggers",
    "store": "recollect.stores",
}
"""Kinds of things, and the entry-point group with which an installed package adds names to each."""


@dataclass(frozen=True)
class Loaded:
    """What a reference leads to.

    Args:
        target: the class, function or object itself.
        reference: the words that named it.
        file: where its code lies, if it lies in a file.
        sha256: of that file, for a run to remember; empty without a file.
    """

    target: Any
    reference: str
    file: Path | None
    sha256: str

    def as_dict(self) -> dict[str, str]:
        """Plain values, for a manifest: the file's name, not its path."""
        return {"reference": self.reference, "file": "" if self.file is None else self.file.name, "sha256": self.sha256}


def is_reference(name: str) -> bool:
    """Whether ``name`` has the form of a reference rather than that of a registered name.

    Examples:
        >>> [is_reference(name) for name in ("my_loss.py:MyLoss", "package.losses:MyLoss", "recall_at_k", "timm:vit.x")]
        [True, True, False, False]
    """
    place, colon, attribute = name.rpartition(":")
    return bool(colon and place and place != "timm") and all(part.isidentifier() for part in attribute.split("."))


def load(reference: str, kind: str) -> Loaded:
    """Import what ``reference`` names.

    Args:
        reference: ``package.module:attribute`` or ``path/file.py:attribute``.
        kind: what it should be, for messages: a key of ``GROUPS``.

    Raises:
        ConfigError: there is no such file, module or attribute, or its code fails when imported.
    """
    place, _, attribute = reference.rpartition(":")
    module = _module_of_file(Path(place), kind) if place.endswith(".py") else _module(place, kind, reference)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [name for name in vars(target) if not name.startswith("_")]
            raise ConfigError(f"{kind} {reference!r}: {place} has no {part!r}.{did_you_mean(part, public)}")
        target = getattr(target, part)
    file = None if module.__file__ is None else Path(module.__file__)
    return Loaded(target, reference, file, "" if file is None else _sha256(file))


def installed(kind: str) -> dict[str, metadata.EntryPoint]:
    """Names that installed packages add for ``kind`` through their entry points, without importing them."""
    return {point.name: point for point in metadata.entry_points(group=GROUPS[kind])}


def load_installed(kind: str, name: str) -> Loaded:
    """Import what an installed package registered under ``name``.

    Raises:
        ConfigError: its code fails when imported, or it is not there.
    """
    return load(installed(kind)[name].value, kind)


def options_of(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments that ``maker`` (a class or a function) can be given by name."""
    parameters = inspect.signature(maker).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter for parameter in parameters if parameter.kind in named}


def check_options(
    maker: Callable[..., Any],
    options: Mapping[str, Any],
    what: str,
    known: Mapping[str, inspect.Parameter] | None = None,
) -> None:
    """Refuse options that ``maker`` does not take, and name those that it needs.

    Args:
        maker: a class or function.
        options: what it would be called with.
        what: its name in messages, e.g. ``"loss 'my.py:MyLoss'"``.
        known: its options, if they are not simply its arguments.

    Raises:
        ConfigError: with the options that exist.
    """
    known = options_of(maker) if known is None else known
    catch_all = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(maker).parameters.values())
    listed = ", ".join(known) or "none"
    for option in options:
        if option not in known and not catch_all:
            raise ConfigError(f"{what} has no option {option!r}.{did_you_mean(option, known)} Its options: {listed}.")
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise ConfigError(f"{what} needs the option {' and '.join(missing)}. Its options: {listed}.")


def changed_since(then: Mapping[str, str], now: Loaded) -> str | None:
    """A sentence on how the code behind a reference differs from what a run remembers; None where it does not."""
    if not then.get("sha256") or then["sha256"] == now.sha256:
        return None
    return (
        f"{now.reference} has changed since the run began (sha256 {then['sha256'][:12]}… then, {now.sha256[:12]}… now)."
    )


def _module(name: str, kind: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f" A file is named with its ending: {name.replace('.', '/')}.py:…" if "/" not in name else ""
            raise ConfigError(f"{kind} {reference!r}: there is no module {error.name!r} to import.{hint}") from error
        raise ConfigError(f"{kind} {reference!r} cannot be imported: {in_one_line(error)}.") from error
    except Exception as error:
        raise ConfigError(f"{kind} {reference!r} cannot be imported: {_told(error)}.") from error


def _module_of_file(path: Path, kind: str) -> ModuleType:
    """The module of a file outside the packages. The same file is imported once, so that its classes are the same."""
    path = path.expanduser()
    if not path.is_file():
        raise ConfigError(f"{kind}: there is no file {path}.")
    resolved = path.resolve()
    # Under a name of its own, by content: a changed file is another module, and no two files clash.
    name = f"recollect_outside_{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}_{_sha256(path)[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{kind}: {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look a module up while it is being executed
    # Beside the file may lie what it imports.
    sys.path.insert(0, str(resolved.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{kind}: {path} cannot be imported: {_told(error)}.") from error
    finally:
        sys.path.remove(str(resolved.parent))
    return module


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {in_one_line(error)}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
