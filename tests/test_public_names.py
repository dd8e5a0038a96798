"""Names imported when first used: every public name is there, and type checkers see the same ones."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

PACKAGES = (
    "recollect",
    "recollect.losses",
    "recollect.models",
    "recollect.data",
    "recollect.step",
    "recollect.config",
    "recollect.tuning",
    "recollect.studies",
    "recollect.report",
    "recollect.search",
)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_found_and_listed(name: str) -> None:
    package = importlib.import_module(name)
    for public in package.__all__:
        assert getattr(package, public) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_are_told_of_every_public_name(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(package.__all__) <= imported
