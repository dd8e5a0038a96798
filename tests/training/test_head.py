"""The last layer before and without the rest: closed form, trials on validation classes, 0 steps, the verdict, ``--final``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from small_runs import built, final_weights, make_images, same_bits, small_config

from faults.trials import start_team
from recollect.common.errors import ConfigError, InputError
from recollect.config.resolve import as_mapping, resolve
from recollect.config.schema import Config
from recollect.data import load
from recollect.evaluation import Verdict, evaluate
from recollect.inference.models import load_initial_model, make_embedder
from recollect.models import Embedder, whitening_from_classes
from recollect.step.distributed import Processes
from recollect.training import head
from recollect.training.batches import FeatureBatches
from recollect.training.build import Setup, Training, build, final_config, open_source, prepare
from recollect.training.head import HeadData, choose_start, train_head, whiten_last_layer, whitening_images
from recollect.training.judging import judge
from recollect.training.plan import make_plan
from recollect.training.run import RunFolder
from recollect.training.trainer import plan, train

HEAD = {
    "data.augmentation": "none",
    "model.freeze": "pooling",
    "model.whitening": "all",
    "batch.batches_per_epoch": None,
}
CPU = torch.device("cpu")
NETWORK = "timm:test_efficientnet.r160_in1k"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_images(tmp_path_factory.mktemp("images"), classes=16)
    return make_images(root, classes=8, split="test", seed=1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form of few features is quick."""
    monkeypatch.setattr("recollect.training.build.STAGES", 1)


def own_photos(root: Path, **settings: Any) -> Config:
    """What ``recollect train --data`` does, with a network of 256 features that counts as pre-trained."""
    weights = root.parent / "test_efficientnet.pth"
    if not weights.exists():
        torch.manual_seed(0)
        torch.save(dict(Embedder.create(NETWORK, weights="none").backbone.state_dict()), weights)
    small = {
        **{"model.init": NETWORK, "model.weights": str(weights), "model.image_size": 32, "model.dim": 16},
        **{"data.root": str(root), "run.device": "cpu", "data.workers": 0},
    }
    return resolve("folder", {**small, **settings})


def test_no_steps_give_the_closed_form(root: Path, tmp_path: Path) -> None:
    config = small_config(root, **{**HEAD, "model.shrinkage": 0.3, "run.epochs": None, "run.steps": 0})
    outcome = train(config, tmp_path / "run")
    assert (outcome.steps, outcome.chosen_step) == (0, 0)
    with built(config) as training:
        embedder, images = training.embedder, training.sets.train
        features = embedder.embed([images.read(i) for i in range(len(images))], before_head=True, progress=False)
    weight, bias = whitening_from_classes(features, torch.from_numpy(images.labels), 0.3).linear(16)
    trained = final_weights(tmp_path / "run")
    scale = float((trained["head.linear.weight"].double() * weight).sum() / weight.square().sum())
    assert torch.allclose(trained["head.linear.weight"].double(), scale * weight, atol=1e-4)
    assert torch.allclose(trained["head.linear.bias"].double(), scale * bias, atol=1e-3)


def test_the_head_alone_learns_and_repeats_itself(root: Path) -> None:
    setup = prepare(small_config(root, **HEAD), CPU, Processes())
    data = HeadData(torch.from_numpy(np.asarray(open_source(setup).rows)), setup.sets.train.labels)  # type: ignore[union-attr]
    start = setup.embedder
    one, other = copy.deepcopy(start), copy.deepcopy(start)
    for embedder in (one, other):
        train_head(embedder, data, setup.config, 1e-2, 20)
    assert same_bits(one.state_dict(), other.state_dict())
    before, after = start.state_dict(), one.state_dict()
    assert {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])} == {"head"}


def test_a_last_layer_is_trained_only_if_that_improves_on_its_closed_form(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(embedder: Embedder, *_: Any) -> None:
        torch.nn.init.constant_(next(embedder.split("pooling")[1].parameters()), 7.0)

    def measured(embedder: Embedder, data: HeadData) -> head.HeadResult:
        was_trained = bool((next(embedder.split("pooling")[1].parameters()) == 7.0).all())
        return head.HeadResult(0.5 + (gain if was_trained else 0.0), 0.5)

    monkeypatch.setattr(head, "train_head", trained)
    monkeypatch.setattr(head, "measured_head", measured)
    setup = prepare(own_photos(root, **HEAD), CPU, Processes())
    for gain in (-0.1, 0.0, 0.1):
        assert (build(choose_start(setup, open_source(setup))).steps == 0) == (gain <= 0)


def test_what_is_left_open_is_chosen_on_validation_classes(root: Path) -> None:
    setup = prepare(own_photos(root), CPU, Processes())
    assert 0 < head.trial_steps(setup) <= head.LONGEST
    assert make_plan(setup).seconds_choosing > 0
    source = open_source(setup)
    tuned = choose_start(setup, source)
    assert head.trial_steps(tuned) == 0
    assert tuned.config.model.shrinkage in head.SHRINKAGES
    assert tuned.config.optimizer.lr in head.RATES
    assert tuned.embedder.config.stages == tuned.config.model.stages
    optimizer = build(tuned, source).trained.optimizer
    assert optimizer.param_groups[0]["base_lr"] == pytest.approx(tuned.config.optimizer.lr)
    reasons = {setting.name: setting.reason for setting in tuned.auto_settings}
    assert "8 held-out training classes" in reasons["model.shrinkage"]
    assert choose_start(tuned, source) is tuned, "nothing is undecided"
    whole = {"model.freeze": "none", "model.whitening": "all", "run.steps": 1, "run.epochs": None, "optimizer.lr": 2e-4}
    setup = prepare(own_photos(root, **whole), CPU, Processes())
    with closing(open_source(setup)) as source:  # the start of fine-tuning: its features are computed anyway
        whole_setup = choose_start(setup, source)
    assert whole_setup.config.model.shrinkage == tuned.config.model.shrinkage
    assert whole_setup.config.optimizer == setup.config.optimizer
    settings = {"model.stages": 0, "model.shrinkage": 0.4, "optimizer.lr": 2e-4, "run.epochs": 3}
    setup = prepare(own_photos(root, **settings), CPU, Processes())
    assert choose_start(setup, open_source(setup)) is setup


@pytest.mark.parametrize("informative", [0, 1])
def test_stages_are_used_where_they_tell_classes_apart(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, informative: int
) -> None:
    """Only the features up to this stage say anything about the class; a saved run uses as many."""
    monkeypatch.setattr(head, "SHRINKAGES", (0.1, 0.5))
    config = own_photos(root, **{"run.steps": 0, "run.epochs": None})
    setup = prepare(config, CPU, Processes())
    source, labels = open_source(setup), setup.sets.train.labels
    assert isinstance(source, FeatureBatches)
    random, rows = np.random.default_rng(0), np.asarray(source.rows)
    ends = np.cumsum(setup.embedder.head.groups)
    first = ends[informative - 1] if informative else 0
    rows = random.normal(0, 1, rows.shape).astype(np.float32)
    centres = random.normal(0, 1, (labels.max() + 1, ends[informative] - first)).astype(np.float32)
    rows[:, first : ends[informative]] += centres[labels]
    source.rows = rows
    tuned = choose_start(setup, source)
    assert tuned.config.model.stages == informative
    assert tuned.embedder.feature_dim == ends[informative]
    outcome = train(
        own_photos(root, **{"model.stages": informative, "run.steps": 0, "run.epochs": None}), tmp_path / "run"
    )
    assert Embedder.load(RunFolder(outcome.folder).model).config.stages == informative


def _choice_on(config: Config, draw: Callable[[int, int], np.ndarray]) -> Setup:
    """What is chosen on made-up features: ``draw`` gives those of a class, images × length."""
    setup = prepare(config, CPU, Processes())
    source, labels = open_source(setup), setup.sets.train.labels
    assert isinstance(source, FeatureBatches)
    source.rows = np.zeros_like(np.asarray(source.rows))
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        source.rows[members] = draw(len(members), source.rows.shape[1])
    return choose_start(setup, source)


@pytest.mark.release
def test_no_last_layer_is_added_where_none_improves_on_the_features(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise that is the same in every direction: what is learned about it is chance."""
    monkeypatch.setattr(head, "SHRINKAGES", (0.1, 1.0))
    monkeypatch.setattr(head, "RATES", (1e-4,))
    random = np.random.default_rng(0)

    def draw(count: int, length: int) -> np.ndarray:
        return random.normal(size=length) + 3 * random.normal(size=(count, length))

    whole = {"model.init": "lite0-in1k", "model.weights": None, "model.dim": "default", "model.stages": 0}
    setup = _choice_on(own_photos(root, **whole), draw)
    model, training = setup.config.model, build(setup)
    assert (model.whitening, model.dim, setup.config.run.steps, training.steps) == ("identity", 1280, 0, 0)
    reasons = {setting.name: setting.reason for setting in setup.auto_settings}
    assert "the features as they are" in reasons["model.whitening"]
    embedder, images = setup.embedder, setup.sets.train
    whiten(training)
    pictures = [images.read(index) for index in range(6)]
    features = embedder.embed(pictures, before_head=True, progress=False)
    torch.testing.assert_close(embedder.embed(pictures, progress=False), torch.nn.functional.normalize(features))
    # With another length asked for, a last layer is needed.
    assert _choice_on(own_photos(root), draw).config.model.dim == 16


def test_a_training_ends_with_a_verdict(root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "recollect")
    broken = root / "test" / "test-00" / "broken.png"
    broken.write_bytes(b"broken")
    try:
        config = own_photos(root, **{"run.steps": 2, "run.epochs": None, "model.dim": "default"})
        outcome = train(config, tmp_path / "run")
    finally:
        broken.unlink()
    assert RunFolder(tmp_path / "run").read_config().model.dim == 256, "as many as there are features"
    assert set(outcome.verdicts) == {"pretrained", "start"}
    verdicts = RunFolder(tmp_path / "run").read_manifest()["verdicts"]
    assert {name: Verdict.from_dict(each) for name, each in verdicts.items()} == outcome.verdicts
    assert outcome.verdicts["pretrained"].classes == 8
    first, second = [line for line in caplog.messages if line.startswith("verdict")]
    assert "without training" in first
    assert "0 steps" in second
    again = train(resume=tmp_path / "run")
    assert again.verdicts == outcome.verdicts
    final = final_config(tmp_path / "run")
    assert (final.data.train_split, final.run.steps, final.run.verdict) == ("all", 2, False)
    lines = "\n".join(plan(final).lines())
    assert "none are left for testing" in lines
    assert "144 images, 24 classes" in lines


def test_a_verdict_compares_with_the_pretrained_network_on_classes_that_were_not_trained_on(root: Path) -> None:
    """A network that finds nothing is told from the pre-trained one; easy classes that were trained on do not count."""
    config = own_photos(root)
    train_set, test = (load("folder", root, split) for split in ("train", "test"))
    mixed = test.joined(train_set)
    pretrained, useless = load_initial_model(config).embedder, make_embedder(config.model, seed=0)
    torch.nn.init.zeros_(useless.head.linear.weight)  # type: ignore[union-attr]
    judged = judge(config, useless, train_set, mixed, 0)
    verdict = judged.verdicts["pretrained"]
    assert list(map(str, judged.remarks)) == ["not included: 16 classes that were trained on"]
    vectors = pretrained.embed([test.read(i) for i in range(len(test))], progress=False)
    expected = evaluate(vectors, test.labels, ks=(1,)).metrics["r@1"]
    assert (verdict.queries, verdict.classes) == (len(test), 8)
    assert verdict["r@1"].before == pytest.approx(expected)
    assert verdict["r@1"].after < expected - 0.2
    assert verdict.judgement == "made it worse"


def test_there_is_no_verdict_without_anything_to_compare_with(root: Path) -> None:
    random = small_config(root, **HEAD)
    with built(random) as training:
        train_set, embedder = training.sets.train, training.embedder
    for config in (random, own_photos(root)):  # random weights to compare with; every class was trained on
        assert judge(config, embedder, train_set, train_set, 1).verdicts == {}


def test_fine_tuning_may_begin_with_the_head(root: Path, tmp_path: Path) -> None:
    """Features of the network as it is, the last layer on them, and only then everything."""
    settings = {"model.whitening": "all", "model.shrinkage": 0.3, "optimizer.lr": 1e-2}
    states = []
    for steps in (0, 3, 3):
        with built(small_config(root, **settings, **{"run.head_steps": steps})) as training:
            whiten(training)
        states.append(training.embedder.state_dict())
    assert same_bits(states[1], states[2])
    changed = {name.split(".")[0] for name in states[0] if not torch.equal(states[0][name], states[1][name])}
    assert changed == {"head"}


# Whitenings from pairs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_images(tmp_path_factory.mktemp("whitening"), classes=40, each=4)
    return make_images(root, classes=2, each=2, split="test")


def whiten(training: Training) -> None:
    whitening_set = whitening_images(training.config, training.sets.train)
    assert whitening_set is not None
    whiten_last_layer(training, whitening_set)


def test_only_at_the_start(images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"model.whitening": 160, "run.epochs": None, "run.steps": 2, "batch.batches_per_epoch": None}
    caplog.set_level("INFO", "recollect")
    config = small_config(images, **settings, **{"run.checkpoint_steps": 1})
    train(config, tmp_path / "run")
    assert "whitening  the last layer starts from 160 training images" in caplog.messages
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    (tmp_path / "run" / "manifest.json").write_text(manifest.replace('"outcome"', '"earlier"'))
    caplog.clear()
    train(resume=tmp_path / "run")
    assert any(line.startswith("resumed") for line in caplog.messages)
    assert not any(line.startswith("whitening") for line in caplog.messages)


def test_impossible_wishes(images: Path, tmp_path: Path) -> None:
    with (
        built(small_config(images, **{"model.whitening": 40})) as training,
        pytest.raises(InputError, match=r"60 pairs .*192 features"),
    ):
        whiten(training)
    with (
        built(small_config(images, **{"model.whitening": 20_000})) as training,
        pytest.raises(ConfigError, match=r"model.whitening 20000 .* set model.whitening=\d+ or lower"),
    ):
        whiten(training)


@pytest.mark.slow
def test_two_processes_start_and_go_on_as_one(images: Path, tmp_path: Path) -> None:
    settings = {"model.whitening": 160, "run.epochs": None, "run.steps": 2, "batch.chunk": 8, "loss.options": {}}
    settings["optimizer.name"] = "sgd"  # Adam's steps have the sign of tiny gradients
    config = small_config(images, **settings)
    train(config, tmp_path / "one")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(as_mapping(config)))
    command = ["train", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "two")]
    ended = [process.wait() for process in start_team(command, tmp_path, 2)]
    assert [one.code for one in ended] == [0, 0], ended
    one, two = final_weights(tmp_path / "one"), final_weights(tmp_path / "two")
    for name, tensor in one.items():
        assert (tensor - two[name]).abs().max() <= 1e-4 * tensor.abs().max(), name
