"""Names of code from outside in a configuration: absolute in a run, sealed when read from one, relative to a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.config.overrides import resolve
from recollect.config.references import anchored_names, sealed_names, short_names

SETTINGS = {
    "data.name": "a.py:data",
    "data.augmentation": "a.py:augment",
    "model.init": "a.py:net",
    "loss.name": "a.py:Loss",
    "loss.options": {"inner": "a.py:Inner", "tau": 1, "many": ["b.c:D"]},
    "run.select": "a.py:metric",
    "run.loggers": ["a.py:Log"],
    "run.logger_options": {"a.py:Log": {"x": 1}},
}


def test_every_name_is_anchored_sealed_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = resolve(None, SETTINGS)
    absolute = anchored_names(config)
    assert absolute.loss.name == f"{tmp_path}/a.py:Loss"
    assert absolute.loss.options == {"inner": f"{tmp_path}/a.py:Inner", "tau": 1, "many": ["b.c:D"]}
    assert absolute.run.loggers == tuple(absolute.run.logger_options)
    sealed = sealed_names(config)
    names = [sealed.data.name, sealed.data.augmentation, sealed.model.init, sealed.loss.name, sealed.run.select]
    for name in [*names, sealed.loss.options["inner"], sealed.loss.options["many"][0], sealed.run.loggers[0]]:
        with pytest.raises(ConfigError, match="--trust"):
            plugins.load_reference(name, "loss")
    assert short_names(sealed) == config
    with plugins.trusting():
        assert sealed_names(config) == config
    assert sealed_names(sealed) == sealed


def test_names_of_recollect_are_left_alone() -> None:
    config = resolve("glyphs")
    assert sealed_names(config) == anchored_names(config) == config


def test_a_recipe_s_files_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.yaml").write_text("inherits: ../base.yaml\nloss: {name: 'mine.py:Loss'}\n")
    (tmp_path / "base.yaml").write_text("data: {name: 'base.py:data'}\nmodel: {init: 'package.nets:net'}\n")
    monkeypatch.chdir(tmp_path.parent)
    config = resolve(tmp_path / "deep" / "mine.yaml", ["run.select=here.py:metric"])
    assert config.loss.name == f"{tmp_path}/deep/mine.py:Loss"
    assert config.data.name == f"{tmp_path}/base.py:data"
    assert config.model.init == "package.nets:net"
    assert config.run.select == "here.py:metric"  # said by the user: relative to the current folder


def test_logger_options_without_their_logger_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.loggers"):
        resolve(None, {"run.logger_options": {"wandb": {"project": "x"}}})
