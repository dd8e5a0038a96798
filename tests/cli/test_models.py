from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recollect.cli.main import app, main
from recollect.models.zoo import ZOO

runner = CliRunner()


def test_the_list_has_every_row_and_marks_licences() -> None:
    result = runner.invoke(app, ["models"])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.output.splitlines() if line}
    for name, row in ZOO.items():
        assert row.architecture in lines[name]
        assert ("(NC)" in lines[name]) == row.non_commercial
    assert "bundled" in lines["lite0-in1k"]
    assert "from scratch" in lines["tiny"]


def test_weights_at_hand_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))  # other tests download weights into the common one
    before = next(line for line in runner.invoke(app, ["models"]).output.splitlines() if line.startswith("swag-b16"))
    assert " no " in before
    (tmp_path / "vit_b16.torch").touch()
    after = next(line for line in runner.invoke(app, ["models"]).output.splitlines() if line.startswith("swag-b16"))
    assert " yes " in after
    assert str(tmp_path / "vit_b16.torch") in runner.invoke(app, ["models", "swag-b16"]).output


@pytest.mark.parametrize("name", ["clip400m-b32", "r101-caffe", "tiny", "timm:convnext_atto.d2_in1k"])
def test_one_is_shown_in_full(name: str) -> None:
    result = runner.invoke(app, ["models", name])
    assert result.exit_code == 0
    for word in ("architecture", "parameters", "input", "mean", "licence", "weights"):
        assert word in result.output
    if name == "clip400m-b32":
        for value in ("quickgelu", "0.481455", "vit_b_32-quickgelu-laion400m_e32-46683a32.pt", "MIT"):
            assert value in result.output


def test_a_terminal_without_utf_8_gets_the_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    monkeypatch.setattr(sys, "argv", ["recollect", "models"])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    assert ended.value.code == 0
    assert b"lite0-in1k   ?" in written.getvalue()
