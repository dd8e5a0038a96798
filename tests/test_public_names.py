"""Names imported when first used: every public name is there, and type checkers take it for public."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PACKAGES = ("data", "evaluation", "inference", "losses", "models", "report", "search", "step", "studies")


@pytest.mark.parametrize("name", ["recollect", *(f"recollect.{package}" for package in PACKAGES)])
def test_every_public_name_is_found_and_listed(name: str) -> None:
    package = importlib.import_module(name)
    text = Path(str(package.__file__)).read_text(encoding="utf-8")
    for public in package.__all__:
        assert getattr(package, public) is not None
        assert re.search(rf"\b{public} as {public}\b", text), "type checkers take other imports for private"
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing
