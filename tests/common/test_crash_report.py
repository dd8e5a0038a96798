from __future__ import annotations

import getpass
import platform
from pathlib import Path

import pytest

from recollect.common import crash_report


def _raised() -> Exception:
    try:
        raise KeyError(str(Path.home() / "secret" / "place"))
    except KeyError as error:
        return error


def test_a_report_says_what_is_needed_and_nothing_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    monkeypatch.setattr(Path, "home", lambda: Path("/home/somebody"))
    monkeypatch.setattr(getpass, "getuser", lambda: "somebody")
    monkeypatch.setattr(platform, "node", lambda: "their-laptop")
    monkeypatch.setattr(
        "sys.argv", ["recollect", "tune", "--storage", "postgresql://me:password@host/db", "/mnt/somebody/x"]
    )
    crash_report.remember_configuration({"data": {"root": "/home/somebody/photos"}, "name": "their-laptop"})
    path = crash_report.write_crash_report(_raised())
    assert path is not None
    text = path.read_text()
    for private in ("somebody", "password", "their-laptop"):
        assert private not in text
    for needed in ("KeyError", "_raised", "data.root='~/photos'", "recollect tune", "torch "):
        assert needed in text


def test_a_report_that_cannot_be_written_is_no_second_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", "/dev/null/x")
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/dev/null/y")
    assert crash_report.write_crash_report(_raised()) is None
