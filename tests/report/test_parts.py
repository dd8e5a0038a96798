"""The parts of the page, from made-up vectors: what they say, and that they say it for hostile names too."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from recollect.data import ImageSet
from recollect.evaluation import evaluate, verdict
from recollect.report import map_layout
from recollect.report.atlas import Atlas
from recollect.report.data_checks import data_section
from recollect.report.failures import failures_section
from recollect.report.findings import KINDS, Duplicates, Findings, find_all
from recollect.report.gallery import rows_of_results
from recollect.report.map_view import _drawn, map_section
from recollect.report.measured import BEFORE, Contender
from recollect.report.neighbours import Confusion, Suspect, confused_pairs, in_rank_order, neighbours_of_all
from recollect.report.outcome_tables import headline, results, seeds
from recollect.report.plots import similarity_charts
from recollect.report.runs import Run, number
from recollect.report.seeds import mean_over_seeds, one_per_setting, settings_of
from recollect.report.shown_images import Shown
from recollect.report.verdict_view import Times, _unbroken, time_spent, verdict_section
from recollect.search.exact import Neighbours
from recollect.training.run_folder import RunFolder
from report.test_class_colours import cards, contrast

NAMES = ["<b>&amp;", "two", "three", "four"]


def _contender(name: str, noise: float, seed: int = 0, trained: bool = True) -> tuple[Contender, Shown]:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), 10)
    vectors = np.eye(4, 6)[labels] + random.normal(size=(40, 6)) * noise
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    pixels = np.random.default_rng(1).integers(0, 255, (40, 40, 40, 3), np.uint8)
    images = ImageSet("set", [f"{n}/{i}.png" for i, n in enumerate(labels)], labels, NAMES, arrays=pixels)
    shown = Shown("set", "test", list(images.names), labels, NAMES, 40, images)
    evaluation = evaluate(vectors, labels, ks=(1, 2, 1000), metrics=("r@k", "map@r", "first_rank", "map"))
    return Contender(name, "words", vectors, evaluation, trained), shown


def _run(name: str, seconds: float = 60.0, **settings: Any) -> Run:
    manifest = {"outcome": {"seconds": seconds}, "preparation_seconds": 30.0}
    return Run(name, RunFolder(Path(name)), None, settings, manifest, [], [])


def _text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def test_the_verdict_says_what_over_how_much_and_for_how_long() -> None:
    (before, shown), (after, _) = _contender(BEFORE, 0.8, trained=False), _contender("after training", 0.2)
    said = _text(verdict_section([_run("a", 50.0)], [before, after], shown, ["3 classes that were trained on"]) or "")
    assert "40 queries of 4 classes" in said
    assert f"{100 * before.evaluation.macro['r@1']:.1f} → {100 * after.evaluation.macro['r@1']:.1f}" in said
    assert "Not included: 3 classes that were trained on." in said
    assert "Time spent: 80 s (30 s before the first step)." in said
    said = _text(verdict_section([_run("a", 0.1)], [before, after], shown, []) or "")
    assert "Time spent: 30 s (nearly all before the first step)." in said
    judged = replace(_run("a"), manifest={"outcome": {"seconds": 40.0, "judging_seconds": 20.0}})
    assert time_spent(judged) == Times(0.0, 40.0, 20.0)
    said = _text(verdict_section([judged, judged], [before, after], shown, []) or "")
    assert "Time spent: 2 min for 2 runs (40 s for the verdict)." in said
    assert time_spent(replace(_run("a"), manifest={})) is None


def test_classes_that_were_trained_on_are_no_test() -> None:
    (before, shown), (after, _) = _contender(BEFORE, 0.8, trained=False), _contender("b", 0.2)
    seen = replace(after, seen=True)
    said = _text(verdict_section([_run("b")], [before, seen], shown, []) or "")
    assert "Not a test of unseen classes: this run was trained on all classes" in said
    assert "helped" not in said
    assert "Intervals" not in said
    said = _text(verdict_section([_run("a"), _run("b")], [_contender("a", 0.5)[0], seen], shown, []) or "")
    assert "Not a test of unseen classes: b was trained on all classes" in said


def test_without_a_step_it_is_not_training_that_is_judged() -> None:
    (before, shown), (after, _) = _contender(BEFORE, 0.8, trained=False), _contender("b", 0.2)
    said = _text(verdict_section([_run("b")], [before, replace(after, steps=0)], shown, []) or "")
    assert "The closed form (0 steps): no clear change" in said or "The closed form (0 steps) helped" in said


def test_verdicts_of_the_training_itself() -> None:
    (before, shown), (after, _) = _contender(BEFORE, 0.8, trained=False), _contender("b", 0.2)
    found = verdict(before.evaluation, after.evaluation).as_dict()
    kept = replace(_run("b"), manifest={"verdicts": {"start": found, "pretrained": found}, "outcome": {"steps": 5}})
    said = _text(verdict_section([kept], [before, after], shown, []) or "")
    assert said.count("Compared with 0 steps, the steps") == 1
    assert said.count("Found at the end of training, over 40 queries.") == 1
    apart = _text(verdict_section([_run("a", loss="x"), kept], [before, after], shown, [], [kept]) or "")
    assert "Compared with 0 steps, the steps of b" in apart
    assert "Training of b " in apart
    damaged = replace(kept, manifest={"verdicts": {"start": {"judgement": "?"}}})
    assert "0 steps" not in _text(verdict_section([damaged], [before, after], shown, []) or "")


def test_ties_are_shown_as_they_are_counted() -> None:
    """Exact copies under two labels: the evaluation counts the negative first, and so do the results."""
    labels = np.array([0, 0, 1, 1])
    found = Neighbours(np.array([[1, 2, 3], [0, 2, 3], [3, 0, 1], [2, 0, 1]]), np.ones((4, 3), np.float32))
    ordered = in_rank_order(found, np.arange(4), labels, np.array([2.0, 1.0, 3.0, np.nan]))
    assert ordered.indices.tolist() == [[2, 1, 3], [0, 2, 3], [0, 1, 3], [2, 0, 1]]
    other_way = Neighbours(np.array([[2, 1, 3]]), np.array([[0.5, 0.5 - 1e-7, 0.1]], np.float32))
    assert in_rank_order(other_way, np.arange(1), labels, np.array([1.0])).indices.tolist() == [[1, 2, 3]]
    assert [(pair.asked, pair.times) for pair in confused_pairs(labels, ordered)] == [(0, 1), (1, 1)]


def test_settings_that_were_chosen_by_trials_do_not_part_seeds() -> None:
    def run(name: str, lr: float, steps: int | None, **more: Any) -> Run:
        choices = [f"optimizer.lr = {lr}: the best", "run.epochs = 9: about 153 steps"]
        choices += [] if steps is None else [f"run.steps = {steps}: no number of steps improves"]
        settings = {"optimizer": {"lr": lr}, "run": {"seed": name, "steps": steps, "epochs": None if steps == 0 else 9}}
        return replace(_run(name, **(settings | more)), manifest={"choices": choices})

    alike = [run("a_0", 1e-4, None), run("a_1", 3e-5, 0)]
    assert [(name, len(group)) for name, group in settings_of(alike)] == [("a", 2)]
    asked = replace(_run("b", **alike[0].settings), manifest={})
    assert len(settings_of([*alike, asked])) == 2  # the user's own learning rate is another setting
    assert len(settings_of([alike[0], run("c", 1e-4, None, loss={"name": "x"})])) == 2


def test_seeds_without_effect_are_said() -> None:
    one, _ = _contender("a_0", 0.2)
    found = mean_over_seeds([_run("a_0"), _run("a_1")], [one, replace(one, name="a_1")])
    assert [(mean.name, mean.spread) for mean in found] == [("a (2 seeds)", None)]
    assert "the seed has no effect" in found[0].what


def test_an_interval_is_not_broken_across_lines() -> None:
    said = _unbroken("r@1 85.7 → 75.5 (−10.2, 95 % CI −12.9 … −7.7: no clear change), mAP@R 1.0 → 2.0")
    interval = "95 % CI −12.9 … −7.7".replace(" ", "\u00a0")
    assert said == f"r@1 85.7 → 75.5 (−10.2, {interval}: no clear change), mAP@R 1.0 → 2.0"


def test_averages_over_classes_of_several_runs_stand_beside_each_other() -> None:
    named = [_contender(name, 0.5, seed) for seed, name in enumerate((BEFORE, "one", "two"))]
    contenders = [replace(named[0][0], trained=False), named[1][0], named[2][0]]
    said = _text(verdict_section([_run("one"), _run("two")], contenders, named[0][1], []) or "")
    values = [[f"{100 * one.evaluation.macro[metric]:.1f}" for metric in ("r@1", "map@r")] for one in contenders]
    expected = [f"{one.name} r@1 {r}, mAP@R {m}" for one, (r, m) in zip(contenders, values, strict=True)]
    assert f"(macro): {' ; '.join(expected)}" in said.replace(";", " ;").replace("  ", " ")


def test_results_have_no_empty_cells_for_other_k() -> None:
    (before, shown), (after, _) = _contender(BEFORE, 0.8, trained=False), _contender("after training", 0.2)
    run = replace(_run("a"), evaluated={"set-1": {"r@1": 0.5, "r@5": 0.75}, "set-2": {"r@3": 0.25}})
    markup = results([run], [before, after], [before, after], shown)
    assert "–" not in markup
    assert "r@1000" not in markup  # more than there are images
    assert _text(markup).count("by recollect eval") == 2


def test_seeds_of_one_setting_are_averaged() -> None:
    start = _contender(BEFORE, 0.9, 9, trained=False)[0]
    names = ["small/seed-1", "small/seed-2", "large/seed-1"]
    contenders = [start, *(_contender(name, 0.5, seed)[0] for seed, name in enumerate(names))]
    runs = [_run(names[0], run={"seed": 0, "steps": 5}), _run(names[1], run={"seed": 1, "steps": 5})]
    runs.append(_run(names[2], run={"seed": 0, "steps": 6}))
    values = [100 * contender.evaluation.metrics["r@1"] for contender in contenders[1:3]]
    means = mean_over_seeds(runs, contenders)
    assert [one.name for one in means] == [BEFORE, "small (2 seeds)", "large/seed-1"]
    assert 100 * means[1].evaluation.metrics["r@1"] == pytest.approx(np.mean(values))
    assert f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" in _text(seeds(means) or "")
    assert f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} %" in _text(headline(means) or "")
    said = _text(verdict_section(runs, means, _contender("x", 0.5)[1], []) or "")
    assert "Training of small (2 seeds)" in said
    assert "large/seed-1 instead of small (2 seeds)" in said
    assert [one.name for one in one_per_setting(runs, contenders)] == [BEFORE, names[0], names[2]]
    assert mean_over_seeds([runs[0], runs[2]], contenders[:2]) == contenders[:2]
    assert seeds(contenders) is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b/seed-1", "b/seed-2"], "b"),
        (["run_seed1", "run_seed12"], "run"),
        (["a10", "a11"], "a"),
        (["seed-1", "seed-2"], "seed-1 and 1 more"),
        (["x", "y", "z"], "x and 2 more"),
    ],
)
def test_a_setting_is_named_after_what_its_runs_share(names: list[str], expected: str) -> None:
    runs = [_run(name, run={"seed": number}) for number, name in enumerate(names)]
    assert [name for name, _ in settings_of(runs)] == [expected]


def test_failures_that_are_near_duplicates_are_marked() -> None:
    contender, shown = _contender("after training", 0.7)
    found = neighbours_of_all(contender.vectors)
    pairs = confused_pairs(shown.labels, found)
    atlas = Atlas(shown.images, shown.names, ["c"] * 40)
    plain = failures_section(pairs, contender, shown, atlas, {})
    example, first = pairs[0].example, int(found.indices[pairs[0].example, 0])
    marked = failures_section(pairs, contender, shown, atlas, {example: frozenset({example, first})})
    assert "near-duplicate" not in plain
    wrong = np.flatnonzero(contender.evaluation.values("r@1") == 0)
    right = np.flatnonzero(contender.evaluation.values("r@1") == 1)
    other = {int(query): int(np.flatnonzero(shown.labels != shown.labels[query])[0]) for query in (*wrong, right[0])}
    twins = {query: frozenset({query, twin}) for query, twin in other.items()}
    counted = _text(failures_section(pairs, contender, shown, atlas, twins))
    assert f"{len(wrong)} of them have near-duplicates with another label" in counted  # not the query that did well
    assert "near-duplicate of another class" in _text(marked)
    assert "<b>" not in plain
    assert f"{sum(pair.times for pair in pairs)} of 40 queries" in _text(plain)
    assert "no classes are confused" in failures_section([], contender, shown, atlas, {})


def test_a_single_failure_is_told_in_the_singular() -> None:
    contender, shown = _contender("after training", 0.0)
    pair = Confusion(0, 1, 1, 10, 3)
    atlas = Atlas(None, shown.names, ["c"] * 40)
    said = _text(failures_section([pair], contender, shown, atlas, {}))
    assert said.startswith("1 of 40 queries has an image of another class first. Classes that are confused")
    several = _text(failures_section([replace(pair, times=2)], contender, shown, atlas, {}))
    assert several.startswith("2 of 40 queries have an image of another class first. All are of one pair of classes.")


def test_a_caption_has_a_minus_sign() -> None:
    contender, shown = _contender("after training", 0.2)
    vectors = np.eye(6, dtype=np.float32)[1 + shown.labels] - 0.1 * np.eye(6, dtype=np.float32)[0]
    vectors[0] = np.eye(6)[0]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    atlas = Atlas(shown.images, shown.names, ["c"] * 40)
    assert "✓ −0.10" in _text(rows_of_results([0], [replace(contender, vectors=vectors)], shown, atlas))


def test_intervals_are_explained_only_where_there_are_some() -> None:
    pair = [_contender(BEFORE, 0.9, trained=False), _contender("after training", 0.3)]
    few = _text(str(verdict_section([], [one for one, _ in pair], pair[0][1], [])))
    assert "(4 classes). Averaged" in few  # four classes are too few for an interval
    assert "CI" not in few
    assert "Intervals" not in few


def test_everything_found_is_listed() -> None:
    contender, shown = _contender("after training", 0.7)
    found = neighbours_of_all(contender.vectors)
    findings = find_all(contender.vectors, shown.labels, NAMES, found, shown.images, copies=[5])
    groups = [Duplicates([0, 1], [2], 0.96, NAMES[:1], KINDS[0]), Duplicates([3, 12], [], 0.99, NAMES[:2], KINDS[1])]
    given = {"training_images": shown.images, "training": 40, "compared_training": 40}
    findings = replace(findings, suspects=[], duplicates=groups, **given)
    atlas = Atlas(shown.images, shown.names, ["c"] * 40)
    said = _text(data_section(findings, found, shown, atlas, Atlas(shown.images, shown.names, ["c"] * 40, "t")))
    assert f"Suspected wrong labels {len(findings.suspects)}" in said
    assert "Test images that were trained on 1" in said
    assert "Near-duplicates across classes 1 group " in said
    assert "(1 of them trained on)" in said
    assert "40 test images and all 40 training images were compared" in said
    assert "--csv" in said
    assert atlas.style().count("background-position") == 4


def test_the_rule_for_a_suspected_label_is_said_and_what_was_checked() -> None:
    contender, shown = _contender("after training", 0.7)
    suspect = Suspect(3, 1, 4, 5, 12, 0.81, 0.42)
    found = neighbours_of_all(contender.vectors)
    atlas = Atlas(shown.images, shown.names, ["c"] * 40)
    said = _text(data_section(Findings([suspect], [], []), found, shown, atlas, None))
    assert f"labelled {NAMES[0]} ; 4 of its 5 nearest are {NAMES[1]} (mean similarity 0.81; the nearest" in said
    assert "At least 3 of the 5 nearest images belong to one other class" in said
    assert "none of the 10 nearest to their own" in said
    assert f"only images of the split “{shown.split}” are checked" in said
    assert "recollect report RUN --split train" in said
    none = _text(data_section(Findings([], [], []), found, replace(shown, split="train"), atlas, None))
    assert "training images are checked" in none
    assert "--split" not in none


@pytest.mark.parametrize("images", [True, False])
def test_the_map_carries_places_classes_and_names(images: bool) -> None:
    contender, shown = _contender("after training", 0.2)
    if not images:
        shown = replace(shown, images=None)
    markup = map_section([contender], shown, None)

    def attribute(name: str) -> str:
        found = re.search(f'data-{name}="([^"]*)"', markup)
        assert found is not None
        return html.unescape(found[1])

    assert json.loads(attribute("kinds")) == NAMES
    assert json.loads(attribute("files")) == shown.names
    labels = np.frombuffer(base64.b64decode(attribute("labels")), "<u2")
    assert labels.tolist() == shown.labels.tolist()
    assert len(np.frombuffer(base64.b64decode(attribute("points")), "<u2")) == 80
    tiles = np.frombuffer(base64.b64decode(attribute("tiles")), "<u2")
    assert sorted(tiles.tolist()) == (list(range(40)) if images else [65535] * 40)
    assert "<b>" not in markup


def test_numbers_that_a_page_can_show() -> None:
    assert [number(value) for value in (1, 0.5, True, None, "1", 10**400, float("nan"), float("inf"))] == [
        1.0,
        0.5,
        *[None] * 6,
    ]


def test_the_map_without_a_script_is_a_picture_of_the_same_dots() -> None:
    places = np.array([[0.0, 0.0], [1.0, 0.25], [0.5, 1.0]])
    address = _drawn(places, np.array([0, 1, 1]))
    picture = Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))).convert("RGBA")
    pixels = np.asarray(picture)
    inside = (4 + places * (picture.width - 9)).round().astype(int)
    seen = [tuple(pixels[y, x].tolist()) for x, y in inside]
    assert all(alpha > 200 for *_, alpha in seen)
    assert seen[1] == seen[2] != seen[0]
    assert pixels[picture.height // 2, picture.width // 4, 3] == 0


def test_the_picture_of_the_map_has_contrast_on_light_and_dark() -> None:
    places = np.stack(np.meshgrid(*[np.linspace(0, 1, 8)] * 2), axis=-1).reshape(-1, 2)  # no dot over another
    address = _drawn(places, np.arange(64))
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))).convert("RGBA"))
    seen = np.unique(pixels[pixels[..., 3] == 255][:, :3], axis=0)
    assert len(seen) >= 30
    assert min(contrast(tuple(colour), card) for colour in seen.tolist() for card in cards()) >= 3


@pytest.mark.parametrize(("count", "installed"), [(40, True), (40, False), (60, False)])
def test_the_map_says_the_true_reason_for_principal_components(
    count: int, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_layout, "find_spec", lambda name: object() if installed else None)
    vectors = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    labels = np.arange(count) % 2
    shown = Shown("set", "test", [str(n) for n in range(count)], labels, ["a", "b"], count)
    contender = Contender("model", "", vectors, evaluate(vectors, labels, ks=(1,)))
    said = _text(map_section([contender], shown, None))
    assert ("pip install" in said) == (count >= 50)
    assert ("at least 50 images" in said) == (count < 50)
    assert "pictures appear" not in said  # there are none
    assert "its name" in said


def test_histograms_that_are_compared_have_one_axis() -> None:
    (before, shown), (after, _) = _contender(BEFORE, 0.8, trained=False), _contender("after training", 0.05)
    first, second = similarity_charts([before, after], shown).split("<figure>")[1:]
    axes = [re.findall(r'text-anchor="end">([^<]*)\s%<', part) for part in (first, second)]
    assert axes[0] == axes[1] != []
