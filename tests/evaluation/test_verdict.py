from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from recollect.common.errors import DataError, InputError
from recollect.evaluation import Evaluation, Verdict, paired_bootstrap, verdict

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
        ((0.5, 0.3), "no clear change", ", 95 % CI "),
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


def test_values_are_those_of_the_evaluations_and_the_paired_bootstrap():
    before, after = _evaluation(0.5, 0.3), _evaluation(0.6, 0.35, seed=1)
    found, reference = verdict(before, after)["map@r"], paired_bootstrap(before, after, "map@r")
    assert (found.before, found.after) == (before.metrics["map@r"], after.metrics["map@r"])
    assert (found.difference, found.low, found.high) == (reference.difference, reference.low, reference.high)
    assert (found.macro_before, found.macro_after) == (before.macro["map@r"], after.macro["map@r"])
    with pytest.raises(InputError, match="not compared"):
        verdict(before, after)["r@10"]


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


def test_fewer_is_better_for_ranks():
    labels, ones = np.repeat(np.arange(10), 2), np.ones(20, np.int64)
    near, far = (Evaluation({"first_rank": np.full(20, rank)}, labels, ones) for rank in (1.0, 9.0))
    assert verdict(far, near, "first_rank").judgement == "helped"
    assert verdict(near, far, "first_rank").judgement == "made it worse"


def test_other_queries_and_unknown_metrics_are_refused():
    with pytest.raises(InputError, match="different queries"):
        verdict(_evaluation(0.5, 0.3), _evaluation(0.5, 0.3, each=EACH + 1))
    with pytest.raises(InputError, match="not computed"):
        verdict(_evaluation(0.5, 0.3), _evaluation(0.5, 0.3), "r@7")


def test_a_verdict_survives_json():
    found = verdict(_evaluation(0.5, 0.3), _evaluation(0.6, 0.35, seed=1))
    kept = json.loads(json.dumps(found.as_dict()))
    assert Verdict.from_dict(kept) == found
    assert kept["sentence"] == found.sentence()


@pytest.mark.parametrize("damage", [{"judgement": "fine"}, {"changes": []}, {"changes": [{}]}, {"queries": "many"}])
def test_a_damaged_verdict_is_refused(damage):
    kept = verdict(_evaluation(0.5, 0.3), _evaluation(0.6, 0.35)).as_dict()
    with pytest.raises(DataError, match="verdict"):
        Verdict.from_dict({**kept, **damage})
    with pytest.raises(DataError, match="verdict"):
        Verdict.from_dict({})
