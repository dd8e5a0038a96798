"""Settings: read, inherited, overridden, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recollect.common.errors import ConfigError
from recollect.config import overrides as recipes
from recollect.config.overrides import as_mapping, from_mapping, known_keys, resolve
from recollect.config.recipe_files import load_recipe
from recollect.config.schema import BatchConfig, Config, ModelConfig, RunConfig


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
        ("bath.size=4", r"no setting 'bath'. Did you mean batch\?"),
        ("lr=4", r"no setting 'lr'. Did you mean optimizer\.lr\?"),
        ("batch.size", "is not a setting"),
        ("batch.size=many", "batch.size is 'many': it must be a whole number or auto or all"),
        ("batch.size=4.5", "batch.size is 4.5"),
        ("run.watch_test=1", "run.watch_test is 1: it must be true or false"),
        ("run.precision=fp8", "it must be fp32 or bf16 or fp16"),
        ("optimizer.milestones=3", "it must be a list of numbers"),
        ("optimizer.lr=fast", "it must be a number or auto"),
        ("optimizer.lr=.nan", "optimizer.lr is nan"),
        ("data.crop_scale=[1, 2, 3]", "data.crop_scale"),
        ("batch=3", "batch must be a group of settings, not 3"),
        ("batch.size.large=3", "batch.size is {'large': 3}"),
        ("loss.options=[1]", "loss.options is .1.: it must be a mapping"),
        ("batch.size=[", "not valid YAML"),
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
        ({"batch.size": 0}, "batch.size is 0"),
        ({"batch.skip_share": 1.0}, "skip_share"),
        ({"batch.size": "all"}, "freeze a part"),
        ({"run.epochs": 3, "run.steps": 10}, "set one of them to null"),
        ({"run.epochs": None}, "length of the run is not set"),
        ({"model.freeze": "backbone", "data.augmentation": "crop"}, "computed once: set data.augmentation=none"),
        ({"run.precision": "fp16", "run.device": "cpu"}, "use bf16 or fp32"),
        ({"optimizer.schedule": "cosine", "optimizer.milestones": [3]}, "set optimizer.schedule=milestones"),
        ({"optimizer.milestones": [5, 3]}, "ascending order"),
        ({"run.epochs": 10, "optimizer.milestones": [3, 10]}, r"\[10.0\] are beyond the last of 10 epochs"),
        ({"run.epochs": 2, "optimizer.warm_up": 2}, "takes up all"),
        ({"optimizer.weight_decay": -1}, "0 or more"),
        ({"model.batch_norm": "trained"}, "it must be frozen or statistics"),
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


def test_several_parents_later_ones_first(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("run: {seed: 1, epochs: 5}\n")
    (tmp_path / "b.yaml").write_text("run: {seed: 2}\n")
    (tmp_path / "c.yaml").write_text("inherits: [a, b]\n")
    assert resolve(tmp_path / "c.yaml").run == RunConfig(seed=2, epochs=5)


def test_every_built_in_recipe_is_a_configuration() -> None:
    names = recipes.available_recipes()
    assert {"glyphs", "folder"} <= set(names)
    for name in names:
        config = resolve(name)
        assert config.name == name
        assert load_recipe(name).description


def test_keys_for_the_command_line() -> None:
    assert {"batch.size", "optimizer.lr", "run.epochs", "model.freeze"} <= set(known_keys())


def test_configurations_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Config().run.seed = 3  # type: ignore[misc]
    assert Config(model=ModelConfig(init="tiny")).model.init == "tiny"


def test_every_recipe_for_a_folder_ends_with_a_verdict(tmp_path: Path) -> None:
    """With the lines "files" and "held out" of its plan, for which the test part is listed."""
    own = tmp_path / "own.yaml"
    own.write_text("data: {name: folder, root: photos}\n")
    assert resolve(own).run.verdict
    assert not resolve(own, ["run.verdict=false"]).run.verdict
    assert not resolve("sop/r50-512/rsk").run.verdict


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
