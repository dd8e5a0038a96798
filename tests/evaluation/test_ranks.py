"""The streaming pass against the plain reference, over cases made to be awkward."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st

from oracles import metrics as reference
from recollect.evaluation import evaluate, evaluate_revisited, metrics as metrics_module, ranks as ranks_module
from recollect.evaluation.metrics import METRICS
from recollect.losses import RecallAtK

KS = (1, 2, 5, 1000)  # 1000 exceeds every gallery here


@st.composite
def cases(draw):
    """Small whole numbers: dot products are exact, and duplicates, ties and zero vectors are frequent."""
    dim = draw(st.integers(1, 4))
    classes = draw(st.integers(1, 6))

    def vectors(count):
        number = st.integers(-2, 2)
        rows = draw(st.lists(st.lists(number, min_size=dim, max_size=dim), min_size=count, max_size=count))
        return np.array(rows, dtype=np.float32).reshape(count, dim)

    def labels(count):
        return draw(st.lists(st.integers(0, classes - 1), min_size=count, max_size=count))

    queries = draw(st.integers(2, 24))
    case = {"embeddings": vectors(queries), "labels": labels(queries), "ties": draw(st.sampled_from(TIES))}
    items = queries
    if draw(st.booleans()):
        items = draw(st.integers(1, 24))
        case |= {"gallery": vectors(items), "gallery_labels": labels(items)}
    if draw(st.booleans()):
        extra = draw(st.integers(1, 8))
        case["distractors"] = vectors(extra)
        items += extra
    if draw(st.booleans()):
        index = st.integers(0, items - 1)
        case["junk"] = draw(st.lists(st.lists(index, max_size=5), min_size=queries, max_size=queries))
    if draw(st.booleans()):  # a second level, and with it ties between the levels
        kinds = draw(st.lists(st.integers(0, 2), min_size=classes, max_size=classes))
        for name in ("labels", "gallery_labels"):
            if name in case:
                case[name.replace("labels", "coarse_labels")] = [kinds[label] for label in case[name]]
    return case


TIES = ("pessimistic", "optimistic")


def _assert_same(columns, expected):
    for name, column in expected.items():
        np.testing.assert_array_equal(columns[name], column, err_msg=name)


def _assert_equal(result, expected):
    for number, values in enumerate(expected):
        for name, column in result.per_query.items():
            if values is None:
                assert np.isnan(column[number]), name
            else:
                assert column[number] == pytest.approx(values[name], abs=1e-12), (number, name)


@settings(max_examples=50)
@given(case=cases(), dtype=st.sampled_from([np.float32, np.float64, np.float16]))
def test_equals_the_reference(case, dtype):
    expected = reference.evaluate(**case, ks=KS)
    for name in ("embeddings", "gallery", "distractors"):
        if name in case:
            case[name] = case[name].astype(dtype)
    if all(values is None for values in expected):
        with pytest.raises(ValueError, match="has a positive"):
            evaluate(**case, ks=KS)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "_SIDE", 6)
        patch.setattr(metrics_module, "_ENTRIES", 20)  # a few queries at a time
        _assert_equal(evaluate(**case, ks=KS), expected)
    _assert_equal(evaluate(**case, ks=KS, memory=1 << 20), expected)


@given(
    case=cases(),
    metrics=st.lists(st.sampled_from(sorted(METRICS)), min_size=1, max_size=3, unique=True),
    ks=st.lists(st.integers(1, 12), min_size=1, max_size=3),
)
def test_counting_less_changes_nothing(case, metrics, ks):
    """Whatever is asked for, the pruned pass gives what the full pass gives."""
    if all(values is None for values in reference.evaluate(**case, ks=ks)):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "_SIDE", 6)
        everything = evaluate(**case, ks=ks)
        some = evaluate(**case, ks=ks, metrics=metrics)
    _assert_same(everything.per_query, some.per_query)


def _clusters(count=700, classes=90, dim=24, noise=1.0, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    vectors = rng.standard_normal((classes, dim))[labels] + noise * rng.standard_normal((count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def test_tile_sizes_and_memory_change_nothing(monkeypatch):
    """With 1 MiB the queries are cut into several blocks."""
    vectors, labels = _clusters(classes=40, dim=400)
    expected = evaluate(vectors, labels).per_query
    for side, memory in ((33, 1 << 20), (300, 1 << 30), (1008, 1 << 20)):
        monkeypatch.setattr(ranks_module, "_SIDE", side)
        _assert_same(evaluate(vectors, labels, memory=memory).per_query, expected)


@pytest.mark.parametrize("whole", [True, False])
def test_the_number_of_threads_changes_nothing(monkeypatch, whole):
    """Pairs of tiles are counted by several threads, against the queries themselves and against a gallery."""
    vectors, labels = _clusters(count=400, classes=10)
    others = () if whole else _clusters(count=300, classes=10, seed=1)
    monkeypatch.setattr(ranks_module, "_SIDE", 16)
    monkeypatch.setattr("recollect.common.machine.WORTH_A_THREAD", 1e-6)
    before, per_query = torch.get_num_threads(), []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            per_query.append(evaluate(vectors, labels, *others).per_query)
    finally:
        torch.set_num_threads(before)
    _assert_same(*per_query)


def test_counting_both_ways_equals_counting_one_way():
    """The queries as their own gallery, and the same said with a gallery and each query as its own junk."""
    vectors, labels = _clusters(count=1500, classes=200)
    labels[:3] = [900, 901, 902]  # without positives, but in the way of others
    extra = np.random.default_rng(3).standard_normal((300, 24)).astype(np.float32) / 5
    own = [[i] for i in range(len(vectors))]
    symmetric = evaluate(vectors, labels, distractors=extra)
    plain = evaluate(vectors, labels, vectors, labels, junk=own, distractors=extra)
    _assert_same(symmetric.per_query, plain.per_query)


@pytest.mark.parametrize("kind", ["whole", "normal"])
def test_thousands_of_positives(kind):
    """One class against the rest: more thresholds than cells to tell them apart, and for whole numbers few values."""
    rng = np.random.default_rng(1)
    vectors = (rng.integers(-3, 4, (2600, 3)) if kind == "whole" else rng.standard_normal((2600, 3))).astype(np.float32)
    labels = (np.arange(2600) < 2300).astype(int)
    few = reference.evaluate(vectors[:40], labels[:40].tolist(), vectors, labels.tolist(), ks=KS)
    _assert_equal(evaluate(vectors[:40], labels[:40], vectors, labels, ks=KS), few)


def test_self_is_left_out_by_identity():
    """A duplicate before the query in the gallery must not be mistaken for the query."""
    vectors = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    result = evaluate(vectors, [0, 1, 0, 1], ks=[1, 2, 3])
    # Query 0: its duplicate (label 1) is first, its positive (index 2) ties with index 3 and comes last.
    assert result.per_query["first_rank"].tolist() == [3, 3, 3, 3]
    assert evaluate(vectors, [0, 0, 1, 1], ks=[1]).metrics["r@1"] == 1.0


@pytest.mark.parametrize("newer", [False, True])
def test_products_are_in_full_float32_whatever_the_program_allows(newer, monkeypatch):
    matmul = torch.backends.cuda.matmul
    if newer and not hasattr(matmul, "fp32_precision"):
        pytest.skip("from torch 2.9")
    before, mm, precisions = torch.get_float32_matmul_precision(), torch.mm, []
    monkeypatch.setattr(torch, "mm", lambda *a, **o: (precisions.append(setting()), mm(*a, **o))[1])
    setting = (lambda: matmul.fp32_precision) if newer else torch.get_float32_matmul_precision
    allowed, full = ("tf32", "ieee") if newer else ("medium", "highest")
    embeddings = torch.eye(4).requires_grad_()
    try:
        if newer:
            matmul.fp32_precision = allowed
        else:
            torch.set_float32_matmul_precision(allowed)
        evaluate(embeddings, [0, 0, 1, 1])
        RecallAtK()(embeddings, torch.tensor([0, 0, 1, 1])).backward()
        assert set(precisions) == {full}
        assert setting() == allowed
        assert torch.is_grad_enabled()
    finally:
        if newer:
            matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision(before)


def test_cosine_is_dot_of_normalized_vectors():
    vectors, labels = _clusters(count=200, classes=20)
    longer = vectors * np.random.default_rng(2).uniform(0.1, 10, (200, 1)).astype(np.float32)
    wanted = evaluate(vectors, labels).per_query
    found = evaluate(longer, labels, similarity="cosine").per_query
    assert evaluate(longer, labels).metrics["map"] != pytest.approx(wanted["map"].mean(), abs=1e-3)
    for name, column in wanted.items():
        np.testing.assert_allclose(found[name], column, err_msg=name)


def _evaluate_as(rank, folder):
    torch.set_num_threads(1)  # threads of the test's process do not survive the fork
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    data = np.load(folder / "data.npz")
    evaluate(data["vectors"], data["labels"], distributed=True).save(folder / f"result{rank}.npz")
    instance = evaluate_revisited(data["vectors"][:5], data["vectors"], GROUND_TRUTH, distributed=True)
    instance.save(folder / f"revisited{rank}.npz")
    dist.destroy_process_group()


GROUND_TRUTH = [{"easy": [i + 10], "hard": [i + 20, i + 30], "junk": [i]} for i in range(5)]


def test_two_processes_give_the_numbers_of_one(tmp_path):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 25, 201)
    labels[:2] = 1000, 1001  # two queries without a positive
    vectors = rng.standard_normal((201, 12)).astype(np.float32)
    vectors[50:60] = vectors[60:70]
    np.savez(tmp_path / "data.npz", vectors=vectors, labels=labels)
    context = multiprocessing.get_context("fork")  # a new process would import torch for seconds
    workers = [context.Process(target=_evaluate_as, args=(rank, tmp_path)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    evaluate(vectors, labels).save(tmp_path / "result.npz")
    evaluate_revisited(vectors[:5], vectors, GROUND_TRUTH).save(tmp_path / "revisited.npz")
    for kind in ("result", "revisited"):
        expected = np.load(tmp_path / f"{kind}.npz")
        for rank in range(2):
            _assert_same(np.load(tmp_path / f"{kind}{rank}.npz"), expected)
