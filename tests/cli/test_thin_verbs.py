"""Verbs that hand their options on (``cli/paper.py``, ``cli/serve.py``): each arrives where it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recollect.cli.app import app


def test_paper_hands_on_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def written(runs: list[Path], out: Path, *, overwrite: bool) -> Path:
        seen.append((runs, out, overwrite))
        return out

    monkeypatch.setattr("recollect.studies.paper_page.write_paper", written)
    for words in (["paper"], ["paper", "a", "b", "--out", "c.html", "--overwrite"]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert done.stdout.strip() == str(seen[-1][1])
    assert seen == [([], Path("paper.html"), False), ([Path("a"), Path("b")], Path("c.html"), True)]


def test_serve_tells_where_and_keeps_the_token_to_writers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Opened:
        address = "shop.index"

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def __len__(self) -> int:
            return 1234

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("recollect.search.Index.open", lambda *words, **more: Opened())
    monkeypatch.setattr("recollect.search.serving.serve", lambda index, **options: seen.append(options))
    monkeypatch.delenv("RECOLLECT_TOKEN", raising=False)
    done = CliRunner().invoke(app, ["serve", "shop.index", "--host", "::1", "--port", "81", "--allow-host", "a.org"])
    assert done.exit_code == 0, done.output
    assert "1,234 images" in done.output
    seen[0]["on_ready"]()
    assert "http://[::1]:81/" in capsys.readouterr().out
    assert (seen[0]["token"], seen[0]["hosts"], seen[0]["port"]) == (None, ["a.org"], 81)
    (tmp_path / "token").write_text("a-secret-of-enough-length-0123456789\n")
    done = CliRunner().invoke(app, ["serve", "shop.index", "--write", "--token-file", str(tmp_path / "token")])
    assert seen[1]["token"] == "a-secret-of-enough-length-0123456789"
    assert "a-secret" not in done.output
