"""Re-identification by hand, and Revisited against values of the benchmark's own evaluator (12 digits)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oracles.metrics import revisited_average_precision
from recollect.common.errors import InputError
from recollect.evaluation import evaluate_rankings, evaluate_reid, evaluate_revisited
from recollect.evaluation.protocols import average_precision, precision_at

CASES = json.loads((Path(__file__).parent / "revisited_cases.json").read_text())


DIGITS = {"rel": 0, "abs": 1e-12}


SETUP = {"E": "easy", "M": "medium", "H": "hard"}


@pytest.mark.parametrize("case", CASES["ap_cases"])
def test_average_precision(case):
    positions, total = case["zero_based_positive_ranks_after_junk_removal"], case["nres"]
    assert average_precision(positions, total) == pytest.approx(case["AP"], **DIGITS)
    assert revisited_average_precision(positions, total) == pytest.approx(case["AP"], **DIGITS)


@pytest.mark.parametrize("case", CASES["hand_cases"], ids=lambda case: case["name"])
def test_hand_cases_as_rankings_and_as_vectors(case):
    gnd = [{"easy": case["ok"], "hard": [], "junk": case["junk"]}]
    results = [evaluate_rankings([case["ranking"]], gnd, ks=case["kappas"])]
    if case["name"] != "truncated_list":
        database = np.zeros((len(case["ranking"]), 1))
        database[case["ranking"], 0] = -np.arange(len(case["ranking"]), dtype=float)
        results.append(evaluate_revisited([[1.0]], database, gnd, ks=case["kappas"]))
    for result in results:
        values = [result.metrics["medium/map"], *(result.metrics[f"medium/mp@{k}"] for k in case["kappas"])]
        assert values == pytest.approx([case["AP"], *case["P@k"]], **DIGITS)


def test_a_query_without_positives_is_left_out_of_the_mean():
    case = CASES["empty_query_case"]
    gnd = [{"easy": g["ok"], "hard": [], "junk": g["junk"]} for g in case["gnd"]]
    result = evaluate_rankings(np.array(case["ranks_db_x_q"]).T, gnd, ks=case["kappas"])
    assert result.metrics["medium/map"] == pytest.approx(case["mAP"], **DIGITS)
    expected = [np.nan if value is None else value for value in case["APs"]]
    assert result.per_query["medium"]["map"] == pytest.approx(expected, nan_ok=True, **DIGITS)
    for k, value in zip(case["kappas"], case["mP@k"], strict=True):
        assert result.metrics[f"medium/mp@{k}"] == pytest.approx(value, **DIGITS)


def test_no_positive_in_a_truncated_list_scores_nothing():
    case = CASES["no_positive_retrieved"]
    result = evaluate_rankings([[4, 5]], [{"easy": [1], "hard": []}])
    assert result.metrics["medium/map"] == case["without_kappas_mAP"]
    assert result.metrics["medium/mp@10"] == 0.0
    assert precision_at([], 5) == 0.0


def _assert_setups(result, expected):
    for letter, setup in SETUP.items():
        wanted = expected[letter]
        assert result.metrics[f"{setup}/map"] == pytest.approx(wanted["mAP"], **DIGITS)
        for k, value in wanted["mP@k"].items():
            assert result.metrics[f"{setup}/mp@{k}"] == pytest.approx(value, **DIGITS)
        per_query = result.per_query[setup]["map"]
        assert (~np.isnan(per_query)).sum() == wanted["n_queries_used"]
        first = wanted.get("AP_first5", wanted.get("AP"))
        assert per_query[: len(first)] == pytest.approx(first, **DIGITS)


def test_easy_medium_hard_of_one_query():
    case = CASES["emh_small"]
    _assert_setups(evaluate_rankings([case["ranking"]], [case["gnd"]]), case["result"])
    database = np.zeros((10, 1), np.float32)
    database[case["ranking"], 0] = -np.arange(10)
    _assert_setups(evaluate_revisited([[2.0]], database, [case["gnd"]]), case["result"])


def _random_case():
    rng = np.random.default_rng(20240607)
    sim = rng.standard_normal((1000, 70))
    gnd = []
    for i in range(70):
        ne, nh, nj = (int(rng.integers(*bounds)) for bounds in ((1, 40), (1, 40), (0, 30)))
        perm = rng.permutation(1000)
        easy, hard, junk = (np.sort(p) for p in (perm[:ne], perm[ne : ne + nh], perm[ne + nh : ne + nh + nj]))
        if i in (11, 66):
            easy = easy[:0]
        sim[easy, i] += 3.0
        sim[hard, i] += 1.5
        sim[junk, i] += 2.0
        gnd.append({"easy": easy.tolist(), "hard": hard.tolist(), "junk": junk.tolist()})
    return sim, rng.standard_normal((5000, 70)), gnd


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("variant", ["plain", "with_distractors"])
def test_random_case_from_vectors(variant, dtype):
    """Unit vectors as queries make the similarity matrix itself the database's vectors."""
    sim, more, gnd = _random_case()
    expected = CASES["random_large"][variant]
    distractors = more.astype(dtype) if variant == "with_distractors" else None
    result = evaluate_revisited(np.eye(70, dtype=dtype), sim.astype(dtype), gnd, distractors, memory=2 << 20)
    _assert_setups(result, expected)


def test_random_case_from_rankings():
    sim, more, gnd = _random_case()
    whole = np.concatenate([sim, more])
    _assert_setups(evaluate_rankings(np.argsort(-whole, axis=0).T, gnd), CASES["random_large"]["with_distractors"])


def test_distractors_on_disk_are_read_in_tiles(tmp_path):
    rng = np.random.default_rng(3)
    queries, database, more = (rng.standard_normal((n, 16)).astype(np.float32) for n in (5, 60, 3000))
    gnd = [{"easy": [i, i + 5], "hard": [i + 10], "junk": [i + 20]} for i in range(5)]
    np.save(tmp_path / "more.npy", more)
    wanted = evaluate_revisited(queries, database, gnd, more).metrics
    assert evaluate_revisited(queries, database, gnd, tmp_path / "more.npy", memory=1 << 20).metrics == wanted
    rankings = np.argsort(-(queries @ np.concatenate([database, more]).T), axis=1)
    assert evaluate_rankings(rankings, gnd).metrics == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gnd": []}, "0 entries for 1 queries"),
        ({"gnd": [{"easy": [7], "hard": []}]}, "numbered 0 to 2"),
        ({"gnd": [{"positives": [0]}]}, "the keys are easy, hard and junk"),
        ({"setups": ["impossible"]}, "choose from easy, medium, hard"),
        ({"similarity": "l2"}, "choose 'dot' or 'cosine'"),
        ({"database": np.empty((0, 2))}, "both are needed"),
    ],
)
def test_bad_input_is_a_sentence(change, message):
    arguments = {"queries": np.ones((1, 2)), "database": np.ones((3, 2)), "gnd": [{"easy": [0], "hard": []}], **change}
    with pytest.raises(InputError, match=message):
        evaluate_revisited(**arguments)


def test_saved_values(tmp_path):
    result = evaluate_rankings([[0, 1]], [{"easy": [1], "hard": []}])
    result.save(tmp_path / "r.npz")
    assert np.load(tmp_path / "r.npz")["medium/map"].tolist() == [0.25]
    with pytest.raises(InputError, match="already exists"):
        result.save(tmp_path / "r.npz")


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
    assert evaluate_reid(vectors, labels, ks=(1, 5), seeds=[3, 8]).metrics == result.metrics
    first, second = (draw.metrics["r@1"] for draw in result.draws)
    assert result.metrics["reid/r@1"] == pytest.approx((first + second) / 2)
    assert result.deviations["reid/r@1"] == pytest.approx(abs(first - second) / 2)


def test_macro_average_weighs_identities_alike():
    vectors, labels = _data()
    kept = np.arange(90) >= 0
    kept[3:6] = False  # the first identity has three images, the others six
    result = evaluate_reid(vectors[kept], labels[kept], ks=(1,), seeds=2)
    by_hand = [list(draw.class_means("r@1").values()) for draw in result.draws]
    assert result.macro["reid/r@1"] == pytest.approx(np.mean(by_hand))
    assert result.macro["reid/r@1"] != result.metrics["reid/r@1"]


def test_refusals():
    vectors, labels = _data()
    with pytest.raises(InputError, match="at least one draw"):
        evaluate_reid(vectors, labels, seeds=[])
    with pytest.raises(InputError, match="single image"):
        evaluate_reid(vectors[:3], [0, 1, 2])
    with pytest.raises(InputError, match=r"90 vectors .*2 labels"):
        evaluate_reid(vectors, [0, 1])
