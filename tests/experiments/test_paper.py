"""The page of the paper: published numbers, figures computed by the losses, one's own runs beside their rows."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import method
from experiments.__main__ import main
from experiments.method import ahead_at, draw_method, hits_at, push_at
from experiments.paper import idea, own_results, write_paper
from experiments.published import TABLES, published_rows
from recollect.common.errors import InputError
from recollect.config.resolve import as_mapping, resolve
from recollect.losses import RecallAtK
from recollect.report.results import read_run


def _run(
    folder: Path,
    recipe: str | Path,
    results: dict[str, dict[str, float]],
    settings: dict[str, Any] | None = None,
    **summary: Any,
) -> Path:
    """A finished run, evaluated on ``DATA/SPLIT`` or on ``DATA+revisitop1m``; ``summary`` is more of ``metrics.json``."""
    import yaml

    config = resolve(recipe, settings or {})
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(as_mapping(config)))
    (folder / "manifest.json").write_text('{"outcome": {"steps": 1}}')
    for name, metrics in results.items():
        data, _, distractors = name.partition("/")[0].partition("+")
        source = {"data": data, "split": name.partition("/")[2] or "test", "distractors": distractors or 0}
        source["scales"] = list(config.model.scales) or [1.0]
        place = folder / "eval" / f"{name.replace('/', '-')}-0a1b2c3d"
        place.mkdir(parents=True)
        (place / "metrics.json").write_text(json.dumps({"metrics": metrics, "source": source, **summary}))
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


def _own_rows(page: Path) -> dict[str, list[list[str]]]:
    """The rows of one's own runs in the tables by their label; those of bar plots have one number."""
    found: dict[str, list[list[str]]] = {}
    for row in re.findall(r"<tr>.*?</tr>", page.read_text(encoding="utf-8")):
        cells = [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        if cells[0].startswith("yours") and len(cells) > 2:
            found.setdefault(cells[0], []).append(cells[1:])
    return found


def test_own_runs_stand_beside_their_rows(tmp_path: Path) -> None:
    one = {"cars196/test": {"r@1": 0.7313, "r@2": 0.8}, "sop/test": {"r@1": 0.5}}  # another data set is another row
    one = _run(tmp_path / "one", "cars196/r50-512/rsk", one)
    two = _run(tmp_path / "two", "cars196-batch/r50-512/rsk/batch-16", {"cars196/test": {"r@1": 0.6}})
    three = _run(tmp_path / "three", "glyphs", {"glyphs/test": {"r@1": 0.5}})
    four = _run(tmp_path / "four", "sop/r50-512/rsk", {})
    five = _run(tmp_path / "five", "cars196-combined/r50-512/arcface", {"cars196/test": {"r@1": 0.5}})
    settings = two / "config.yaml"  # as earlier versions wrote it
    settings.write_text(settings.read_text().replace("  row: cars196-batch/r50-512/rsk/batch-16\n", ""))
    six = _run(tmp_path / "six", "cars196/vit-b16-in21k/rsk", {"cars196/test": {"r@1": 0.8812}})
    runs = (one, two, three, four, five, six)
    assert [name for name, _ in own_results([read_run(run) for run in runs])[1]] == ["three", "four", "five"]
    page = write_paper(runs, tmp_path / "paper.html")
    assert _own_rows(page)["yours: one"] == [["73.1", "80.0", "–", "–"]]
    shown = _text(page)
    assert "‡" not in shown
    assert "RS@k, yours" in shown
    assert "60.00" in shown  # in the table of batch sizes
    assert "3 of your runs" in shown
    assert "recollect eval" in shown
    assert "yours: six: 88.1" in shown  # among the bars of its network


def test_results_with_distractors_are_not_shown_without_them(tmp_path: Path) -> None:
    with_them = {"medium/map": 0.592, "hard/map": 0.3}
    alone = {"medium/map": 0.986, "hard/map": 0.7}
    recipe, name = "gldv1/r101/rsk", "rparis6k+revisitop1m"
    both = _run(tmp_path / "both", recipe, {name: with_them}, protocol="revisited", without_distractors=alone)
    only = _run(tmp_path / "only", recipe, {name: with_them}, protocol="revisited")
    rows = _own_rows(write_paper([both, only], tmp_path / "paper.html"))
    means, oxford = ["–"] * 2, ["–"] * 4
    assert rows["yours: both"] == [[*means, *oxford, "98.6", "70.0", "59.2", "30.0"]]
    assert rows["yours: only"] == [[*means, *oxford, "–", "–", "59.2", "30.0"]]


def test_a_run_that_is_not_comparable_says_why(tmp_path: Path) -> None:
    changed = {"model.weights": "none", "batch.size": 40, "model.image_size": 48, "run.seed": 7, "data.root": "/x"}
    result = {"cars196/test": {"r@1": 0.982}}
    run = _run(tmp_path / "toy", "cars196/r50-512/rsk", result, changed, queries=109)
    page = write_paper([run], tmp_path / "paper.html")
    assert list(_own_rows(page)) == ["yours: toy ‡"]
    said = next(line for line in re.findall(r"<li>(.*?)</li>", page.read_text(encoding="utf-8")) if "toy" in line)
    reasons = ("weights is none", "batch.size is 40 instead of 392", "image_size is 48", "109 images instead of 8,131")
    assert all(why in said for why in reasons)
    assert "seed" not in said
    assert "/x" not in said


@pytest.mark.shared_data
@pytest.mark.parametrize("table", TABLES)
def test_the_tables_are_the_papers(table: str) -> None:
    source = Path(__file__).resolve().parents[3] / "shared" / "paper" / "tables" / f"{table}.csv"
    if not source.exists():
        pytest.skip("the paper's tables are not beside the project")
    with source.open(encoding="utf-8", newline="") as file:
        assert published_rows(table) == list(csv.DictReader(file))


def test_the_illustrations_show_what_the_losses_give() -> None:
    page = str(idea())
    shown = re.sub(r"<[^>]+>", " ", page)
    for listed, pulls in zip(method.MOTIVATION, method.pulls(), strict=True):
        assert listed.title.capitalize() in shown
        wanted = [value for pull in pulls for value in (pull.pairs, pull.recall) if abs(value) >= 0.005]
        assert all(f"{value:+.2f}".replace("-", "−") in shown for value in wanted)
    for listed in method.COMPARED:
        row = shown[shown.index(listed.title) :].split()
        wanted = [f"{100 * value:.0f}" for found in method.compared(listed) for value in found[1:]]
        assert any(row[place : place + 6] == wanted for place in range(40))
    count = len(method.mixed_similarities().labels)
    assert page.count("<rect") == count**2
    assert "both virtual" in page


RANKS = torch.linspace(0, 12, 49, dtype=torch.float64)


def test_curves_are_the_equations() -> None:
    for k in (1, 2, 4):
        sigmoid = torch.sigmoid(k - RANKS)
        torch.testing.assert_close(hits_at(RANKS, [k]), sigmoid)
        torch.testing.assert_close(push_at(RANKS, [k]), sigmoid * (1 - sigmoid))
    torch.testing.assert_close(push_at(RANKS, [1, 2, 4]), sum(push_at(RANKS, [k]) for k in (1, 2, 4)))
    torch.testing.assert_close(
        push_at(RANKS, [4], 0.5), torch.sigmoid((4 - RANKS) / 0.5).mul(2).mul(1 - torch.sigmoid((4 - RANKS) / 0.5))
    )
    differences = torch.linspace(-0.1, 0.1, 41, dtype=torch.float64)
    torch.testing.assert_close(ahead_at(differences), torch.sigmoid(differences / 0.01))


def test_the_push_is_that_of_the_whole_loss() -> None:
    """One query, its positive and one negative, through the engine: the gradient's size is the curve's at that rank."""
    tau2 = 0.2
    angle = torch.tensor([0.0, 0.9, 1.1], dtype=torch.float64)
    embeddings = torch.stack([angle.cos(), angle.sin()], 1).requires_grad_()
    positive, negative = (embeddings[0] @ embeddings[i] for i in (1, 2))
    rank = 1 + torch.sigmoid((negative - positive) / tau2)
    loss = RecallAtK(k=[2], tau2=tau2)
    value = loss(embeddings[:1], torch.tensor([0]), embeddings[1:], torch.tensor([0, 1]))
    torch.testing.assert_close(value, 1 - hits_at(rank.detach()[None], [2])[0])
    (whole,) = torch.autograd.grad(value, embeddings, retain_graph=True)
    (of_rank,) = torch.autograd.grad(rank, embeddings)
    torch.testing.assert_close(whole, of_rank * push_at(rank.detach()[None], [2])[0])


@pytest.mark.release
def test_figures_are_written_small_and_the_same_each_time(tmp_path: Path) -> None:
    paths = draw_method(tmp_path / "a")
    names = ("sigmoids", "gradient-against-rank", "pairs-and-ranks", "recall-and-rs", "simix")
    assert [path.name for path in paths] == [f"{name}.{kind}" for name in names for kind in ("svg", "png")]
    before = [path.read_bytes() for path in paths]
    assert all(len(content) < 150_000 for content in before)
    with pytest.raises(InputError, match="already exists"):
        draw_method(tmp_path / "a")
    main(["method", "--out", str(tmp_path / "a"), "--overwrite"])
    assert [path.read_bytes() for path in paths] == before
