from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.cli.main import StoppedError, run_command
from recollect.common.errors import ConfigError, WeightsError


@pytest.fixture(autouse=True)
def _reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _end(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    def command() -> None:
        raise error

    code = run_command(command)
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return code, message


def _wrapped(cause: Exception) -> RuntimeError:
    error = RuntimeError("a library hides the reason")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError("a sentence"), 1, ["a sentence"]),
        (KeyboardInterrupt(), 130, ["Ctrl-C"]),
        (StoppedError(signal.SIGTERM), 143, ["SIGTERM"]),
        (MemoryError(), 1, ["memory", "--batch-size"]),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, ["memory"]),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 1, ["/x/y", "disk is full"]),
        (_wrapped(OSError(errno.ENOSPC, "No space left on device", "/x/y")), 1, ["disk is full"]),
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), 1, ["/x/y", "Permission denied"]),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full"), 1, ["database", "again"]),
        (ConfigError("a name with \x1b[31m in it"), 1, ["\\x1b[31m"]),
    ],
)
def test_what_is_foreseen_is_a_sentence(
    error: BaseException, code: int, words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result, message = _end(error, capsys)
    assert result == code
    for word in words:
        assert word in message
    assert message.count("\n") == 1


def test_what_nobody_foresaw_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, message = _end(ZeroDivisionError("x\ny"), capsys)
    assert code == 1
    assert "ZeroDivisionError: x y" in message
    assert "RECOLLECT_DEBUG=1" in message
    assert message.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_signal_that_a_library_turned_into_another_error_is_still_one(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        except BaseException as error:  # as code in C does
            raise WeightsError("cannot be read") from error

    assert run_command(command) == 143
    assert "SIGTERM" in capsys.readouterr().err

    def ordinary() -> None:
        raise WeightsError("cannot be read")

    assert run_command(ordinary) == 1  # not remembered


def test_nobody_reads_the_output() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "recollect", "recipes", "--json"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
