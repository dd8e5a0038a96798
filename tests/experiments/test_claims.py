from __future__ import annotations

from pathlib import Path

import pytest

from experiments.benches import BENCHES
from experiments.claims import CLAIMS, Claim
from experiments.published import published_rows
from experiments.reproduce import choose_claims
from recollect.common.errors import ConfigError, DataError
from recollect.config.resolve import resolve
from recollect.studies.protocol import Cell, Run

SOP_BATCHES = (72.9, 77.3, 79.0, 79.7, 80.5, 81.2, 82.0, 82.5, 82.8, 82.4)
EVERY = [(name, place) for name, (_, places) in CLAIMS.items() for place in places]


def made(name: str, place: str) -> Claim:
    return CLAIMS[name][0](BENCHES[place])


@pytest.mark.parametrize(("name", "place"), EVERY)
def test_every_cell_is_a_configuration_and_differs_from_the_others(
    name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cell, "search_batch", 16)  # there are no images here
    claim = made(name, place)
    seen = []
    for cell in claim.cells():
        rate = cell.bench.rates[0]
        config = resolve(cell.bench.recipe, Run(cell, Path(), seed=1, rate=rate, steps=7).settings())
        seen.append((config.loss, config.model, config.batch.size, cell.trains))
        if cell.trains:
            assert config.run.watch_test
            search = resolve(cell.bench.recipe, Run(cell, Path(), rate=rate).settings())
            assert search.data.validation == "paper"
            assert not search.run.watch_test
    assert all(one != other for i, one in enumerate(seen) for other in seen[:i])


def test_cells_of_one_name_are_the_same_wherever_they_stand() -> None:
    cells: dict[tuple[str, str], Cell] = {}
    for name, place in EVERY:
        for cell in made(name, place).cells():
            assert cells.setdefault((place, cell.name), cell) == cell


def test_the_paper_s_numbers_are_the_paper_s() -> None:
    rows = {(r["init"], r["arch"], r["method"]): r["cars_r1"] for r in published_rows("initialization")}
    published = made("initialisation", "cars196").published
    for shown, init in zip(published.rows, ("IN-21K", "CLIP-400M", "CLIP-2B"), strict=True):
        assert list(shown[1:]) == [rows[init, "ViT-B/16", method] for method in ("init", "SAP", "RS@k")]
    methods = {(r["method"], r["arch"]): r["cars_r1"] for r in published_rows("methods")}
    table = made("losses", "glyphs").published
    assert dict(table.rows) == {
        "multi-similarity (Inception)": methods["MS", "I3 d=512"],
        "Smooth-AP (+GeM +LN)": methods["SAP (authors) +GeM +LN", "R50 d=512"],
        "RS@k": methods["RS@k (authors)", "R50 d=512"],
        "RS@k+SiMix": methods["RS@k (authors) +SiMix", "R50 d=512"],
    }
    batches = made("batch", "cars196-head").published
    assert batches.curves["RS@k+SiMix"][-1] == (392.0, 88.17)
    assert batches.curves["Smooth-AP"][0] == (16.0, 68.9)
    large = made("batch", "omniglot-head").published  # Cars196 fills no batch of 2,048
    assert large.curves == {"RS@k": [(2.0**power, r1) for power, r1 in enumerate(SOP_BATCHES, 4)]}
    rows = [tuple(row.values()) for row in published_rows("k_values_cars196")]
    assert list(made("k-sets", "cars196-head").published.rows) == rows


def test_only_what_the_paper_says_counts_as_its_claim() -> None:
    """It compares RS@k with Smooth-AP; it has neither triplet loss nor plain contrastive loss, nor random weights untrained."""
    claimed = {contrast.sentence for contrast in made("losses", "glyphs").contrasts if contrast.claimed}
    assert claimed == {
        "RS@k beats Smooth-AP (both as in their papers)",
        "RS@k as released beats Smooth-AP as released",
    }
    starts = {contrast.sentence: contrast.claimed for contrast in made("initialisation", "cars196").contrasts}
    assert [sentence for sentence, said in starts.items() if said] == [
        "SAP: ImageNet weights beat random ones",
        "RS@k: ImageNet weights beat random ones",
    ]


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="omniglot"):
        choose_claims("losses", ["omniglot"], tmp_path)
    with pytest.raises(ConfigError, match="nothing in 'initialisation'"):
        choose_claims("initialisation", [], None)
    chosen, left_out = choose_claims("all", [], None)
    assert {claim.bench.name for claim in chosen} == {"glyphs"}
    assert any("omniglot" in line for line in left_out)
