"""Which classes train and validate, what a trial and the final training are, and that nothing else is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tuning_runs import config_of, make_data

from recollect.common.errors import ConfigError, InputError
from recollect.studies.protocol import final_run_config, read_protocol, trial_config
from recollect.studies.space import as_settings
from recollect.training.build import load_sets
from training.small_runs import make_images

DRAWN = {"lr": 2e-3, "gamma": 0.4, "epochs": 10, "decays": 3, "first_decay": 0.4}


def test_the_first_half_of_the_training_classes_trains_and_the_second_validates(tmp_path: Path) -> None:
    protocol = read_protocol(config_of(make_data(tmp_path)))
    config = trial_config(protocol, as_settings(DRAWN))
    sets = load_sets(config)
    assert list(sets.train.class_names) == [f"train-{n:02d}" for n in range(4)]
    assert list(sets.validation.class_names) == [f"train-{n:02d}" for n in range(4, 8)]
    assert sets.test is None
    assert protocol.train == {"classes": 4, "images": 24}
    assert protocol.fingerprints == {
        "train": sets.train.fingerprint, "validation": sets.validation.fingerprint,
    }  # fmt: skip
    optimizer = config.optimizer
    assert (optimizer.lr, optimizer.gamma, optimizer.milestones) == (2e-3, 0.4, (4.0, 6.0, 8.0))
    assert (config.run.epochs, config.run.steps, config.run.watch_test) == (10, None, False)


def test_the_final_training_takes_all_classes_and_stops_where_validation_was_best(tmp_path: Path) -> None:
    protocol = read_protocol(config_of(make_data(tmp_path), **{"optimizer.warm_up": 1, "run.epochs": 8}))
    config = final_run_config(protocol, as_settings(DRAWN), 7)
    sets = load_sets(config)
    assert (sets.train.num_classes, sets.validation, sets.test) == (8, None, None)
    assert (config.run.epochs, config.optimizer.milestones, config.optimizer.warm_up) == (7, (4.0, 6.0), 1)
    assert (config.optimizer.lr, config.optimizer.gamma) == (2e-3, 0.4)
    assert final_run_config(protocol, as_settings(DRAWN), 0).optimizer.warm_up == 0, "its only epoch"


def test_half_of_the_classes_may_not_fill_the_recipes_batch(tmp_path: Path) -> None:
    protocol = read_protocol(config_of(make_data(tmp_path), **{"batch.size": 32}))
    assert trial_config(protocol, as_settings(DRAWN)).batch.size == 16  # 4 classes × 4 images
    assert final_run_config(protocol, as_settings(DRAWN), 3).batch.size == 32
    assert "Batches of 32 images need 8 classes, but the search trains on 4" in " ".join(protocol.remarks)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run.watch_test": True}, "a search does not use the test set"),
        ({"data.train_split": "all"}, "'all' contains test classes"),
        ({"data.train_split": "test"}, "'test' contains test classes"),
        ({"data.train_split": "gallery", "data.test_split": "gallery"}, "'gallery' contains test classes"),
        ({"data.validation": "random"}, "second half of the classes"),
        ({"run.epochs": 0}, "nothing to tune"),
        ({"run.select": "r@3"}, r"run\.select 'r@3' is not computed on held-out classes: choose one of r@1, r@2"),
    ],
)
def test_settings_that_go_around_the_protocol_are_refused(
    tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_protocol(config_of(tmp_path, **settings))


def test_too_few_classes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"3 training classes .*too few"):
        read_protocol(config_of(make_images(tmp_path / "three", classes=3)))
    make_images(tmp_path / "small", classes=6, each=3)
    with pytest.raises(InputError, match=r"0 of the 3 .*classes .*4 images"):
        read_protocol(config_of(tmp_path / "small", **{"batch.size": 8}))


def test_ends_of_the_space_are_tried_before_the_search(tmp_path: Path) -> None:
    root = make_data(tmp_path)
    for space, words in (
        ("optimizer.lrr=1:2", r"'optimizer\.lrr'.*mean lr"),
        ("batch.size=8,6", r"batch\.size 6 .*multiple"),
        ("loss.options.tau1=0.5,-1,1", r"tau1 .*-1"),
        ("loss.name=recall_at_k,nonsense,contrastive", "is unknown"),
        ("model.init=tiny,nonsense,tiny-grey", "nonsense"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_protocol(config_of(root), [space])


def test_a_study_is_the_same_on_another_machine_and_with_another_test_set(tmp_path: Path) -> None:
    one = read_protocol(config_of(make_data(tmp_path / "one"))).identity()
    other = make_data(tmp_path / "other", test=False)
    assert read_protocol(config_of(other, **{"data.workers": 2, "data.cache": "ram"})).identity() == one
    assert read_protocol(config_of(other, **{"optimizer.weight_decay": 0.1})).identity() != one
    assert read_protocol(config_of(other), ["lr=1e-3:1e-2"]).identity() != one
    shutil.rmtree(other / "train" / "train-07")
    assert read_protocol(config_of(other)).identity() != one
