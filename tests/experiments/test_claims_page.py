"""The paper's claims: their cells, tables and figures, runs of an earlier page, and the command."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matrix_bench import SMALL, make_patterns, run_here

from experiments import reproduce as reproducing
from experiments.__main__ import main
from experiments.benches import BENCHES, Bench
from experiments.claims import CLAIMS, Claim, asymmetric, batch, k_sets
from experiments.claims_page import Judged, judge, write_page
from experiments.published import published_rows
from experiments.reproduce import choose_claims, take_over
from recollect.common.errors import ConfigError, DataError
from recollect.config.resolve import as_mapping, resolve
from recollect.studies.protocol import Cell, Matrix, Run
from recollect.studies.summary import collect

RATES = (3e-4, 1e-3, 3e-3)
BENCH = Bench(**SMALL, title="coloured patterns", full=96, batch=16, batches=(8, 16), folder="patterns")


@pytest.fixture
def study(tmp_path: Path) -> Matrix:
    made = Matrix(tmp_path / "out", provenance={"budget": "small"})
    made.open()
    return made


def _finished(run: Run, split: str, metrics: Mapping[str, float]) -> None:
    run.folder.mkdir(parents=True)
    settings = {"batch": {"size": BENCH.batch, "batches_per_epoch": 3}, "run": {"steps": 3}}
    record = {"settings": settings, "chosen_step": 3, "metrics": {split: metrics}, "seconds": 1.0, "machine": "another"}
    reproducing._import(run, {**record, "versions": {"recollect": "0.0.1"}})


def _measured(study: Matrix, cell: Cell, metrics: Mapping[str, float]) -> None:
    """A cell whose search and seeds came out as given; each seed is 0.1 points above the one before."""
    for rate in RATES:
        folder = study.folder(cell) / "search" / f"lr-{rate:g}"
        _finished(Run(cell, folder, rate=rate), "val", {"r@1": 0.5 if rate == 1e-3 else 0.4})
    for run in study.reported(cell):
        _finished(run, "test", {name: value + 0.001 * run.seed for name, value in metrics.items()})


def _table(text: str, first: str) -> list[list[str]]:
    """The cells of the first table whose header begins with that column."""
    lines = text[text.index(f"| {first} |") :].splitlines()
    rows = [line.strip("|").split("|") for line in lines[: next(i for i, line in enumerate(lines) if not line)]]
    return [[cell.strip() for cell in row] for row in rows if row[0].strip() != "---"]


def test_sets_of_k_have_every_k_and_their_mean(study: Matrix, tmp_path: Path) -> None:
    claim = k_sets(BENCH)
    first, second = claim.cells()[:2]
    _measured(study, first, {"r@1": 0.40, "r@2": 0.50, "r@4": 0.60, "r@8": 0.70, "r@16": 0.80})
    _measured(study, second, {"r@1": 0.41, "r@2": 0.51, "r@4": 0.61, "r@8": 0.71})  # not measured up to 16
    for cell in claim.cells()[2:]:
        _measured(study, cell, {"r@1": 0.30, "r@2": 0.31, "r@4": 0.32, "r@8": 0.33, "r@16": 0.90})
    text = write_page(study, [claim], tmp_path / "page", "x").read_text()
    ours = _table(text, "set of k")
    assert ours[0][:7] == ["set of k", "r@1", "r@2", "r@4", "r@8", "r@16", "mean"]
    assert ours[1][:7] == ["1", "40.2 ± 0.1", "50.2", "60.2", "70.2", "80.2", "60.2"]
    assert ours[2][:7] == ["1,2", "41.2 ± 0.1", "51.2", "61.2", "71.2", "–", "–"]
    paper = _table(text[text.index("The paper (sets of k") :], "set of k")
    assert paper[0] == ["set of k", "r@1", "r@2", "r@4", "r@8", "r@16", "mean"]
    assert paper[1] == ["1", "81.1", "87.7", "92.0", "95.0", "96.9", "90.5"]
    with (tmp_path / "page" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [rows[0][f"mean_r{k}"] for k in (1, 2, 4, 8, 16)] == ["40.20", "50.20", "60.20", "70.20", "80.20"]
    assert rows[1]["mean_r16"] == ""
    # A comparison may be of another metric than r@1.
    results, versions = collect(study, claim.cells()), {cell.name: set[str]() for cell in claim.cells()}
    by_sentence = {contrast.sentence: judge(contrast, results, versions) for contrast in claim.contrasts}
    assert by_sentence["{1,2,4,8,16} beats {1} at r@16"].differences == pytest.approx((10.0, 10.0, 10.0))
    assert by_sentence["{1,2,4,8,16} beats {16}"].differences == pytest.approx((0.0, 0.0, 0.0))


def test_verdicts() -> None:
    claim = batch(BENCH).contrasts[0]
    question = replace(claim, claimed=False)
    for differences, words, answer in (
        ((1.0, 1.1, 0.9), "holds here", "yes, here"),
        ((-1.0, -1.1, -0.9), "does not hold here", "no: the other way round here"),
        ((1.0, -0.2, 0.4), "undecided", "undecided"),
        ((), "not run", "not run"),
    ):
        assert (Judged(claim, differences).words, Judged(question, differences).words) == (words, answer)


def _records(bench: Bench) -> list[dict[str, Any]]:
    """A whole study of one cell, as a page would tell it; 1e-3 is the best rate."""
    cell = asymmetric(bench).cells()[0]
    made = []
    for seed, rate, steps in [*((0, rate, None) for rate in RATES), *((seed, 1e-3, 3) for seed in (1, 2, 3))]:
        settings = as_mapping(resolve(bench.recipe, Run(cell, Path(), seed, rate, steps).settings()))
        settings["data"]["root"] = None
        place = f"search/lr-{rate:g}" if steps is None else f"lr-{rate:g}-steps-3/seed-{seed}"
        made.append(
            {
                "run": f"small/{cell.name}/{place}",
                "settings": settings,
                "metrics": {"val" if steps is None else "test": {"r@1": 0.5 if rate == 1e-3 else 0.4}},
                "chosen_step": 3,
                "seconds": 1.0,
                "machine": "another",
                "versions": {"recollect": "0.0.1"},
            }
        )
    return made


def _import(tmp_path: Path, bench: Bench, records: list[dict[str, Any]]) -> tuple[Matrix, tuple[int, int]]:
    """Import the records into a new study; the study, and how many were imported and how many not."""
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    study = Matrix(tmp_path / f"study-{len(list(tmp_path.iterdir()))}", provenance={"budget": "small"})
    study.open()
    return study, take_over(study, [asymmetric(bench)], file)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    make_patterns(tmp_path / "patterns")
    return BENCH.using(tmp_path)


def test_a_study_goes_on_from_an_earlier_page(bench: Bench, tmp_path: Path) -> None:
    study, counts = _import(tmp_path, bench, _records(bench))
    assert counts == (6, 0)
    first, second = collect(study, asymmetric(bench).cells()).values()
    assert first.by_seed == {1: 50.0, 2: 50.0, 3: 50.0}
    assert not second.by_seed
    assert (first.choice.rate, first.choice.steps, first.choice.at_the_limit) == (1e-3, 3, False)
    write_page(study, [asymmetric(bench)], tmp_path / "page", "x")
    records = [json.loads(line) for line in (tmp_path / "page" / "runs.jsonl").read_text().splitlines()]
    assert sorted(records, key=lambda run: run["run"]) == sorted(_records(bench), key=lambda run: run["run"])


@pytest.mark.release
def test_the_command_from_plan_to_page(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_here(monkeypatch)
    monkeypatch.setitem(BENCHES, "small", replace(BENCH, batch=32, budget=replace(BENCH.budget, images=96)))
    monkeypatch.setitem(CLAIMS, "asymmetric", (asymmetric, ("small",)))
    out = tmp_path / "study"
    command = ["claims", "asymmetric", "--data", str(tmp_path), "--out", str(out), "--seeds", "2", "--jobs", "1"]
    main([*command, "--plan"])
    assert "10 in total, 0 already done" in capsys.readouterr().out
    assert not out.exists()
    main([*command, "--minutes", "0"])
    assert "some runs are not done" in capsys.readouterr().out
    main(command)
    page = Path(capsys.readouterr().out.splitlines()[-1])
    text, runs = page.read_text(), (page.parent / "runs.jsonl").read_text()
    assert "python -m experiments claims asymmetric --budget small --data DIR --seeds 2" in text
    assert str(tmp_path) not in text + runs
    rows = [line for line in text.splitlines() if "(batch 24)" in line and line.startswith("|")]
    assert [row.split(" | ")[-2:] for row in rows] == [["3", "96 |"]] * 2  # the search: six classes of four images
    with (page.parent / "results.csv").open() as file:
        assert [row["cell"] for row in csv.DictReader(file)] == ["rsk-b32", "rsk-b32-step-asymmetric"]
    assert len(runs.splitlines()) == len(list(out.rglob("manifest.json"))) >= 10
    assert (page.parent / "asymmetric-small.svg").read_text().count("<svg") == 1


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
    assert claimed == {"RS@k beats Smooth-AP (both as in their papers)", "RS@k as released beats Smooth-AP as released"}
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
