from __future__ import annotations

import numpy as np
import pytest

from recollect.common.errors import InputError
from recollect.evaluation import evaluate, evaluate_reid


def _data(seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(15), 6)
    vectors = rng.standard_normal((15, 8))[labels] + 1.2 * rng.standard_normal((90, 8))
    return vectors.astype(np.float32), labels


def test_each_draw_by_hand():
    vectors, labels = _data()
    result = evaluate_reid(vectors, labels, ks=(1, 5), seeds=[3, 8])
    for draw, queries in zip(result.draws, result.queries, strict=True):
        gallery = np.setdiff1d(np.arange(90), queries)
        assert sorted(labels[gallery]) == list(range(15))  # one image of each identity
        similarity = vectors[queries].astype(float) @ vectors[gallery].T.astype(float)
        order = np.argsort(-similarity, axis=1)
        place = (labels[gallery][order] == labels[queries][:, None]).argmax(axis=1)
        assert draw.metrics["r@1"] == pytest.approx((place < 1).mean())
        assert draw.metrics["r@5"] == pytest.approx((place < 5).mean())
        assert draw.metrics["mrr"] == pytest.approx((1 / (place + 1)).mean())
    first, second = (draw.metrics["r@1"] for draw in result.draws)
    assert result.metrics["reid/r@1"] == pytest.approx((first + second) / 2)
    assert result.deviations["reid/r@1"] == pytest.approx(abs(first - second) / 2)


def test_macro_average_weighs_identities_alike():
    vectors, labels = _data()
    kept = np.arange(90) >= 0
    kept[3:6] = False  # the first identity has three images, the others six
    result = evaluate_reid(vectors[kept], labels[kept], ks=(1,), seeds=2)
    by_hand = [np.mean(list(draw.class_means("r@1").values())) for draw in result.draws]
    assert result.macro["reid/r@1"] == pytest.approx(np.mean(by_hand))
    assert result.macro["reid/r@1"] != result.metrics["reid/r@1"]


def test_draws_are_random_and_repeatable():
    vectors, labels = _data()
    one, two = (evaluate_reid(vectors, labels, seeds=4) for _ in range(2))
    assert one.metrics == two.metrics
    assert not np.array_equal(one.queries[0], one.queries[1])


def test_is_not_the_all_against_all_protocol():
    vectors, labels = _data()
    assert evaluate_reid(vectors, labels).metrics["reid/r@1"] < evaluate(vectors, labels).metrics["r@1"] - 0.05


def test_refusals():
    vectors, labels = _data()
    with pytest.raises(InputError, match="at least one draw"):
        evaluate_reid(vectors, labels, seeds=[])
    with pytest.raises(InputError, match="single image"):
        evaluate_reid(vectors[:3], [0, 1, 2])
    with pytest.raises(InputError, match=r"90 vectors .*2 labels"):
        evaluate_reid(vectors, [0, 1])
    with pytest.raises(InputError, match="junk: fixed"):
        evaluate_reid(vectors, labels, junk=[])
