"""The versions that pyproject.toml allows, and those that `make lowest` tests with."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]


def test_the_lowest_versions_that_can_be_installed_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tools = ("docs", "dev", "milvus-standalone")
    optional = [listed for extra, listed in project["optional-dependencies"].items() if extra not in tools]
    needed = [Requirement(text) for text in sum(optional, project["dependencies"])]
    tested = [
        Requirement(line) for line in (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()[2:]
    ]
    versions = {pin.name: next(iter(pin.specifier)).version for pin in tested}
    for each in needed:
        name = each.name.lower().replace("_", "-")
        assert each.specifier.contains(versions[name]), each
        if each.specifier and name not in ("torch", "torchvision"):  # these are the locked ones
            assert [Version(bound.version) for bound in each.specifier] == [Version(versions[name])], each
