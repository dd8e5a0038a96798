from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recollect.cli.main import app, main
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


def test_words_narrow_the_list() -> None:
    out = run("cars196/", "B16", "rsk")
    names = [line.split()[0] for line in out.splitlines()[1:-2]]
    assert names == [
        f"cars196/{init}/rsk" for init in ("vit-b16-in21k", "clip400m-b16", "clip2b-b16", "diht-b16", "swag-b16")
    ]
    assert "r@1 89.5" in out
    assert "ViT-B/16 from SWAG" in out


def test_list_as_json() -> None:
    entries = json.loads(run("vehicleid", "--json"))
    assert len(entries) == 9
    found = {entry["name"]: entry for entry in entries}["vehicleid/r50-512/rsk"]
    assert found["published"]["vehicleid/test_large"] == {"r@1": 93.8, "r@5": 96.6}
    assert found["trains"] is True
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


def test_an_init_row_shows_no_training() -> None:
    out = run("cars196/swag-b16/init")
    assert "recollect eval --recipe cars196/swag-b16/init --root FOLDER" in out
    assert "\noptimizer" not in out
    assert "never published" not in out.replace("chosen: never published.", "")


@pytest.mark.parametrize("name", ["glyphs", "folder", "sop/r50-128/rsk-simix", "gldv1/r101/rsk"])
def test_json_of_one_is_its_whole_configuration(name: str) -> None:
    shown = json.loads(run(name, "--json"))
    assert from_mapping(shown["config"], "json") == resolve(name)
    assert shown["origins"]["data.name"]["where"].endswith(".yaml")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("inherits: glyphs\nrun: {seed: 12} # my number\npublished: {r@1: 12.3}\n")
    out = run(str(tmp_path / "mine.yaml"))
    assert "12.3" in out
    assert "my number" in out
    assert "recollect train mine" in out


def test_a_recipe_laid_over_another_is_shown_as_one() -> None:
    shown = run("cars196/r50-512/rsk+_as_released")
    assert re.search(r"count_query +true +_as_released.yaml", shown)
    assert re.search(r"lr +0.0001 +cars196.yaml: r50", shown)


def test_a_family_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.yaml").write_text("inherits: _losses\nrows: {rsk: null, sap: null}\ndata: {name: folder}\n")
    monkeypatch.chdir(tmp_path)
    for name in ("shop", "shop.yaml", str(tmp_path / "shop.yaml")):
        assert "shop/sap" in run(name)
        assert "2 recipes" in run(name)
    assert "smooth_ap" in run("shop/sap")
    assert "smooth_ap" in run(str(tmp_path / "shop" / "sap"))


def test_an_unknown_name_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["recollect", "recipes", "sop/r50-512/rks"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert capsys.readouterr().err.startswith(
        "recollect: there is no recipe 'sop/r50-512/rks'. Did you mean sop/r50-512/rsk?"
    )


def test_recipes_are_listed_without_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from recollect.cli.main import app; "
        "CliRunner().invoke(app, ['recipes', 'sop']); CliRunner().invoke(app, ['recipes', 'sop/r50-512/rsk']); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
