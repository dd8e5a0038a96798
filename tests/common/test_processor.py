"""Processors that fail at half precision, played by children that end as on such a processor."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.common import processor
from recollect.common.errors import ConfigError
from recollect.common.processor import (
    LIMITS,
    VARIABLE,
    announces_amx,
    check_half_precision,
    prepare_half_precision,
    processor_name,
    set_remembered_limit,
)

SOUND = "pass"
DIES = "os.kill(os.getpid(), signal.SIGILL)"
HANGS = "import time; time.sleep(600)"
on_unix = pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send itself SIGILL on Windows")
on_x86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN's limits are of x86 processors"
)

INTEL = """processor\t: 0
model name\t: Intel(R) Xeon(R) Processor
flags\t\t: fpu avx512f avx512_fp16 amx_bf16 amx_tile

processor\t: 1
model name\t: another
flags\t\t: fpu
"""


class Machine:
    """Children that behave as on a made-up processor, and a record of those that were started."""

    def __init__(self, folder: Path) -> None:
        self.started_file = folder / "started"

    def child(self, otherwise: str, **at_limit: str) -> list[str]:
        """A child that runs ``otherwise``, or what is given for the limit it is started with."""
        script = (
            f"import os, signal; limit = os.environ.get({VARIABLE!r}, 'none')\n"
            f"with open({str(self.started_file)!r}, 'a') as file: print(limit, file=file)\n"
            f"exec({at_limit!r}.get(limit, {otherwise!r}))"
        )
        return [sys.executable, "-c", script]

    @property
    def started(self) -> list[str]:
        """The limits of the children so far."""
        return self.started_file.read_text().split() if self.started_file.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """An empty cache, a process that knows nothing and in which torch has not computed, no limit set."""
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(processor, "_sound", set())
    monkeypatch.setattr(processor, "_limit_holds", lambda limit: True)
    monkeypatch.setenv(VARIABLE, "to be restored")
    monkeypatch.delenv(VARIABLE)
    return Machine(tmp_path)


def in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_sound", set())
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_sound_processor_is_tried_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_half_precision(machine.child(SOUND))
    prepare_half_precision(machine.child(DIES))  # this process knows
    in_a_new_process(monkeypatch)
    prepare_half_precision(machine.child(DIES))  # the cache knows
    assert machine.started == ["none"]
    assert VARIABLE not in os.environ


@on_unix
def test_a_child_that_dies_is_cured_by_the_first_limit_that_helps(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = machine.child(DIES, AVX512_CORE=SOUND, AVX2=SOUND)
    prepare_half_precision(child)
    assert os.environ[VARIABLE] == "AVX512_CORE"
    assert machine.started == ["none", "AVX512_CORE_BF16", "AVX512_CORE"]
    prepare_half_precision(child)
    in_a_new_process(monkeypatch)
    prepare_half_precision(child)
    assert os.environ[VARIABLE] == "AVX512_CORE"
    monkeypatch.setattr(processor, "_sound", set())  # a process that this one starts inherits the limit
    prepare_half_precision(child)
    assert len(machine.started) == 3


@on_unix
def test_too_late_to_limit(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_limit_holds", lambda limit: False)
    child = machine.child(DIES, AVX512_CORE_BF16=SOUND)
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"SIGILL.*{VARIABLE}=AVX512_CORE_BF16 before.*run\.precision=fp32"):
            prepare_half_precision(child)
        assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "ALL")  # the user's own is put back
    with pytest.raises(ConfigError, match="SIGILL"):
        prepare_half_precision(child)
    assert os.environ[VARIABLE] == "ALL"
    monkeypatch.setenv(VARIABLE, "AVX512_CORE_BF16")  # what the message asks for
    prepare_half_precision(child)
    assert machine.started == ["none", "AVX512_CORE_BF16", "ALL"]


@on_unix
def test_a_processor_that_nothing_cures_is_refused(machine: Machine) -> None:
    with pytest.raises(ConfigError, match=r"SIGILL.*also with .*AVX2.*run\.precision=fp32"):
        prepare_half_precision(machine.child(DIES))
    assert machine.started == ["none", *LIMITS]
    assert VARIABLE not in os.environ


def test_a_child_that_fails_says_why(machine: Machine) -> None:
    child = machine.child("raise RuntimeError('could not create a primitive')")
    with pytest.raises(ConfigError, match=r"code 1 .*primitive"):
        prepare_half_precision(child)


def test_a_child_that_hangs_is_not_remembered(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "LIMITS", ("AVX2",))
    with pytest.raises(ConfigError, match=r"took .*0\.5 s"):
        prepare_half_precision(machine.child(HANGS), seconds=0.5)
    prepare_half_precision(machine.child(SOUND))
    assert VARIABLE not in os.environ


def test_a_child_that_cannot_be_started(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="could not be started"):
        prepare_half_precision([str(tmp_path / "missing")])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"works": true}', "\udcff"])
def test_a_damaged_cache_is_made_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    prepare_half_precision(machine.child(SOUND))
    (kept,) = (tmp_path / "cache/processor").glob("*.json")
    kept.write_bytes(content.encode(errors="surrogateescape"))
    in_a_new_process(monkeypatch)
    prepare_half_precision(machine.child(SOUND))
    assert machine.started == ["none", "none"]


def test_a_cache_that_cannot_be_written(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        in_a_new_process(monkeypatch)
        prepare_half_precision(machine.child(SOUND))
    assert machine.started == ["none", "none"]


def test_another_torch_is_tried_anew(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_half_precision(machine.child(SOUND))
    in_a_new_process(monkeypatch)
    monkeypatch.setattr(processor.metadata, "version", lambda name: "99.0")
    prepare_half_precision(machine.child(SOUND))
    assert len(machine.started) == 2


@on_unix
def test_a_remembered_limit_is_set_at_the_start(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "announces_amx", lambda: True)
    set_remembered_limit()
    assert VARIABLE not in os.environ, "nothing is remembered yet"
    prepare_half_precision(machine.child(DIES, AVX512_CORE_BF16=SOUND))
    in_a_new_process(monkeypatch)
    set_remembered_limit()
    assert os.environ[VARIABLE] == "AVX512_CORE_BF16"
    set_remembered_limit()
    assert os.environ[VARIABLE] == "AVX512_CORE_BF16"
    assert len(machine.started) == 2
    in_a_new_process(monkeypatch)
    monkeypatch.setattr(processor, "announces_amx", lambda: False)
    set_remembered_limit()
    assert VARIABLE not in os.environ


def test_what_a_processor_announces(tmp_path: Path) -> None:
    assert not announces_amx(tmp_path)
    assert processor_name(tmp_path) == (platform.processor() or platform.machine())
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(INTEL)
    assert announces_amx(tmp_path)
    assert processor_name(tmp_path) == "Intel(R) Xeon(R) Processor"
    (tmp_path / "proc/cpuinfo").write_text(INTEL.replace("amx", "other"))
    assert not announces_amx(tmp_path)


@pytest.mark.parametrize(
    ("flags", "bf16", "fp16", "limit", "holds"),
    [
        ("amx_bf16 avx512_fp16", True, False, "AVX512_CORE_BF16", True),
        ("amx_bf16 avx512_fp16", True, True, "AVX512_CORE_BF16", False),  # read before
        ("avx512_bf16", True, False, "AVX512_CORE", False),  # no way to tell
        ("avx512_bf16", True, False, "AVX2", False),
        ("avx512_bf16", False, False, "AVX2", True),
        ("", None, None, "AVX2", False),
    ],
)
def test_whether_a_limit_holds(
    monkeypatch: pytest.MonkeyPatch, flags: str, bf16: bool | None, fp16: bool | None, limit: str, holds: bool
) -> None:
    def answer(value: bool | None) -> Any:
        def ask() -> bool:
            if value is None:
                raise RuntimeError("built without oneDNN")
            return value

        return ask

    monkeypatch.setattr(processor, "_cpuinfo", lambda: {"flags": flags})
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", answer(bf16), raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", answer(fp16), raising=False)
    assert processor._limit_holds(limit) is holds


@on_x86
@pytest.mark.parametrize("before", ["pass", "nn.Linear(64, 64)(torch.ones(64, 64))"])
def test_when_onednn_reads_the_variable(tmp_path: Path, before: str) -> None:
    """After torch's import and a network's making it can still be set; after its first product it cannot."""
    script = f"""
import os, torch
from torch import nn
from recollect.common import processor

network = nn.Conv2d(3, 8, 3)
nn.init.orthogonal_(torch.empty(8, 8)).bfloat16() + 1
{before}
processor._set_limit("AVX2")
print(os.environ.get(processor.VARIABLE), torch.ops.mkldnn._is_mkldnn_bf16_supported())
"""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    said = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    limit, bf16 = said.stdout.split()
    if before == "pass":
        assert (limit, bf16) == ("AVX2", "False")
    else:  # on a processor without AVX-512 there is nothing to limit
        assert (limit, bf16) in (("None", "True"), ("AVX2", "False"))


def test_the_child_itself() -> None:
    """The real trial under the limit of these tests, on this processor; conftest has set one where it is needed."""
    limit = os.environ.get(VARIABLE)
    assert processor._try_in_child(limit, None, 600.0) == processor.ProbeOutcome(True)


@pytest.mark.parametrize(
    ("model", "autocast", "ambient", "asks"),
    [
        (torch.nn.Linear(2, 2), None, False, False),
        (torch.nn.Linear(2, 2), torch.bfloat16, False, True),
        (torch.nn.Linear(2, 2), torch.float16, False, True),
        (torch.nn.Linear(2, 2), None, True, True),
        (torch.nn.Linear(2, 2).double(), None, False, False),
        (torch.nn.Linear(2, 2).half(), None, False, True),
        (torch.nn.Linear(2, 2, device="meta"), torch.bfloat16, False, False),
        (torch.nn.Identity(), None, False, False),
        (torch.nn.Identity(), torch.bfloat16, False, True),
    ],
)
def test_only_half_precision_on_a_cpu_is_tried(
    monkeypatch: pytest.MonkeyPatch, model: torch.nn.Module, autocast: torch.dtype | None, ambient: bool, asks: bool
) -> None:
    calls: list[None] = []
    monkeypatch.setattr(processor, "prepare_half_precision", lambda: calls.append(None))
    with torch.autocast("cpu", torch.bfloat16, enabled=ambient):
        check_half_precision(model, autocast)
    assert bool(calls) is asks


@pytest.mark.slow
@on_unix
@on_x86
def test_these_tests_limit_themselves(tmp_path: Path) -> None:
    """On a processor that announces AMX and dies of it, ``make test`` and its workers run under the limit."""
    (tmp_path / "broken.py").write_text(f"""
import os
from recollect.common import processor
processor.announces_amx = lambda: True
processor._CHILD = "import os, signal; os.environ.get({VARIABLE!r}) == 'AVX2' or os.kill(os.getpid(), signal.SIGILL)"

def pytest_sessionfinish():
    import torch
    with open({str(tmp_path / "seen")!r}, "a") as file:
        print(os.environ[{VARIABLE!r}], torch.ops.mkldnn._is_mkldnn_bf16_supported(), file=file)
""")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", VARIABLE))}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
        "RECOLLECT_CACHE": str(tmp_path / "cache"),
    }
    options = ["-n", "1", "-p", "broken", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "tests/common/test_cache_folder.py"]
    done = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen == ["AVX2 False"] * 2, "the worker's and that of the process that started it"
