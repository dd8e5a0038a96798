"""The examples run as they are, and learn."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from recollect.common import torchvision_fix

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "package"),
    [("plain_pytorch", "torch"), ("with_lightning", "pytorch_lightning"), ("with_accelerate", "accelerate")],
)
def test_an_example_learns(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision_fix.apply()  # Lightning imports torchvision
    pytest.importorskip(package)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before, after = importlib.import_module(name).main()
    assert after > before + 0.05
    sys.modules.pop(name)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60
