"""``recollect recipes``, ``losses`` and ``models``: tables for people, JSON for scripts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from cli.running import run as done
from recollect.cli.main import main
from recollect.config.recipes import available_recipes
from recollect.config.resolve import from_mapping, resolve
from recollect.losses import available
from recollect.models.zoo import ZOO


def run(*arguments: str) -> str:
    return str(done(*arguments).stdout)


def test_lists_every_recipe() -> None:
    out = run("recipes")
    assert [line.split()[0] for line in out.splitlines()[1:-2]] == list(available_recipes())
    assert out.splitlines()[-1].startswith(f"{len(available_recipes())} recipes.")


def test_recipes_as_json() -> None:
    entries = json.loads(run("recipes", "vehicleid", "--json"))
    assert len(entries) == 9
    actual = {entry["name"]: entry for entry in entries}["vehicleid/r50-512/rsk"]
    assert actual["published"]["vehicleid/test_large"] == {"r@1": 93.8, "r@5": 96.6}
    assert actual["trains"] is True
    assert not json.loads(run("recipes", "sop/diht-l14/init", "--json"))["trains"]


def test_shows_settings_with_their_origin_and_published_numbers() -> None:
    out = run("recipes", "sop/clip2b-l14/sap")
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert lines["lr"].split() == ["lr", "5e-05", "sop.yaml:", "vit-b16", "released"]
    assert "as in Smooth-AP's own implementation" in lines["size"]
    assert lines["seed"].split() == ["seed", "0", "default"]
    assert "r@1 87.5" in lines["sop/test"]
    assert "for this network were never published" in out
    assert "recollect train sop/clip2b-l14/sap --root FOLDER" in out


@pytest.mark.parametrize("name", ["glyphs", "folder", "sop/r50-128/rsk-simix", "gldv1/r101/rsk"])
def test_json_of_one_is_its_whole_configuration(name: str) -> None:
    listing = json.loads(run("recipes", name, "--json"))
    assert from_mapping(listing["config"], "json") == resolve(name)
    assert listing["origins"]["data.name"]["where"].endswith(".yaml")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("inherits: glyphs\nrun: {seed: 12} # my number\npublished: {r@1: 12.3}\n")
    out = run("recipes", str(tmp_path / "mine.yaml"))
    assert "12.3" in out
    assert "my number" in out
    assert "recollect train mine" in out


def test_losses_as_json() -> None:
    entries = json.loads(run("losses", "--json"))
    assert {entry["name"] for entry in entries} == set(available())
    arcface = next(entry for entry in entries if entry["name"] == "arcface")
    assert arcface["parameters"] is True
    assert arcface["extra"] == "baselines"


def test_shows_a_loss_with_its_options() -> None:
    out = run("losses", "cross_batch_memory")
    for part in ("memory_size", "8192", "required", "Mapping[str, Any] | None", 'pip install "recollect[baselines]"'):
        assert part in out


def test_the_list_has_every_row_and_marks_licences() -> None:
    lines = {line.split()[0]: line for line in run("models").splitlines() if line}
    for name, row in ZOO.items():
        assert row.architecture in lines[name]
        assert ("(NC)" in lines[name]) == row.non_commercial
    assert "bundled" in lines["lite0-in1k"]
    assert "from scratch" in lines["tiny"]


def test_weights_at_hand_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))  # other tests download weights into the common one
    before = next(line for line in run("models").splitlines() if line.startswith("swag-b16"))
    assert " no " in before
    (tmp_path / "vit_b16.torch").touch()
    after = next(line for line in run("models").splitlines() if line.startswith("swag-b16"))
    assert " yes " in after
    assert str(tmp_path / "vit_b16.torch") in run("models", "swag-b16")


@pytest.mark.parametrize("name", ["clip400m-b32", "r101-caffe", "tiny", "timm:convnext_atto.d2_in1k"])
def test_one_is_shown_in_full(name: str) -> None:
    out = run("models", name)
    for word in ("architecture", "parameters", "input", "mean", "licence", "weights"):
        assert word in out
    if name == "clip400m-b32":
        for value in ("quickgelu", "0.481455", "vit_b_32-quickgelu-laion400m_e32-46683a32.pt", "MIT"):
            assert value in out


def test_a_terminal_without_utf_8_gets_the_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    monkeypatch.setattr(sys, "argv", ["recollect", "models"])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    assert ended.value.code == 0
    assert b"lite0-in1k   ?" in written.getvalue()
