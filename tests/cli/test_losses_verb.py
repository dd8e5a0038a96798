from __future__ import annotations

import json

from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.losses import available


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
