"""Every row and every ablation of the paper is a recipe, with its numbers and settings."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.published import published_rows
from recipes.paper_tables import PUBLISHED_FOR, SETTINGS, expected_numbers, expected_settings
from recollect.config.recipes import available_recipes, family, load_recipe, published_tests
from recollect.config.resolve import resolve
from recollect.losses import create
from recollect.models import INSTANCE_SEARCH_SCALES
from recollect.models.zoo import ZOO

NUMBERS = expected_numbers()


def test_every_row_and_no_other() -> None:
    families = {data for data, _ in SETTINGS} | {"gldv1"}
    assert {name for name in available_recipes() if name.split("/")[0] in families} == set(NUMBERS)
    # 15 initialisations × 3 data sets × {init, SAP, RS@k}; R50-128 × 2 and R50-512 × 3 on 4 data sets; ViT-B/32 and
    # B/16 × 2 on VehicleID; 3 of instance search.
    assert len(NUMBERS) == 15 * 3 * 3 + (2 + 3) * 4 + 2 * 2 + 3 == 162


def test_published_numbers_are_the_tables() -> None:
    assert {name: published_tests(resolve(name).published) for name in NUMBERS} == NUMBERS


def test_settings_are_the_published_ones() -> None:
    for name in NUMBERS:
        if not name.startswith("gldv1"):
            config, expected = resolve(name), expected_settings(name)
            found = {key: getattr(getattr(config, key.split(".")[0]), key.split(".")[1]) for key in expected}
            assert found == expected, name
            assert ZOO[config.model.init].paper_row


def test_instance_search() -> None:
    options = {"sap": {"tau": 0.01}, "rsk": {"k": [1, 2, 4]}, "rsk-simix": {"k": [1, 2, 4, 8], "simix": True}}
    for method, expected in options.items():
        config = resolve(f"gldv1/r101/{method}")
        assert (config.batch.size, config.batch.samples_per_class, config.run.steps) == (4096, 4, 500)
        assert (config.optimizer.name, config.optimizer.lr, config.optimizer.weight_decay) == ("adam", 1e-4, 1e-6)
        assert (config.optimizer.p_multiplier, config.optimizer.schedule) == (10.0, "exponential")
        assert (config.model.init, config.model.dim, config.model.image_size) == ("r101-in1k", 2048, 1024)
        assert (config.model.layer_norm, config.model.l2_before_head) == (False, True)
        assert config.model.batch_norm == "statistics"
        assert (config.data.augmentation, config.model.resize, config.data.flip) == ("whole", None, False)
        assert config.model.scales == INSTANCE_SEARCH_SCALES
        assert (config.data.validation, config.run.select) == ("sfm120k", "map")
        assert config.model.whitening is not None
        assert expected.items() <= config.loss.options.items()


def test_what_was_never_published_is_said() -> None:
    for name in NUMBERS:
        data, model, method = name.split("/")
        notes, trained = " ".join(load_recipe(name).notes), method != "init"
        said = {
            "for this network were never published": data != "gldv1" and model not in PUBLISHED_FOR,
            "Smooth-AP runs were never published": data != "gldv1" and method == "sap",
            "whitening is learned from were never published": data == "gldv1",
        }
        assert not trained or {words: words in notes for words in said} == said, name


def test_every_setting_of_a_row_says_where_it_comes_from() -> None:
    plain = {"data.name", "model.init", "loss.name", "loss.options.simix", "batch.policy", "run.epochs", "published"}
    for name in NUMBERS:
        recipe = load_recipe(name)
        silent = {key for key, origin in recipe.origins.items() if not origin.comment and origin.where}
        assert silent - plain - ({"model.dim"} if "/r50-" in name else set()) == set(), name


def test_the_examples_of_the_documentation(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "recipes.md"
    blocks = re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.yaml").write_text(block)
        for name in family(tmp_path / f"{number}.yaml") or [tmp_path / f"{number}.yaml"]:
            resolve(name)
    assert [Path(name).name for name in family(tmp_path / "2.yaml")] == ["rsk", "rsk", "sap"]
    assert resolve(tmp_path / "0.yaml").published == {}


@pytest.mark.parametrize("row", ["rsk", "rsk-simix", "sap"])
def test_the_released_code_can_be_laid_over(row: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"inherits: [cars196/r50-512/{row}, _as_released]\n")
    config = resolve(tmp_path / "mine.yaml")
    options = dict(config.loss.options)
    assert options.pop("count_query") is True
    assert options.pop("simix", False) is (row == "rsk-simix")
    if row == "sap":
        assert options == {"tau": 0.01}
    else:
        assert options == {"k": [1, 2, 4, 8, 16], "tau1": [1.0, 2.0, 4.0, 8.0, 16.0], "tau2": 0.01}
    create(config.loss.name, **config.loss.options)
    assert (config.model.layer_norm, config.model.normalization) == (True, "imagenet")
    assert (config.model.batch_norm, config.model.interpolation) == ("statistics", "bilinear")
    assert (config.optimizer.decay_p, config.optimizer.lr, config.name) == (True, 1e-4, "mine")


@pytest.mark.parametrize("row", ["cars196/r50-512/rsk", "sop/r50-512/rsk-simix", "cars196-k/r50-512/rsk/k-4-8-16"])
def test_the_code_released_since_2024_has_one_tau1(row: str) -> None:
    earlier, later = (resolve(f"{row}+{name}") for name in ("_as_released", "_as_released_2024"))
    assert (earlier.loss.options["tau1"], later.loss.options["tau1"]) == (earlier.loss.options["k"], 1.0)
    same = {**earlier.loss.options, "tau1": 1.0}
    assert replace(earlier, name="", loss=replace(earlier.loss, options=same)) == replace(later, name="")
    assert later.name == f"{row}+_as_released_2024"


def _expected() -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for row in published_rows("batch_size"):
        rows[f"sop-batch/r50-512/rsk/batch-{row['sop_batch']}"] = {"r@1": float(row["sop_rsk_r1"])}
        if row["cars_batch"]:
            for method, column in (("sap", "cars_sap_r1"), ("rsk", "cars_rsk_r1"), ("rsk-simix", "cars_rsk_simix_r1")):
                rows[f"cars196-batch/r50-512/{method}/batch-{row['cars_batch']}"] = {"r@1": float(row[column])}
    for row in published_rows("k_values_cars196"):
        name = f"cars196-k/r50-512/rsk/k-{row['k'].replace(',', '-')}"
        rows[name] = {f"r@{k}": float(row[f"r{k}"]) for k in (1, 2, 4, 8, 16)}
    for method in ("rsk", "rsk-simix"):
        for value in ("0.1", "0.5", "1", "2", "5"):
            rows[f"cars196-tau1/r50-512/{method}/tau1-{value}"] = {}  # drawn in the paper, without numbers
    return rows


EXPECTED = _expected()


def test_every_point_and_no_other() -> None:
    families = ("cars196-batch/", "sop-batch/", "cars196-k/", "cars196-tau1/")
    assert {name for name in available_recipes() if name.startswith(families)} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_numbers_and_settings_are_the_published_ones_and_all_else_is_the_rows(name: str) -> None:
    config = resolve(name)
    test = "sop/test" if name.startswith("sop") else "cars196/test"
    assert published_tests(config.published) == ({test: EXPECTED[name]} if EXPECTED[name] else {})
    family, network, method, word = name.split("/")
    setting, value = word.split("-", 1)
    base = resolve(f"{family.split('-')[0]}/{network}/{method}")
    options, batch = dict(base.loss.options), base.batch
    if setting == "batch":
        assert config.batch.chunk <= config.batch.size == int(value)
        batch = config.batch
    else:
        options[setting] = [int(k) for k in value.split("-")] if setting == "k" else float(value)
    same = replace(base, name=name, published=config.published, loss=replace(base.loss, options=options), batch=batch)
    assert config == same
    assert load_recipe(name).description
