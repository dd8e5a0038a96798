"""``recollect paper``: published numbers, figures computed by the losses, one's own runs beside their rows."""

from __future__ import annotations

import csv
import itertools
import json
import re
from pathlib import Path

import pytest
import torch

from recollect.common.errors import InputError
from recollect.config.overrides import as_mapping, resolve
from recollect.report import paper_figures
from recollect.report.runs import read_run
from recollect.studies.paper_page import means_of, own_results, value_of, write_paper
from recollect.studies.published import TABLES, published_rows


def _run(folder: Path, recipe: str, results: dict[str, dict[str, float]]) -> Path:
    import yaml

    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(as_mapping(resolve(recipe))))
    (folder / "manifest.json").write_text("{}")
    for name, metrics in results.items():
        (folder / "eval" / name).mkdir(parents=True)
        (folder / "eval" / name / "metrics.json").write_text(json.dumps({"metrics": metrics}))
    return folder


def _text(page: Path) -> str:
    return re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8"))


def test_every_published_number_is_on_the_page(tmp_path: Path) -> None:
    shown = _text(write_paper([], tmp_path / "paper.html"))
    for name in TABLES:
        for row in published_rows(name):
            for column, value in row.items():
                if value and not column.endswith("_batch") and re.fullmatch(r"[\d.]+", value):
                    assert value in shown, (name, column, value)
    assert all(f" {batch} " in shown for batch in ("16", "392", "512", "8,192"))
    assert "yours" not in shown


def test_own_runs_stand_beside_their_rows(tmp_path: Path) -> None:
    one = _run(tmp_path / "one", "cars196/r50-512/rsk", {"cars196-test": {"r@1": 0.7313, "r@2": 0.8}})
    two = _run(tmp_path / "two", "cars196-batch/r50-512/rsk/batch-16", {"cars196-test-ab12": {"r@1": 0.6}})
    three = _run(tmp_path / "three", "glyphs", {"glyphs-test": {"r@1": 0.5}})
    four = _run(tmp_path / "four", "sop/r50-512/rsk", {})
    five = _run(tmp_path / "five", "cars196-combined/r50-512/arcface", {"cars196-test": {"r@1": 0.5}})
    six = _run(tmp_path / "six", "cars196/vit-b16-in21k/rsk", {"cars196-test": {"r@1": 0.8812}})
    own, unplaced = own_results([read_run(run) for run in (one, two, three, four, five, six)])
    assert value_of(own, "r50-512/rsk", "cars196/test", "r@1") == pytest.approx(73.13)
    assert value_of(own, "r50-512/rsk", "sop/test", "r@1") is None
    assert value_of(own, "cars196-batch/r50-512/rsk/batch-16", "cars196/test", "r@1") == pytest.approx(60)
    assert [run.name for run, _ in unplaced] == ["three", "four", "five"]
    shown = _text(write_paper([one, two, three, four, five, six], tmp_path / "paper.html"))
    assert "73.1" in shown
    assert "RS@k, yours" in shown
    assert "60.00" in shown  # in the table of batch sizes
    assert "3 of your runs" in shown
    assert "recollect eval" in shown
    assert "IN-21K, RS@k, yours: 88.1" in shown  # among the bars of its network


def test_batch_sizes_are_on_a_logarithmic_axis(tmp_path: Path) -> None:
    page = write_paper([], tmp_path / "paper.html").read_text(encoding="utf-8")
    chart = page[page.index("<title>r@1 on SOP by batch size</title>") :]
    chart = chart[: chart.index("</svg>")]
    places = [float(x) for x in re.findall(r'<circle[^>]* cx="([\d.]+)"', chart)]
    steps = [second - first for first, second in itertools.pairwise(places)]
    assert len(places) == 10
    assert max(steps) - min(steps) < 0.2  # every batch is twice the one before
    assert "0 %" not in re.findall(r">(\d+ %)<", chart)


def test_charts_of_sweeps_name_the_setting_and_stay_below_100_percent(tmp_path: Path) -> None:
    mine = _run(tmp_path / "run", "cars196-tau1/r50-512/rsk/tau1-0.5", {"cars196-test": {"r@1": 0.8069}})
    page = write_paper([mine], tmp_path / "paper.html").read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "<title>SAP: 68.9 % at 16</title>" in page
    chart = page.split("<title>r@1 on Cars196 by τ1</title>")[1].split("</svg>")[0]
    assert "<title>RS@k, yours: 80.7 % at 0.5</title>" in chart
    assert max(map(float, re.findall(r">([\d.]+) %<", chart))) <= 100
    places = [float(x) for x in re.findall(r'<line x1="([\d.]+)"[^>]* class="tick"', chart)]
    assert max(places) <= 470, "every value of the paper has a place on the axis"


def test_a_page_of_someone_else_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "paper.html"
    path.write_text("mine")
    with pytest.raises(InputError, match="overwrite"):
        write_paper([], path)
    assert path.read_text() == "mine"
    write_paper([], path, overwrite=True)
    write_paper([], path)


def test_means_of_instance_search_wait_for_all_numbers() -> None:
    row = next(row for row in published_rows("instance_search") if row["loss"] == "RS@k")
    columns = [name for name in row if name.startswith(("rox", "rpar"))]
    values: dict[str, float | None] = {name: float(row[name]) for name in columns}
    everything, large = means_of(values)
    assert everything == pytest.approx(float(row["mean_all"]), abs=0.06)
    assert large == pytest.approx(float(row["mean_r1m"]), abs=0.06)
    values["rox_hard"] = None
    assert means_of(values)[0] is None
    assert means_of(values)[1] == large


def test_rs_at_k_rises_before_recall_does() -> None:
    values = [paper_figures.compared(listed) for listed in paper_figures.COMPARED]
    for k in range(3):
        assert all(before[k][2] < after[k][2] for before, after in itertools.pairwise(values))
    assert [row[1][1] for row in values] == [0.5, 0.5, 0.5, 1.0]
    assert [row[2][1] for row in values] == [0.5, 0.5, 1.0, 1.0]


def test_a_loss_on_pairs_pulls_where_the_order_cannot_change_and_rs_at_k_does_not() -> None:
    settled, _, close = paper_figures.pulls()
    assert all(pull.pairs == pytest.approx(1) and abs(pull.recall) < 0.02 for pull in settled if pull.positive)
    assert all(pull.pairs == 0 and pull.recall > 0.1 for pull in close if pull.positive)


def test_mixed_similarities_are_those_of_mixtures_that_were_made() -> None:
    mixed = paper_figures.mixed_similarities()
    given = sum(not virtual for virtual in mixed.virtual)
    matrix = mixed.similarities
    assert torch.allclose(matrix, matrix.T)
    # The similarities are a Gram matrix of six vectors: mixtures add no rank.
    assert torch.linalg.matrix_rank(matrix) == torch.linalg.matrix_rank(matrix[:given, :given])


@pytest.mark.shared_data
@pytest.mark.parametrize("table", TABLES)
def test_the_tables_are_the_papers(table: str) -> None:
    source = Path(__file__).resolve().parents[3] / "shared" / "paper" / "tables" / f"{table}.csv"
    if not source.exists():
        pytest.skip("the paper's tables are not beside the project")
    with source.open(encoding="utf-8", newline="") as file:
        assert published_rows(table) == list(csv.DictReader(file))
