"""Repairs run in processes of their own: an import cannot be undone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import recollect
from recollect.common import torchvision_fix

SOURCE = str(Path(recollect.__file__).parents[1])

# A torchvision whose import asks for an operator, as the CUDA build does beside a CPU torch.
BROKEN = """
import torch
def _fake(*_):
    raise NotImplementedError
torch.library.register_fake("torchvision::nms")(_fake)
value = "imported whole"
"""


def run(code: str, path: str = "") -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [path, SOURCE]))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_broken_torchvision_is_repaired(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(BROKEN)
    code = """
import sys
try:
    import torchvision
except RuntimeError as error:
    assert "torchvision::nms does not exist" in str(error), error
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
else:
    raise SystemExit("the stand-in is not broken")
from recollect.common import torchvision_fix
print(torchvision_fix.apply(), torchvision_fix.apply())
import torchvision
print(torchvision.value)
"""
    assert run(code, str(tmp_path)).splitlines() == ["True True", "imported whole"]


def test_a_healthy_torchvision_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("value = 'healthy'\n")
    code = """
import sys
from recollect.common import torchvision_fix
print(torchvision_fix.apply(), torchvision_fix.apply(), torchvision_fix._declared)
import torchvision
print(torchvision.value, "torch" in sys.modules)
"""
    assert run(code, str(tmp_path)).splitlines() == ["False False []", "healthy False"]


def test_another_error_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('something else')\n")
    code = """
from recollect.common import torchvision_fix
try:
    torchvision_fix.apply()
except RuntimeError as error:
    print(error)
"""
    assert run(code, str(tmp_path)) == "something else"


def test_the_installed_torchvision_and_timm_work() -> None:
    torchvision_fix.apply()
    for name in ("timm", "torchvision.transforms.v2"):
        importlib.import_module(name)
