"""A report of an unexpected error, for users to attach to an issue.

It contains the traceback, versions, the command and the configuration. Private data is masked: the home directory, the
names of the user and the machine, and passwords in addresses.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from recollect._version import __version__
from recollect.common.files import cache_folder, write_text

_PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "safetensors", "pyyaml", "filelock", "typer", "optuna")
_configuration: Mapping[str, Any] = {}


def remember_configuration(values: Mapping[str, Any]) -> None:
    """Keep the configuration in use for a report."""
    global _configuration
    _configuration = values


def write_crash_report(error: BaseException) -> Path | None:
    """Write a report to the cache folder, or else to the folder for temporary files; None if neither is possible."""
    name = f"crash-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.txt"
    for folder in (cache_folder() / "crashes", Path(tempfile.gettempdir())):
        with contextlib.suppress(Exception):
            write_text(folder / name, masked(_report(error)))
            return folder / name
    return None


def _report(error: BaseException) -> str:
    versions = {"recollect": __version__, "python": platform.python_version(), "system": platform.platform()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    parts = {
        "command": " ".join(sys.argv),
        "error": "".join(traceback.format_exception(error)),
        "versions": "\n".join(f"{name} {version}" for name, version in versions.items()),
        "configuration": "\n".join(_lines(_configuration)) or "not known",
    }
    return "".join(f"# {title}\n\n{text.rstrip()}\n\n" for title, text in parts.items())


def _lines(values: Any, above: str = "") -> list[str]:
    if not isinstance(values, Mapping):
        return [_shown(values)]
    found: list[str] = []
    for key, value in values.items():
        inner = isinstance(value, Mapping) and value
        found += _lines(value, f"{above}{key}.") if inner else [f"{above}{key}={_shown(value)}"]
    return found


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # Python does not convert a number of more than 4,300 digits to text
        return f"<{type(value).__name__}>"


def masked(text: str) -> str:
    """``text`` without the home directory, the user's and the machine's name, and passwords in addresses."""
    names: dict[str, str] = {}
    with contextlib.suppress(Exception):
        names[re.escape(str(Path.home()))] = "~"
    with contextlib.suppress(Exception):  # no user of this number, as in some containers
        # Only as a part of a path or an address: a user may be called "data".
        user = re.escape(getpass.getuser())
        names[rf"(?<=[/\\]){user}(?=[/\\\s\"':,@]|$)"] = "<user>"
    if host := platform.node():
        names[rf"\b{re.escape(host)}\b"] = "<machine>"
    for pattern, name in names.items():
        text = re.sub(pattern, lambda match, name=name: name, text, flags=re.MULTILINE)  # type: ignore[misc]
    return re.sub(r"(://)[^/@\s]*:[^/@\s]*@", r"\1***@", text)
