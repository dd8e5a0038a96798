"""How many files there are between ``recollect train --data FOLDER`` and its first step, by two measures.

A file *works* if one of its functions runs on the way, imports not counted. It *hands on* if such a function also calls one
of another file that it imports: what a reader has to follow. Calls without knowing the callee (hooks, callbacks, the
forward of whatever network was given) do not count there. Neither measure counts ``common``, nor the plan's
measurements, which do beforehand a little of what the step does.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import make_images

import recollect

MOST_HANDING_ON = 25
MOST_WORKING = 65
SOURCES = Path(recollect.__file__).parent
WALK = r"""
import ast, importlib, os, sys, threading

root = os.path.dirname(os.path.realpath(sys.argv[1])) + os.sep
sys.argv = ["recollect", *sys.argv[2:]]
calls, working = set(), set()

class Arrived(SystemExit):
    pass

def own(frame):
    while frame is not None and not frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    return frame

def note(frame, event, argument):
    code = frame.f_code
    # Modules and classes being defined are not calls: their code has no fast locals.
    if event != "call" or not code.co_flags & 2 or not code.co_filename.startswith(root):
        return
    outer = frame
    while outer is not None and not (outer.f_code.co_name == "<module>" and outer.f_code.co_filename.startswith(root)):
        outer = outer.f_back
    if outer is None:
        working.add(code.co_filename)
    caller = own(frame.f_back)
    if caller is not None and caller.f_code.co_flags & 2:
        calls.add((caller.f_code.co_filename, code.co_filename))
    if code.co_name == "_estimate":
        sys.setprofile(None)  # until the plan is made; see ``again``
    if code.co_name == "large_batch_step":
        raise Arrived

def imported(path):
    found = set()
    for node in ast.walk(ast.parse(open(path, encoding="utf-8").read())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recollect"):
            module = importlib.import_module(node.module)
            found.add(module.__file__)
            for name in node.names:
                value = getattr(module, name.name, None)
                place = getattr(value, "__file__", None) or getattr(
                    sys.modules.get(getattr(value, "__module__", "")), "__file__", None
                )
                found.add(place)
    return found

# Other packages are imported and measurements are made once before anything is noted: it would take half a minute.
from recollect.common import devices, torchvision_fix
torchvision_fix.apply()
import timm, torch._dynamo
devices.SECONDS = 0.0

from recollect.cli import main
from recollect.training import estimate

measure = estimate._estimate

def again(training):
    try:
        return measure(training)
    finally:
        sys.setprofile(note)

estimate._estimate = again
threading.setprofile(note)
sys.setprofile(note)
try:
    main()
except Arrived:
    pass
sys.setprofile(None)
threading.setprofile(None)
for path in sorted(working):
    if f"{os.sep}common{os.sep}" not in path:
        print("WORKS", os.path.relpath(path, root))
known = {}
for caller, called in sorted(calls):
    if caller == called or f"{os.sep}common{os.sep}" in called:
        continue
    if caller not in known:
        known[caller] = imported(caller)
    if called in known[caller]:
        print("HANDS ON", os.path.relpath(caller, root), os.path.relpath(called, root))
"""


@pytest.mark.slow
def test_the_way_is_short(tmp_path: Path) -> None:
    photos = make_images(tmp_path / "photos", classes=4, each=4) / "train"
    command = [sys.executable, "-c", WALK, str(SOURCES / "__init__.py"), "train", "--data", str(photos), "--steps", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=600,
        env={"PYTHONPATH": str(SOURCES.parent), "RECOLLECT_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    handed = [line.split()[2:] for line in done.stdout.splitlines() if line.startswith("HANDS ON")]
    files = sorted({caller for caller, _ in handed})
    assert ["training/trainer.py", "step/large_batch.py"] in handed, "it arrived"
    assert len(files) <= MOST_HANDING_ON, files
    working = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("WORKS")]
    assert len(working) <= MOST_WORKING, working
    # Down once: nothing on the way calls back into what called it.
    assert not {(b, a) for a, b in handed} & {(a, b) for a, b in handed if "models" not in a}
