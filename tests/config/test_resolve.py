"""Settings: read, inherited, overridden, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect.common import plugins
from recollect.common.errors import ConfigError
from recollect.config.resolve import (
    absolute_names,
    as_mapping,
    differences,
    from_mapping,
    resolve,
    short_names,
    untrusted_names,
    with_changes,
)
from recollect.config.schema import BatchConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(
        "description: the base\nbatch: {size: 392, samples_per_class: 4}\n"
        "optimizer: {lr: 1e-4, milestones: [80, 140]}\n"
        "run: {epochs: 170}\nloss: {options: {tau1: 1.0, simix: true}}\npublished: {r@1: 80.7}\n"
    )
    (tmp_path / "child.yaml").write_text(
        "inherits: base\nbatch: {size: 200}\nloss: {options: {simix: false}}\npublished: {r@1: 83.2}\n"
    )
    return tmp_path


def test_a_child_beats_its_parent_and_the_user_beats_both(folder: Path) -> None:
    config = resolve(folder / "child.yaml", ["optimizer.lr=3e-5", "run.seed=7"])
    assert config.batch == BatchConfig(size=200, samples_per_class=4)
    assert config.loss.options == {"tau1": 1.0, "simix": False}
    assert (config.optimizer.lr, config.optimizer.milestones) == (3e-5, (80.0, 140.0))
    assert (config.run.epochs, config.run.seed, config.name) == (170, 7, "child")
    assert config.published == {"r@1": 83.2}
    assert resolve(folder / "base.yaml").optimizer.lr == 1e-4  # YAML itself reads 1e-4 as text


def test_a_configuration_survives_its_file(folder: Path) -> None:
    config = resolve(folder / "child.yaml", {"data.crop_scale": [0.2, 1], "run.precision": "bf16"})
    assert from_mapping(as_mapping(config), "a file") == config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("batch.sise=4", r"no setting 'batch\.sise'. Did you mean size\? Settings here: size, samples_per_class"),
        ("lr=4", r"no setting 'lr'. Did you mean optimizer\.lr\?"),
        ("batch.size=many", "batch.size is 'many': it must be a whole number or auto or all"),
        ("run.watch_test=1", "run.watch_test is 1: it must be true or false"),
        ("run.precision=fp8", "it must be auto or fp32 or bf16 or fp16"),
        ("optimizer.lr=.nan", "optimizer.lr is nan"),
        ("data.crop_scale=[1, 2, 3]", "data.crop_scale"),
        ("loss.options=[1]", "loss.options is .1.: it must be a mapping"),
    ],
)
def test_unknown_keys_and_wrong_values_are_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(None, [setting])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch.size": 390}, "388 or 392"),
        ({"batch.samples_per_class": 1}, "no query has a positive"),
        ({"batch.size": "all"}, "freeze a part"),
        ({"run.epochs": 3, "run.steps": 10}, "set one of them to null"),
        ({"model.freeze": "backbone", "batch.size": "all", "data.augmentation": "crop"}, "with data.augmentation=none"),
        ({"run.precision": "fp16", "run.device": "cpu"}, "use bf16 or fp32"),
        ({"optimizer.schedule": "cosine", "optimizer.milestones": [3]}, "set optimizer.schedule=milestones"),
        ({"run.epochs": 10, "optimizer.milestones": [3, 10]}, r"\[10.0\] are beyond the last of 10 epochs"),
        ({"run.epochs": 2, "optimizer.warm_up": 2}, "takes up all"),
        ({"run.logger_options": {"wandb": {"project": "x"}}}, r"run\.loggers"),
        ({"data.augmentation": "whole", "model.resize": 48}, "whole images, but model.resize 48 crops squares"),
        ({"data.validation": "sfm120k"}, "set run.select=map"),
        ({"data.validation_root": "photos"}, "data.validation_root is for"),
        ({"model.whitening": 160, "model.dim": None}, r"needs a last layer: set model\.dim"),
        ({"run.epochs": None, "run.steps": 0}, r"run\.steps 0.*model\.whitening"),
        ({"model.freeze": "pooling", "run.head_steps": 3}, r"run\.head_steps"),
        ({"run.shard": True, "model.freeze": "backbone"}, r"run\.shard is for a whole network"),
        ({"model.lora": 4, "model.freeze": "backbone"}, r"model\.lora leaves the backbone's own weights"),
        ({"run.activation_checkpointing": True, "model.freeze": "pooling"}, "remove it"),
    ],
)
def test_impossible_combinations_are_refused_with_a_way_out(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(None, settings)


def test_missing_broken_and_circular_recipes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'glyfs'.*mean glyphs"):
        resolve("glyfs")
    (tmp_path / "a.yaml").write_text("inherits: b\n")
    (tmp_path / "b.yaml").write_text("inherits: a\n")
    with pytest.raises(ConfigError, match=r"a\.yaml → b\.yaml → a\.yaml"):
        resolve(tmp_path / "a.yaml")
    (tmp_path / "c.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="mapping"):
        resolve(tmp_path / "c.yaml")
    (tmp_path / "d.yaml").write_text("a: [\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        resolve(tmp_path / "d.yaml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "photos", "root": "elsewhere"}, "remove --root elsewhere"),
        ({"recipe": "sop/r50-512/rsk", "data": "photos", "root": "elsewhere"}, "remove --root elsewhere"),
        ({"data": "photos", "settings": {"data.root": "elsewhere"}}, "data.root is given twice"),
        ({"data": "cub", "root": "photos", "settings": ["data.name=sop"]}, "data.name is given twice"),
    ],
)
def test_images_are_named_once(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**given)


def test_only_free_settings_can_be_changed() -> None:
    config = resolve("folder", {"data.root": "photos"})
    changed = with_changes(config, ["data.on_bad_image=skip", "data.max_pixels=9"], "it stays")
    assert (changed.data.on_bad_image, changed.data.max_pixels) == ("skip", 9)
    with pytest.raises(ConfigError, match=r"it stays: remove optimizer\.lr\. .*data\.on_bad_image \(--skip-bad\)"):
        with_changes(config, {"data.workers": 1, "optimizer.lr": 0.1}, "it stays")


def test_differences_are_words_and_leave_free_settings_out() -> None:
    nested = {"settings": {"data": {"on_bad_image": "error", "root": "a"}, "optimizer": {"lr": 0.1}}, "steps": None}
    flat = {"settings": {"data.max_pixels": 3, "loss.options": {"k": 1}}, "images": {"train": "0f", "val": "1a"}}
    assert differences(nested, {**nested, "settings": {"data": {"on_bad_image": "skip"}}, "steps": 3}) == [
        "optimizer.lr is 0.1 there and not set here",
        "steps is not set there and 3 here",
    ]
    assert differences(flat, {"settings": {}, "images": {"train": "2", "val": "3"}}) == [
        "loss.options.k is 1 there and not set here",
        "the training images differ",
    ]


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
    absolute = absolute_names(config)
    assert absolute.loss.name == f"{tmp_path}/a.py:Loss"
    assert absolute.loss.options == {"inner": f"{tmp_path}/a.py:Inner", "tau": 1, "many": ["b.c:D"]}
    assert absolute.run.loggers == tuple(absolute.run.logger_options)
    sealed = untrusted_names(config)
    names = [sealed.data.name, sealed.data.augmentation, sealed.model.init, sealed.loss.name, sealed.run.select]
    for name in [*names, sealed.loss.options["inner"], sealed.loss.options["many"][0], sealed.run.loggers[0]]:
        with pytest.raises(ConfigError, match="--trust"):
            plugins.load("loss", name)
    assert short_names(sealed) == config
    with plugins.trusting():
        assert untrusted_names(config) == config
    assert untrusted_names(sealed) == sealed


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
