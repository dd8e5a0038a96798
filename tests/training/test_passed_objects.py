"""Objects in the place of names: the configuration says what they are, and what is none is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import make_images, small_config

from recollect.common import plugins
from recollect.common.errors import ConfigError, InputError
from recollect.config.resolve import resolve
from recollect.data import load
from recollect.losses import RecallAtK
from recollect.models import Embedder
from recollect.training.build import PassedObjects, load_sets, training_config
from recollect.training.run import resume_command
from recollect.training.trainer import train


def test_given_objects_are_named_and_recorded() -> None:
    embedder = Embedder.create("tiny", dim=8, size=32)
    with plugins.recording() as outside:
        config = PassedObjects(loss=RecallAtK(), model=embedder).named(resolve("glyphs"))
    assert config.loss.name == "given:recollect.losses.recall_at_k.RecallAtK"
    assert (config.model.init, config.model.dim, config.model.image_size) == ("given:tiny", 8, 32)
    assert {loaded.kind for loaded in outside} == {"loss", "backbone"}
    assert "in Python" in resume_command(Path("run"), outside)
    assert resume_command(Path("run")) == "recollect train --resume run"


def test_a_configuration_comes_from_one_place() -> None:
    assert training_config("glyphs", ["run.seed=3"], {}, None, False).run.seed == 3
    assert training_config(resolve("glyphs"), {"run.seed": 3}, {"loss.name": "smooth_ap"}, None, False).run.seed == 3
    assert training_config(None, {}, {}, None, True).name == "folder"
    with pytest.raises(ConfigError, match="either"):
        training_config(None, {}, {}, None, False)


def test_the_verdict_uses_given_test_images_unless_nothing_is_known_of_the_network(tmp_path: Path) -> None:
    root = make_images(make_images(tmp_path, classes=2), classes=3, split="test", seed=1)
    test, network = load("folder", root, "test"), Embedder.create("tiny")
    config = small_config(root)
    for passed in (PassedObjects(test_set=test), PassedObjects()):
        held_out = load_sets(config, passed).held_out
        assert held_out is not None
        assert set(held_out.names) == set(test.names)
    assert load_sets(config, PassedObjects(test_set=test, model=network)).held_out is None
    assert load_sets(config, PassedObjects(model=network)).held_out is None
    assert load_sets(config, PassedObjects(train_set=load("folder", root, "train"))).held_out is None


def test_other_types_are_refused() -> None:
    with pytest.raises(InputError, match=r"loss is a .*nn\.Module"):
        train("glyphs", loss=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"train_set is a list: it must be an ImageSet or a name\.$"):
        train("glyphs", train_set=["photos"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"test_set is a str: it must be an ImageSet\.$"):
        train("glyphs", test_set="photos")  # type: ignore[arg-type]
