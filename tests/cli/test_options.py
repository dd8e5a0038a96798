"""What the library says and where the command line prints it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from recollect.cli.options import remarks_aside, show_remarks
from recollect.common.console import PROGRESS, set_quiet

log = logging.getLogger("recollect.anything")


@pytest.fixture(autouse=True)
def _remarks() -> Iterator[None]:
    end = show_remarks()
    yield
    end()
    set_quiet(False)


def test_remarks_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    log.info("the plan")
    log.debug("a detail")
    assert capsys.readouterr() == ("the plan\n", "")


def test_with_json_they_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    remarks_aside()
    log.info("the plan")
    assert capsys.readouterr() == ("", "recollect: the plan\n")


def test_quiet_leaves_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    set_quiet(True)
    log.info("the plan")
    log.info("half", extra=PROGRESS)
    log.warning("a run failed")
    assert capsys.readouterr() == ("", "recollect: a run failed\n")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_has_a_live_line_instead_of_progress(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    log.info("half", extra=PROGRESS)
    assert capsys.readouterr().out == ("" if terminal else "half\n")


def test_ending_leaves_the_logger_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("recollect")
    before = list(library.handlers)
    show_remarks()()
    assert len(library.handlers) == len(before) - 1
    assert library.level == logging.INFO  # the other one still shows
    log.info("the plan")
    assert capsys.readouterr() == ("", "")


def test_as_a_library_nothing_is_printed() -> None:
    said = "import logging, recollect; logging.getLogger('recollect.training').warning('careful')"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True, timeout=600)
    assert (done.stdout, done.stderr) == ("", "")
