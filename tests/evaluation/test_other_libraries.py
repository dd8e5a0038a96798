"""The same numbers as the libraries people use today, where these define the same thing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recollect.evaluation import evaluate


def _data(count=600, classes=60, dim=16):
    rng = np.random.default_rng(11)
    labels = rng.integers(0, classes, count)
    vectors = rng.standard_normal((classes, dim))[labels] + rng.standard_normal((count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


@pytest.mark.parametrize("separate", [False, True])
def test_pytorch_metric_learning(separate):
    pytest.importorskip("faiss")
    accuracy = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    vectors, labels = _data()
    names = ("mean_average_precision_at_r", "r_precision", "precision_at_1", "mean_reciprocal_rank")
    calculator = accuracy.AccuracyCalculator(include=(*names, "mean_average_precision"), device=torch.device("cpu"))
    if separate:
        queries, gallery = slice(0, 200), slice(200, None)
        theirs = calculator.get_accuracy(
            torch.from_numpy(vectors[queries]),
            torch.from_numpy(labels[queries]),
            torch.from_numpy(vectors[gallery]),
            torch.from_numpy(labels[gallery]),
        )
        ours = evaluate(vectors[queries], labels[queries], vectors[gallery], labels[gallery], ks=[1]).metrics
    else:
        theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
        ours = evaluate(vectors, labels, ks=[1]).metrics
    assert theirs["precision_at_1"] == pytest.approx(ours["r@1"], abs=1e-6)
    assert theirs["mean_average_precision_at_r"] == pytest.approx(ours["map@r"], abs=1e-6)
    assert theirs["r_precision"] == pytest.approx(ours["r_precision"], abs=1e-6)


def test_pytorch_metric_learning_with_full_lists():
    """With k = N − 1 its mean average precision and reciprocal rank look at every rank, as ours do."""
    pytest.importorskip("faiss")
    accuracy = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    vectors, labels = _data(count=300, classes=30)
    calculator = accuracy.AccuracyCalculator(
        include=("mean_average_precision", "mean_reciprocal_rank"), k=299, device=torch.device("cpu")
    )
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
    ours = evaluate(vectors, labels).metrics
    assert theirs["mean_reciprocal_rank"] == pytest.approx(ours["mrr"], abs=1e-6)
    assert theirs["mean_average_precision"] == pytest.approx(ours["map"], abs=1e-6)


def test_faiss_exact_search():
    faiss = pytest.importorskip("faiss")
    vectors, labels = _data()
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    _, found = index.search(vectors, 101)
    result = evaluate(vectors, labels, ks=[1, 10, 100])
    for query in range(len(vectors)):
        others = found[query][found[query] != query][:100]
        hits = labels[others] == labels[query]
        for k in (1, 10, 100):
            assert result.per_query[f"r@{k}"][query] == float(hits[:k].any())
            assert result.per_query[f"recall@{k}"][query] == pytest.approx(hits[:k].sum() / result.positives[query])
