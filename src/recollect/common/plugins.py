"""Code from outside the package, chosen by name: ``package.module:attribute``, ``path/file.py:attribute``, entry points.

If a setting names a loss, a data set, a backbone, an augmentation, a metric, an optimizer, a logger or a store that its
registry does not know, the registry calls ``load``. Loading a reference runs the code it names, as importing does. So a
reference is followed if the user gives it: on the command line, in Python, or in a recipe that the user names. References read
from a run or a saved embedder may come from someone else: ``mark_untrusted`` marks them, and a marked reference is refused
unless the user trusts it (``--trust``, ``trusting``).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from recollect.common.errors import ConfigError, RecollectError, in_one_line
from recollect.common.machine import fix_torchvision
from recollect.common.text import did_you_mean

GROUPS = {
    "loss": "recollect.losses",
    "data set": "recollect.data",
    "backbone": "recollect.models",
    "augmentation": "recollect.augmentations",
    "metric": "recollect.metrics",
    "logger": "recollect.loggers",
    "optimizer": "recollect.optimizers",
    "store": "recollect.stores",
}
"""Kinds of things, and the entry-point group with which an installed package adds names to each."""

PASSED = "given"
"""Prefix in the name of an object that was passed in Python: ``given:module.Class``."""

_NOT_OUTSIDE = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), *site.getsitepackages())
"""Folders whose code a user did not write: recollect, Python and installed packages."""
_OF_A_FILE = "recollect_outside_"
"""How the names of modules begin that were imported from a file."""
_UNTRUSTED = "untrusted "
"""Prefix of a marked reference. Part of the text, so that no copy of the name loses it."""
_trusted = False
_recordings: list[list[Loaded]] = []


@dataclass(frozen=True)
class Loaded:
    """The object that a reference names.

    Args:
        target: the class, function or object itself.
        reference: the name that the user gave.
        file: the file of its code, if there is one.
        sha256: hash of that file, recorded in a run; empty without a file.
        kind: what it is, a key of ``GROUPS``.
    """

    target: Any
    reference: str
    file: Path | None
    sha256: str
    kind: str = ""

    @property
    def short(self) -> str:
        """The reference without the folder of its file, which differs between machines."""
        return short(self.reference)

    def as_dict(self) -> dict[str, str]:
        """Plain values for a manifest."""
        return {"kind": self.kind, "reference": self.short, "sha256": self.sha256}


def is_reference(name: str) -> bool:
    """Whether ``name`` has the form of a reference rather than that of a registered name.

    Examples:
        >>> [is_reference(name) for name in ("my_loss.py:MyLoss", "package.losses:MyLoss", "recall_at_k", "timm:vit.x")]
        [True, True, False, False]
    """
    place, colon, attribute = name.rpartition(":")
    return bool(colon and place and place != "timm") and all(part.isidentifier() for part in attribute.split("."))


def is_plugin(kind: str, name: str) -> bool:
    """Whether ``load`` finds something under this name: a reference, or a name of an installed package."""
    return is_reference(name) or name in installed(kind)


def load(kind: str, name: str) -> Loaded | None:
    """The object that a name stands for outside the package; None if it is neither a reference nor an installed name.

    Args:
        kind: what it should be, for messages: a key of ``GROUPS``.
        name: ``package.module:attribute``, ``path/file.py:attribute``, or the name of an entry point.

    Raises:
        ConfigError: there is no such file, module or attribute, its code fails when imported, or it is not trusted.
    """
    reference = name
    if not is_reference(name):
        if (point := installed(kind).get(name)) is None:
            return None
        reference = f"{point.module}:{point.attr}"
    if reference.startswith(_UNTRUSTED):
        raise ConfigError(
            f"{kind} {reference.removeprefix(_UNTRUSTED)!r} is named by a run or a saved model, and using it runs that "
            "code. If you trust it, repeat the command with --trust (in Python: trust=True)."
        )
    place, _, attribute = reference.rpartition(":")
    if place == PASSED:
        argument, instead = {
            "data set": ("train_set", "; to evaluate, name the images with --data"),
            "backbone": ("model", "; recollect.load takes backbone="),
        }.get(kind, (kind, ""))
        raise ConfigError(
            f"{kind}: {attribute} was passed in Python and is not stored in files. Continue in Python and pass it "
            f"again: recollect.train(resume=RUN, {argument}=…){instead}."
        )
    if place.split(".")[0] != "recollect":
        fix_torchvision()  # the code may import torchvision, which takes a second or two
    if place.endswith(".py") and not Path(place).expanduser().is_file():
        raise ConfigError(f"{kind}: there is no file {place}.")
    try:
        module = import_file(Path(place)) if place.endswith(".py") else _module(place)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{place}.".startswith(f"{missing}."):
            raise ConfigError(f"{kind} {reference!r} cannot be imported: {_one_line(error)}.") from error
        hint = f" To name a file, give its extension: {place.replace('.', '/')}.py:…" if "/" not in place else ""
        raise ConfigError(f"{kind} {reference!r}: there is no module {missing!r} to import.{hint}") from error
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            public = [name for name in vars(target) if not name.startswith("_")]
            raise ConfigError(f"{kind} {reference!r}: {place} has no {part!r}.{did_you_mean(part, public)}")
        target = getattr(target, part)
    file = None if module.__file__ is None else Path(module.__file__)
    return _recorded(Loaded(target, name, file, "" if file is None else _digest(file), kind))


def describe(thing: Any, kind: str, name: str | None = None) -> Loaded:
    """Describe an object passed in Python, by ``name`` or by its class and source file."""
    if name is not None:
        return _recorded(Loaded(thing, f"{PASSED}:{name}", None, "", kind))
    source = thing if inspect.isroutine(thing) or isinstance(thing, type) else type(thing)
    try:
        file: Path | None = Path(inspect.getfile(source))
    except (TypeError, OSError):  # built in, or typed at a prompt
        file = None
    # A module of a reference is shown as the user knows it, by its file.
    module = file.stem if file is not None and source.__module__.startswith(_OF_A_FILE) else source.__module__
    reference = f"{PASSED}:{module}.{source.__qualname__}".replace("<", "").replace(">", "")
    file = file if file is not None and file.is_file() else None
    return _recorded(Loaded(thing, reference, file, "" if file is None else _digest(file), kind))


@contextmanager
def recording() -> Iterator[list[Loaded]]:
    """Collect everything from outside the package that is loaded inside the block, to be recorded in a run."""
    record: list[Loaded] = []
    _recordings.append(record)
    try:
        yield record
    finally:
        _recordings.pop()


def _digest(file: Path) -> str:
    from recollect.common.reading import sha256  # late: --help does without YAML

    return sha256(file)


def _recorded(loaded: Loaded) -> Loaded:
    for record in _recordings:
        if all((other.kind, other.short) != (loaded.kind, loaded.short) for other in record):
            record.append(loaded)
    return loaded


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Inside the block, follow the references that runs and saved embedders name.

    Args:
        trust: with False nothing changes.

    Example:
        >>> import recollect
        >>> with recollect.trusting():
        ...     embedder = recollect.load("run")
    """
    global _trusted
    before, _trusted = _trusted, _trusted or trust
    try:
        yield
    finally:
        _trusted = before


def mark_untrusted(name: str) -> str:
    """A name read from a run or a saved embedder: a reference is marked so that ``load`` refuses it, unless trusted."""
    is_open = _trusted or name.startswith((_UNTRUSTED, f"{PASSED}:"))  # a given object is never searched for
    return f"{_UNTRUSTED}{name}" if is_reference(name) and not is_open else name


def short(name: str) -> str:
    """A name for display: a reference without the folder of its file and without the mark of ``mark_untrusted``.

    Example:
        >>> short("/home/ada/my.py:MyLoss"), short("recall_at_k")
        ('my.py:MyLoss', 'recall_at_k')
    """
    name = name.removeprefix(_UNTRUSTED)
    place, colon, attribute = name.rpartition(":")
    return f"{Path(place).name}{colon}{attribute}" if place.endswith(".py") else name


def absolute_reference(name: str, folder: Path) -> str:
    """A reference with its relative file resolved against ``folder``; other names are unchanged.

    Example:
        >>> absolute_reference("my.py:MyLoss", Path("/recipes")), absolute_reference("recall_at_k", Path("/recipes"))
        ('/recipes/my.py:MyLoss', 'recall_at_k')
    """
    place, _, attribute = name.rpartition(":")
    if not place.endswith(".py") or not is_reference(name) or name.startswith(_UNTRUSTED):
        return name
    return f"{folder / Path(place).expanduser()}:{attribute}"


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Nested plain values with ``change`` applied to every string except keys."""
    if isinstance(value, Mapping):
        return {key: map_strings(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_strings(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


@contextmanager
def errors_as_config(what: str) -> Iterator[None]:
    """Turn errors that outside code raises inside the block into a message that names the line.

    Args:
        what: the code's name in messages, e.g. ``"loss 'my.py:MyLoss'"``.

    Raises:
        ConfigError: instead of any error except recollect's own and a lack of memory.

    Example:
        >>> with errors_as_config("loss 'my.py:MyLoss'"):
        ...     {}["margin"]
        Traceback (most recent call last):
        ...
        recollect.common.errors.ConfigError: loss 'my.py:MyLoss' fails: KeyError: 'margin'.
    """
    try:
        yield
    except (RecollectError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} fails: {_one_line(error)}.") from error


def unknown(kind: str, name: str, names: Iterable[str]) -> ConfigError:
    """The error for a name that neither recollect nor an installed package defines."""
    if name.endswith(".py"):
        return ConfigError(f"{kind} {name!r} is a file: add the name of what to use from it, {name}:name.")
    names = [*names, *installed(kind)]
    guess = did_you_mean(name, names) or did_you_mean(name.lower().replace("-", "_"), names)
    return ConfigError(
        f"{kind} {name!r} is unknown.{guess} Choose one of {', '.join(names)}, or your own as file.py:name."
    )


def installed(kind: str) -> dict[str, metadata.EntryPoint]:
    """Names that installed packages add for ``kind`` through their entry points, without importing them."""
    return {point.name: point for point in _entry_points(GROUPS[kind], tuple(sys.path))}


@functools.lru_cache(maxsize=len(GROUPS))
def _entry_points(group: str, path: tuple[str, ...]) -> metadata.EntryPoints:
    """Those on ``sys.path``. Kept, since the metadata of every installed package is read to find them."""
    return metadata.entry_points(group=group)


def list_installed(kind: str) -> list[dict[str, str]]:
    """What installed packages add for ``kind``, to be listed: ``name``, ``package`` and ``reference`` of each."""
    return [
        {"name": name, "package": point.dist.name if point.dist else "?", "reference": point.value}
        for name, point in installed(kind).items()
    ]


def options_of(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The arguments that ``maker`` (a class or a function) can be given by name."""
    return {name: p for name, p in _parameters(maker).items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _parameters(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker).parameters
    except ValueError:  # some built-in functions have no signature
        return {}


def check_options(
    maker: Callable[..., Any],
    options: Mapping[str, Any],
    what: str,
    parameters: Mapping[str, inspect.Parameter] | None = None,
) -> None:
    """Refuse options that ``maker`` does not take, and name those that it needs.

    Args:
        maker: a class or function.
        options: the options to call it with.
        what: its name in messages, e.g. ``"loss 'my.py:MyLoss'"``.
        parameters: its options, if they are not simply its arguments; by default a ``**`` argument accepts any other.

    Raises:
        ConfigError: the message lists the existing options.
    """
    catch_all = parameters is None and any(p.kind is p.VAR_KEYWORD for p in _parameters(maker).values())
    parameters = options_of(maker) if parameters is None else parameters
    names = ", ".join(parameters) or "none"
    for option in options:
        if option not in parameters and not catch_all:
            guess = did_you_mean(option, parameters)
            raise ConfigError(f"{what} has no option {option!r}.{guess} Its options: {names}.")
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise ConfigError(f"{what} needs the option {' and '.join(missing)}. Its options: {names}.")


def changed_code(then: Iterable[Mapping[str, str]], now: Iterable[Loaded]) -> list[str]:
    """One sentence for each object whose code differs from that recorded in a run."""
    recorded = {(entry.get("kind"), entry.get("reference")): entry.get("sha256") for entry in then}
    sentences = []
    for loaded in now:
        before, what = recorded.get((loaded.kind, loaded.short)), f"{loaded.kind} {loaded.short}"
        if before is None:
            sentences.append(f"{what} is used now, but was not when the run began.")
        elif before and before != loaded.sha256:
            hashes = f"sha256 {before[:12]}… then, {loaded.sha256[:12]}… now"
            sentences.append(f"{what} has changed since the run began ({hashes}).")
    return sentences


def _module(name: str) -> ModuleType:
    """A module by its name: of an installed package or, if there is none, in the current folder."""
    first = name.partition(".")[0]
    is_installed = first in sys.modules or importlib.util.find_spec(first) is not None
    with nullcontext() if is_installed else _importing_from(Path.cwd()):
        return importlib.import_module(name)


def imported_files() -> list[Path]:
    """The files of the references that were loaded so far, for a process that unpickles their objects."""
    return [Path(str(module.__file__)) for name, module in list(sys.modules.items()) if name.startswith(_OF_A_FILE)]


def import_file(path: Path) -> ModuleType:
    """The module of a file outside the packages. The same file is imported once, so that its classes are the same."""
    path = path.expanduser().resolve()
    # Under a unique name, by content: a changed file is another module, and no two files clash.
    name = f"{_OF_A_FILE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{_digest(path)[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))  # type: ignore[arg-type]
    sys.modules[name] = module  # dataclasses and pickling look a module up while it is being executed
    try:
        with _importing_from(path.parent):  # it may import modules next to it
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the code may have removed it
            sys.path.remove(str(folder))


def _one_line(error: BaseException) -> str:
    """An error in one line, with the last line of outside code that it passed through."""
    message = f"{type(error).__name__}: {in_one_line(error)}".rstrip(": .")
    if isinstance(error, SyntaxError):  # says where it is itself
        return message
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_NOT_OUTSIDE)):
            return f"{message} ({Path(frame.filename).name}, line {frame.lineno})"
    return message
