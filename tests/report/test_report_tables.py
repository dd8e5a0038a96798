"""The verdict and the tables, from made-up vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recollect.evaluation import verdict
from recollect.report.results import BEFORE, Times, mean_over_seeds, one_per_setting
from recollect.report.tables import headline, results, seeds, verdict_section
from report.report_runs import made_result, made_run, text_of


def test_the_verdict_says_what_over_how_much_and_for_how_long() -> None:
    (before, shown), (after, _) = made_result(BEFORE, 0.8, trained=False), made_result("after training", 0.2)
    said = text_of(
        verdict_section([made_run("a", 50.0)], [before, after], shown, ["3 classes that were trained on"]) or ""
    )
    assert "40 queries of 4 classes" in said
    assert f"{100 * before.evaluation.macro['r@1']:.1f} → {100 * after.evaluation.macro['r@1']:.1f}" in said
    assert "Not included: 3 classes that were trained on." in said
    assert "Time spent: 80 s (30 s before the first step)." in said
    said = text_of(verdict_section([made_run("a", 0.1)], [before, after], shown, []) or "")
    assert "Time spent: 30 s (nearly all before the first step)." in said
    judged = replace(made_run("a"), manifest={"outcome": {"seconds": 40.0, "judging_seconds": 20.0}})
    assert judged.times == Times(0.0, 40.0, 20.0)
    said = text_of(verdict_section([judged, judged], [before, after], shown, []) or "")
    assert "Time spent: 2 min for 2 runs (40 s for the verdict)." in said
    assert replace(made_run("a"), manifest={}).times is None


def test_classes_that_were_trained_on_are_no_test() -> None:
    (before, shown), (after, _) = made_result(BEFORE, 0.8, trained=False), made_result("b", 0.2)
    seen = replace(after, seen=True)
    said = text_of(verdict_section([made_run("b")], [before, seen], shown, []) or "")
    assert "Not a test of unseen classes: this run was trained on all classes" in said
    assert "helped" not in said
    assert "Intervals" not in said
    said = text_of(verdict_section([made_run("a"), made_run("b")], [made_result("a", 0.5)[0], seen], shown, []) or "")
    assert "Not a test of unseen classes: b was trained on all classes" in said


def test_without_a_step_it_is_not_training_that_is_judged() -> None:
    (before, shown), (after, _) = made_result(BEFORE, 0.8, trained=False), made_result("b", 0.2)
    said = text_of(verdict_section([made_run("b")], [before, replace(after, steps=0)], shown, []) or "")
    assert "The closed form (0 steps): no clear change" in said or "The closed form (0 steps) helped" in said


def test_verdicts_of_the_training_itself() -> None:
    (before, shown), (after, _) = made_result(BEFORE, 0.8, trained=False), made_result("b", 0.2)
    found = verdict(before.evaluation, after.evaluation).as_dict()
    kept = replace(made_run("b"), manifest={"verdicts": {"start": found, "pretrained": found}, "outcome": {"steps": 5}})
    said = text_of(verdict_section([kept], [before, after], shown, []) or "")
    assert said.count("Compared with 0 steps, the steps") == 1
    assert said.count("Neighbours at the end of training, over 40 queries.") == 1
    apart = text_of(verdict_section([made_run("a", loss="x"), kept], [before, after], shown, [], [kept]) or "")
    assert "Compared with 0 steps, the steps of b" in apart
    assert "Training of b " in apart
    damaged = replace(kept, manifest={"verdicts": {"start": {"judgement": "?"}}})
    assert "0 steps" not in text_of(verdict_section([damaged], [before, after], shown, []) or "")


def test_results_have_no_empty_cells_for_other_k() -> None:
    (before, shown), (after, _) = made_result(BEFORE, 0.8, trained=False), made_result("after training", 0.2)
    run = replace(made_run("a"), evaluated={"set-1": {"r@1": 0.5, "r@5": 0.75}, "set-2": {"r@3": 0.25}})
    markup = results([run], [before, after], [before, after], shown)
    assert "–" not in markup
    assert "r@1000" not in markup  # more than there are images
    assert text_of(markup).count("by recollect eval") == 2


def test_seeds_of_one_setting_are_averaged() -> None:
    start = made_result(BEFORE, 0.9, 9, trained=False)[0]
    names = ["small/seed-1", "small/seed-2", "large/seed-1"]
    models = [start, *(made_result(name, 0.5, seed)[0] for seed, name in enumerate(names))]
    runs = [made_run(names[0], run={"seed": 0, "steps": 5}), made_run(names[1], run={"seed": 1, "steps": 5})]
    runs.append(made_run(names[2], run={"seed": 0, "steps": 6}))
    values = [100 * model.evaluation.metrics["r@1"] for model in models[1:3]]
    means = mean_over_seeds(runs, models)
    assert [one.name for one in means] == [BEFORE, "small (2 seeds)", "large/seed-1"]
    assert 100 * means[1].evaluation.metrics["r@1"] == pytest.approx(np.mean(values))
    assert f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" in text_of(seeds(means) or "")
    assert f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} %" in text_of(headline(means) or "")
    said = text_of(verdict_section(runs, means, made_result("x", 0.5)[1], []) or "")
    assert "Training of small (2 seeds)" in said
    assert "large/seed-1 instead of small (2 seeds)" in said
    assert [one.name for one in one_per_setting(runs, models)] == [BEFORE, names[0], names[2]]
    assert mean_over_seeds([runs[0], runs[2]], models[:2]) == models[:2]
    assert not seeds(models)
