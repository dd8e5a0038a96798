from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from recollect.cli.main import app, main
from recollect.losses import available


def test_lists_every_loss() -> None:
    result = CliRunner().invoke(app, ["losses"])
    assert result.exit_code == 0
    for name in available():
        assert name in result.stdout


def test_list_as_json() -> None:
    entries = json.loads(CliRunner().invoke(app, ["losses", "--json"]).stdout)
    assert {entry["name"] for entry in entries} == set(available())
    arcface = next(entry for entry in entries if entry["name"] == "arcface")
    assert arcface["parameters"] is True
    assert arcface["extra"] == "baselines"


def test_shows_a_loss_with_its_options() -> None:
    result = CliRunner().invoke(app, ["losses", "cross_batch_memory"])
    assert result.exit_code == 0
    for part in ("memory_size", "8192", "required", "Mapping[str, Any] | None", 'pip install "recollect[baselines]"'):
        assert part in result.stdout


def test_shows_a_loss_as_json() -> None:
    shown = json.loads(CliRunner().invoke(app, ["losses", "binned_ap", "--json"]).stdout)
    assert shown["entry"]["family"] == "rank"
    assert {"name": "bins", "type": "int", "default": 25, "required": False} in shown["options"]


def test_unknown_loss_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["recollect", "losses", "proxy_ancor"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err.startswith("recollect: loss 'proxy_ancor' is unknown. Did you mean proxy_anchor")
