"""Intervals, comparisons of two runs, and the verdict."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from recollect.common.errors import DataError, InputError
from recollect.evaluation import Evaluation, Verdict, changed_queries, confidence_interval, paired_bootstrap, verdict


def _result(values, labels=None, name="r@1"):
    values = np.asarray(values, float)
    labels = np.arange(len(values)) if labels is None else np.asarray(labels)
    return Evaluation({name: values}, labels, np.ones(len(values), np.int64))


def test_interval_of_a_proportion_agrees_with_theory():
    values = (np.random.default_rng(0).random(2000) < 0.3).astype(float)
    interval = confidence_interval(_result(values), "r@1", by="query", resamples=2000)
    half = 1.96 * np.sqrt(0.3 * 0.7 / 2000)
    assert interval.mean == values.mean()
    assert interval.high - interval.mean == pytest.approx(half, rel=0.1)
    assert interval.mean - interval.low == pytest.approx(half, rel=0.1)


def test_classes_that_move_together_widen_the_interval():
    """20 classes of 50 equal values: 1000 queries but only 20 independent ones."""
    labels = np.repeat(np.arange(20), 50)
    result = _result((np.arange(20) % 2)[labels], labels)
    by_class, by_query = (confidence_interval(result, "r@1", by=by) for by in ("class", "query"))
    ratio = (by_class.high - by_class.low) / (by_query.high - by_query.low)
    assert ratio == pytest.approx(np.sqrt(50), rel=0.2)


def test_pairing_finds_a_small_steady_difference():
    rng = np.random.default_rng(2)
    hard = rng.random(400)
    first, second = _result(hard), _result(hard + 0.01 + 0.005 * rng.standard_normal(400))
    test = paired_bootstrap(first, second, "r@1")
    assert test.low > 0
    assert test.p_value <= 0.002
    assert test.difference == pytest.approx(0.01, abs=0.001)
    single = confidence_interval(first, "r@1")
    assert single.low < single.mean + test.difference < single.high  # two single intervals would overlap
    reversed_test = paired_bootstrap(second, first, "r@1")
    assert reversed_test.difference == -test.difference
    assert reversed_test.high < 0


def test_no_difference_is_not_significant():
    rng = np.random.default_rng(3)
    first, noise = rng.random(300), 0.01 * rng.standard_normal(300)
    two_sided = math.erfc(abs(noise.mean()) / noise.std() * math.sqrt(300 / 2))
    assert two_sided > 0.05
    assert paired_bootstrap(_result(first), _result(first + noise), "r@1").p_value == pytest.approx(two_sided, abs=0.05)
    assert paired_bootstrap(_result(first), _result(first), "r@1").p_value == 1.0


def test_queries_without_positive_take_no_part():
    values, others = np.array([1.0, 0.0, np.nan]), np.array([0.0, 0.0, np.nan])
    positives = np.array([1, 1, 0])
    first, second = (Evaluation({"r@1": v}, np.array([0, 0, 1]), positives) for v in (values, others))
    assert confidence_interval(first, "r@1").mean == 0.5
    assert paired_bootstrap(first, second, "r@1").difference == -0.5
    assert changed_queries(first, second).worse.tolist() == [0]


def test_changed_queries():
    changes = changed_queries(_result([0, 0.5, 1, 1]), _result([0.2, 1, 1, 0.7]))
    assert changes.better.tolist() == [1, 0]
    assert changes.worse.tolist() == [3]
    ranks = changed_queries(_result([5, 1], name="first_rank"), _result([2, 9], name="first_rank"), "first_rank")
    assert (ranks.better.tolist(), ranks.worse.tolist()) == ([0], [1])


def test_the_same_images_are_compared():
    """Other images of the same classes are refused where both results know theirs; where one does not, it is said."""

    def named(*ids):
        return Evaluation({"r@1": np.array([1.0, 0.0])}, np.array([3, 3]), np.array([1, 1]), {}, np.array(ids))

    first = named("a.jpg", "b.jpg")
    assert paired_bootstrap(first, named("a.jpg", "b.jpg"), "r@1").compared_by == "ids"
    for compare in (paired_bootstrap, changed_queries):
        with pytest.raises(InputError, match=r"number 1 .*b\.jpg .*c\.jpg"):
            compare(first, named("a.jpg", "c.jpg"), "r@1")
    assert paired_bootstrap(first, _result([1, 0], [3, 3]), "r@1").compared_by == "labels"


def test_refusals():
    one, other = _result([1, 0]), _result([1, 0, 1])
    with pytest.raises(InputError, match="different queries"):
        paired_bootstrap(one, other, "r@1")
    with pytest.raises(InputError, match="different queries"):
        changed_queries(one, _result([1, 0], [5, 6]))
    with pytest.raises(InputError, match="different positives"):
        changed_queries(one, Evaluation(one.per_query, one.labels, np.array([1, 2])))
    for options in ({"level": 1.0}, {"resamples": 0}, {"by": "x"}):
        with pytest.raises(InputError, match=next(iter(options))):
            confidence_interval(one, "r@1", **options)


CLASSES, EACH = 40, 20


def _evaluation(r1, map_at_r, classes=CLASSES, each=EACH, seed=0):
    """Per-query values with these means: r@1 as hits and misses, mAP@R spread around its mean."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    hits = (np.random.default_rng(99).random(classes * each) < r1).astype(float)  # the same queries are hard for all
    spread = np.clip(map_at_r + 0.05 * rng.standard_normal(classes * each), 0, 1)
    return Evaluation({"r@1": hits, "map@r": spread}, labels, np.ones(classes * each, np.int64))


@pytest.mark.parametrize(
    ("after", "judgement", "words"),
    [
        ((0.7, 0.3), "helped", "training helped."),
        ((0.5, 0.3), "no clear change", "): no clear change."),
        ((0.5, 0.4), "helped", ": no clear change), mAP@R 29.9 → 39.7"),
        ((0.5, 0.4), "helped", "): training helped mAP@R."),  # no more than that
        ((0.5, 0.2), "made it worse", "): training made mAP@R worse."),
        ((0.4, 0.4), "made it worse", "training made it worse"),  # the first metric that changed decides
    ],
)
def test_judgement_follows_the_first_metric_that_changed(after, judgement, words):
    found = verdict(_evaluation(0.5, 0.3), _evaluation(*after, seed=1))
    assert found.judgement == judgement
    assert words in found.sentence()
    assert (found.queries, found.classes) == (CLASSES * EACH, CLASSES)


def test_a_handful_of_classes_decides_nothing():
    """Five classes that all improve could do so by chance: a sign test gives p = 0.06."""
    for classes, judgement in ((5, "no clear change"), (6, "helped")):
        found = verdict(_evaluation(0.2, 0.3, classes, 50), _evaluation(0.9, 0.3, classes, 50))
        assert found.judgement == judgement
    five = verdict(_evaluation(0.2, 0.3, 5), _evaluation(0.9, 0.3, 5))
    assert not five.enough_classes
    assert "5 test classes are too few" in five.sentence()
    assert "CI" not in five.sentence()
    assert "1 test class is too few" in replace(five, classes=1).sentence()


def test_fewer_than_500_queries_get_a_word_of_caution():
    found = verdict(_evaluation(0.5, 0.3), _evaluation(0.7, 0.3))
    assert replace(found, queries=499).caution() == "Only 499 queries of 40 classes."
    assert replace(found, queries=499, classes=1).caution() == "Only 499 queries of 1 class."
    assert replace(found, queries=500).caution() == ""
    assert replace(found, queries=500).sentence().endswith("): training helped.")


def test_a_verdict_survives_json():
    before, after = _evaluation(0.5, 0.3), _evaluation(0.6, 0.35, seed=1)
    found = verdict(before, after)
    values = json.loads(json.dumps(found.as_dict()))
    assert Verdict.from_dict(values) == found
    assert values["sentence"] == found.sentence()
    assert found["map@r"].difference == paired_bootstrap(before, after, "map@r").difference


@pytest.mark.parametrize("damage", [{"judgement": "fine"}, {"changes": []}, {"changes": [{}]}, {"queries": "many"}])
def test_a_damaged_verdict_is_refused(damage):
    kept = verdict(_evaluation(0.5, 0.3), _evaluation(0.6, 0.35)).as_dict()
    with pytest.raises(DataError, match="verdict"):
        Verdict.from_dict({**kept, **damage})
    with pytest.raises(DataError, match="verdict"):
        Verdict.from_dict({})
