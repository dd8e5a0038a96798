"""Gradients, ranks and trainings on a device that is not the CPU, in a process of their own.

Once a second device is registered with torch, autograd starts a thread for it, and processes forked later by other tests hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

import recollect


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="needs a newer torch"
)
def test_everything_computes_on_a_second_device() -> None:
    """The cases are in ``second_device_cases.py``."""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(Path(recollect.__file__).parents[1]), str(here)])
    command = [
        sys.executable,
        *["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"],
        str(here / "second_device_cases.py"),
    ]
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
