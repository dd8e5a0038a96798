from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.config.recipes import available_recipes
from recollect.config.resolve import from_mapping, resolve


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["recipes", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_lists_every_recipe() -> None:
    out = run()
    assert [line.split()[0] for line in out.splitlines()[1:-2]] == list(available_recipes())
    assert out.splitlines()[-1].startswith(f"{len(available_recipes())} recipes.")


def test_list_as_json() -> None:
    entries = json.loads(run("vehicleid", "--json"))
    assert len(entries) == 9
    actual = {entry["name"]: entry for entry in entries}["vehicleid/r50-512/rsk"]
    assert actual["published"]["vehicleid/test_large"] == {"r@1": 93.8, "r@5": 96.6}
    assert actual["trains"] is True
    assert not json.loads(run("sop/diht-l14/init", "--json"))["trains"]


def test_shows_settings_with_their_origin_and_published_numbers() -> None:
    out = run("sop/clip2b-l14/sap")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert lines["lr"].split() == ["lr", "5e-05", "sop.yaml:", "vit-b16", "released"]
    assert "as in Smooth-AP's own implementation" in lines["size"]
    assert lines["seed"].split() == ["seed", "0", "default"]
    assert "r@1 87.5" in lines["sop/test"]
    assert "for this network were never published" in out
    assert "recollect train sop/clip2b-l14/sap --root FOLDER" in out


@pytest.mark.parametrize("name", ["glyphs", "folder", "sop/r50-128/rsk-simix", "gldv1/r101/rsk"])
def test_json_of_one_is_its_whole_configuration(name: str) -> None:
    listing = json.loads(run(name, "--json"))
    assert from_mapping(listing["config"], "json") == resolve(name)
    assert listing["origins"]["data.name"]["where"].endswith(".yaml")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("inherits: glyphs\nrun: {seed: 12} # my number\npublished: {r@1: 12.3}\n")
    out = run(str(tmp_path / "mine.yaml"))
    assert "12.3" in out
    assert "my number" in out
    assert "recollect train mine" in out
