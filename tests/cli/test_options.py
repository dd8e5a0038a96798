"""What the library says and where the command line prints it; options that would have no effect."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recollect.cli.main import app, show_data_warnings
from recollect.cli.options import show_remarks
from recollect.common import console
from recollect.common.console import PROGRESS
from recollect.common.errors import DataWarning, RecollectError

log = logging.getLogger("recollect.anything")


@pytest.fixture(autouse=True)
def _remarks() -> Iterator[None]:
    with show_remarks():
        yield
    console.silent = False


def test_remarks_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    log.info("the plan")
    log.debug("a detail")
    assert capsys.readouterr() == ("the plan\n", "")


def test_quiet_leaves_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    console.silent = True
    log.info("the plan")
    log.info("half", extra=PROGRESS)
    log.warning("a run failed")
    assert capsys.readouterr() == ("", "recollect: a run failed\n")


def test_warnings_about_data_are_sentences_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as others:
        show_data_warnings()
        for _ in range(2):
            warnings.warn("sop: too few.", DataWarning, stacklevel=1)
        warnings.warn("sop: too few.", DataWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
        console.silent = True
        warnings.warn("cub: too few.", DataWarning, stacklevel=1)
    assert capsys.readouterr().err == "recollect: sop: too few.\n"
    assert [str(other.message) for other in others] == ["something else"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("eval v.npz --split test --skip-bad", "--split and --skip-bad would have no effect on vectors from a file"),
        ("eval run --protocol reid --queries-out q.npz", "--queries-out would have no effect with --protocol reid"),
        ("index a.index --remove x --add", "--add would have no effect with --remove"),
        ("search a.index q --root photos", "--root would have no effect on an index"),
        ("serve a.index --token-file t", "--token-file would have no effect without --write"),
        ("publish run --folder out --private", "--private would have no effect without --to"),
        ("data --json verify glyphs", "give --json after verify"),
        ("compare --losses smooth_ap --set run.seed=3", "run.seed would have no effect"),
        ("embed . x.jpg --weights w.pth", "remove --weights"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "embedder.json").write_text("{}")
    (tmp_path / "x.jpg").touch()
    refused = CliRunner().invoke(app, words.split())
    assert isinstance(refused.exception, RecollectError), refused.output
    assert message in str(refused.exception)


def test_numbers_out_of_range_are_wrong_usage() -> None:
    for value in ("nan", "inf", "-inf", "-1", "1e30", "x"):
        result = CliRunner().invoke(app, ["calibrate", "run", "--false-match-rate", value])
        assert result.exit_code == 2, result.output
