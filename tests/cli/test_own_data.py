"""A run is evaluated on its own test part, and a folder is the one that was named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.running import run as cli
from recollect.cli.main import app
from recollect.common.errors import ConfigError
from recollect.config.resolve import resolve
from recollect.inference.test_sets import choose_test
from recollect.training.build import objects_and_names
from recollect.training.trainer import train
from training.small_runs import make_images, small_config


@pytest.mark.parametrize("name", ["photos #1", "2024", "a: b", "[x]", "null", "~mine", 'say "cheese"', "Fotos für Ü"])
def test_a_folder_is_named_to_the_letter(name: str) -> None:
    for recipe in (None, "folder"):
        assert resolve(recipe, data=name).data.root == name


@pytest.mark.parametrize("name", ["glyphs", "folder", "cub"])
def test_a_folder_with_the_name_of_a_data_set_is_asked_about(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_images(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    message = rf"Write --data \./{name} for the folder; for the data set, (add --root FOLDER|rename)"
    for call in (
        lambda: resolve(None, data=name),
        lambda: choose_test(data=name),
        lambda: objects_and_names(None, name, None, None, None),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
    for verb in (["train", "--plan"], ["eval", "tiny"], ["calibrate", "tiny"]):
        refused = CliRunner().invoke(app, [*verb, "--data", name])
        assert isinstance(refused.exception, ConfigError), refused.output
    assert resolve(None, data=f"./{name}").data.name == "folder"
    assert choose_test(data=f"./{name}")[0].name == "folder"
    assert resolve(None, data=name, root="elsewhere").data.root == "elsewhere"
    assert resolve("glyphs").data.name == "glyphs"


def test_eval_takes_the_run_s_own_split_and_options(tmp_path: Path) -> None:
    root = make_images(make_images(tmp_path / "images"), classes=6, split="elsewhere", seed=1)
    listed = tmp_path / "list.csv"
    rows = [
        f"{path.relative_to(root).as_posix()},{path.parent.name},{path.parents[1].name}"
        for path in sorted(root.rglob("*.png"))
        if path.parent.name != "elsewhere-05"
    ]
    listed.write_text("\n".join(["path,label,split", *rows]) + "\n")
    own = {"data.options": {"csv": str(listed)}, "data.test_split": "elsewhere"}
    config = small_config(root, **own, **{"run.epochs": 1, "run.watch_test": True})
    run = train(config, tmp_path / "run").folder
    cli("eval", run)
    written = json.loads(next((run / "eval").rglob("metrics.json")).read_text())
    manifest = json.loads((run / "manifest.json").read_text())
    assert written["source"]["split"] == "elsewhere"
    assert written["source"]["fingerprint"] == manifest["data"]["fingerprints"]["test"]
