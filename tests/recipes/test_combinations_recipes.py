"""Recipes beyond the paper's rows: combinations of losses, and losses on two levels of labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes.small_sets import MAKERS
from recipes.test_two_steps import small
from recollect.common.errors import ConfigError
from recollect.config.recipes import available_recipes, load_recipe
from recollect.config.resolve import resolve
from recollect.inference.evaluate import measure_and_keep
from recollect.inference.models import open_model
from recollect.inference.test_sets import load_test
from recollect.training.run import RunFolder
from recollect.training.trainer import train

pytestmark = pytest.mark.filterwarnings("ignore::recollect.common.errors.DataWarning")
LOSSES = {
    "rsk-calibrated": "recall_at_k",
    "rsk-memory": "cross_batch_memory",
    "norm-softmax": "norm_softmax",
    "proxy-nca": "proxy_nca",
    "proxy-anchor": "proxy_anchor",
    "arcface": "arcface",
    "cosface": "cosface",
    "hap": "hierarchical_ap",
    "hap-simix": "hierarchical_ap",
}
NAMES = [name for name in available_recipes() if name.split("/")[0].endswith(("-combined", "-hierarchical"))]


def test_each_combination_is_there_and_differs_from_rsk_in_its_loss_alone() -> None:
    assert sorted(name.split("/")[-1] for name in NAMES) == sorted(2 * list(LOSSES))
    for name in NAMES:
        family, network, word = name.split("/")
        base, config = resolve(f"{family.split('-')[0]}/{network}/rsk"), resolve(name)
        assert config.loss.name == LOSSES[word]
        assert (config.model, config.data, config.batch, config.run) == (base.model, base.data, base.batch, base.run)
        assert (config.optimizer == base.optimizer) == (word != "proxy-anchor")
        assert set(config.published) == {"row"}, "no number is published"
        assert load_recipe(name).notes


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("sop-combined")])
def test_two_steps(name: str, tmp_path: Path) -> None:
    if resolve(name).loss.name not in ("recall_at_k", "hierarchical_ap"):
        pytest.importorskip("pytorch_metric_learning")
    data = name.split("-")[0]
    MAKERS[data](tmp_path / "data")
    outcome = train(small(resolve(name), tmp_path / "data"), tmp_path / "run")
    steps = [record for record in RunFolder.open(outcome.folder).read_metrics() if record["kind"] == "step"]
    assert len(steps) == 2
    assert all(record["loss"] > 0 and record["gradient_norm"] > 0 for record in steps), steps


@pytest.mark.parametrize("data", ["sop", "inaturalist"])
def test_two_levels_of_labels_are_measured_without_being_asked(data: str, tmp_path: Path) -> None:
    MAKERS[data](tmp_path / "data")
    train(small(resolve(f"{data}-hierarchical/r50-512/hap"), tmp_path / "data"), tmp_path / "run")
    metrics = measure_and_keep(open_model(tmp_path / "run"), load_test(tmp_path / "run"))
    assert {"r@1", "h_ap", "ndcg"} <= set(metrics)
    assert 0 < metrics["h_ap"] <= 1 + 1e-9
    assert 0 < metrics["ndcg"] <= 1 + 1e-9


def test_images_with_one_level_are_refused(tmp_path: Path) -> None:
    MAKERS["cars196"](tmp_path / "data")
    config = small(
        resolve("cars196/r50-512/rsk", {"loss.name": "hierarchical_ap", "loss.options": {}}), tmp_path / "data"
    )
    with pytest.raises(ConfigError, match="two levels"):
        train(config, tmp_path / "run")
