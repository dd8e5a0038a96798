"""Every recipe of the paper is built, and run for two steps on its data set made small.

Networks are built as the recipe says on the meta device, where shapes are real and numbers are not. Steps are taken with
the ``tiny`` network in their place, and once with each kind of real one. Recipes that then differ in nothing share a
run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.running import run
from recipes.small_sets import MAKERS
from recollect.common.errors import ConfigError
from recollect.config.recipes import available_recipes
from recollect.config.resolve import as_mapping, resolve
from recollect.config.schema import Config, ModelConfig
from recollect.inference import models
from recollect.models import Embedder, GeM
from recollect.models.zoo import find
from recollect.training import build
from recollect.training.optimizer import make_optimizer
from recollect.training.run import RunFolder
from recollect.training.trainer import train

pytestmark = pytest.mark.filterwarnings("ignore::recollect.common.errors.DataWarning")

ROWS = {name: resolve(name) for name in available_recipes() if name.split("/")[0] in MAKERS}
TRAINED = {name: config for name, config in ROWS.items() if config.run.epochs != 0}


def distinct(configs: dict[str, Config], key: Callable[[Config], Any]) -> dict[str, list[str]]:
    """Names grouped by what ``key`` says of them, under the first of each group."""
    groups: dict[str, list[str]] = {}
    for name, config in configs.items():
        groups.setdefault(json.dumps(key(config), sort_keys=True, default=str), []).append(name)
    return {names[0]: names for names in groups.values()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a data set, made when first asked for."""

    @cache
    def folder(name: str) -> Path:
        place = tmp_path_factory.mktemp(name)
        MAKERS[name](place)
        return place

    return folder


NETWORKS = distinct(ROWS, lambda config: as_mapping(config)["model"])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.release
def test_the_network_is_built_as_the_recipe_says(name: str) -> None:
    model = ROWS[name].model
    with torch.device("meta"):
        embedder = build.make_embedder(replace(model, weights="none"), seed=0)
    assert {parameter.device.type for parameter in embedder.parameters()} == {"meta"}
    assert embedder(torch.zeros(2, 3, 224, 224, device="meta")).shape == (2, model.dim or embedder.feature_dim)
    assert embedder.config.architecture == find(model.init).timm_id
    assert isinstance(embedder.pooling, GeM) == (model.pooling == "gem")
    assert (embedder.head.linear is None) == (model.dim is None)
    assert embedder.preprocessing.size == model.image_size
    for alike in NETWORKS[name]:
        if alike in TRAINED:
            config = TRAINED[alike]
            loss = build.make_loss(config, num_classes=8, dim=embedder.dim)
            optimizer = make_optimizer(config.optimizer, embedder, loss)
            assert type(optimizer).__name__.lower() == config.optimizer.name
            assert {g["weight_decay"] for g in optimizer.param_groups} <= {config.optimizer.weight_decay, 0.0}


def small(config: Config, root: Path) -> Config:
    """The same training with a tiny network, a batch of 16 and two steps."""
    model = config.model
    size = {"init": "tiny", "dim": min(model.dim, 192), "image_size": 32, "resize": model.resize and 32}
    same = {name: getattr(model, name) for name in ("layer_norm", "l2_before_head", "batch_norm")}
    return replace(
        config,
        data=replace(config.data, root=str(root), workers=0),
        model=ModelConfig(**size, **same, whitening=model.whitening and 128),
        batch=replace(config.batch, size=16, chunk=6),
        run=replace(config.run, epochs=None, steps=2, device="cpu"),
    )


RUNS = distinct(TRAINED, lambda config: {**as_mapping(small(config, Path())), "name": "", "published": ""})


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.release
def test_two_steps(name: str, root: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = small(TRAINED[name], root(name.split("/")[0]))
    caplog.set_level("INFO", "recollect")
    outcome = train(config, tmp_path / "run")
    run = RunFolder.open(outcome.folder)
    steps = [record for record in run.read_metrics() if record["kind"] == "step"]
    assert outcome.steps == len(steps) == 2
    # A whitening of so few images may tell them all apart, and leave nothing to learn.
    least = -1 if config.model.whitening else 0
    assert all(least < record["loss"] < 1 and record["gradient_norm"] > least for record in steps), steps
    assert [record["lr"] for record in steps] == [TRAINED[name].optimizer.lr] * 2
    assert run.read_config().published == TRAINED[name].published
    plan = "\n".join(caplog.messages)
    assert ("with SiMix 40" in plan) == name.endswith("simix")
    for words in ("\nwhitening", "of at most 32 × 32 pixels", "3 queries of sfm120k for validation"):
        assert (words in plan) == name.startswith("gldv1"), words
    assert Embedder.load(run.model).dim == config.model.dim


# Rows that are not trained -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["inaturalist", "sop", "cars196"])
def test_an_init_row_is_measured_beside_its_numbers(
    data: str, root: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{data}/dinov2-l14/init"
    asked: list[ModelConfig] = []

    def tiny(model: ModelConfig, seed: int) -> Embedder:
        asked.append(model)
        return Embedder.create("tiny", dim=None)

    monkeypatch.setattr(models, "make_embedder", tiny)
    monkeypatch.chdir(tmp_path)
    found = run("eval", "--recipe", name, "--root", root(data), "--weights", "none")
    assert asked == [replace(ROWS[name].model, weights="none")]
    written = json.loads(next(tmp_path.glob(f"runs/init-dinov2-l14/eval/{data}-*/metrics.json")).read_text())
    for metric, number in ROWS[name].published[f"{data}/test"].items():
        assert metric in written["metrics"]
        assert f"{number:.1f}" in found.output
    assert written["metrics"]["r@1"] > 0.5  # patterns of one class look alike even to random weights


def test_an_init_row_is_not_trained_and_a_trained_row_not_measured_without_its_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trains nothing .*--recipe sop/diht-b32/init"):
        train(ROWS["sop/diht-b32/init"], tmp_path / "run")
    with pytest.raises(ConfigError, match="recollect eval RUN --recipe sop/diht-b32/rsk"):
        run("eval", "--recipe", "sop/diht-b32/rsk", "--root", tmp_path)
