"""The paper's ablations as recipes: one per point of its figures and row of its table, with the published numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.published import published_rows
from recollect.config.recipes import available_recipes, load_recipe, published_tests
from recollect.config.resolve import resolve


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
