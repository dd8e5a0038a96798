"""``write_evaluation``, behind ``recollect eval``: what it returns is what it writes; refusals come first."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from recollect import write_evaluation
from recollect.common.errors import ConfigError, InputError
from recollect.evaluation import Evaluation


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 4)
    rows = (rng.standard_normal((10, 8))[labels] + rng.standard_normal((40, 8))).astype(np.float32)
    np.savez(tmp_path / "vectors.npz", embeddings=rows, labels=labels)
    return tmp_path / "vectors.npz"


def test_it_returns_what_it_writes(vectors: Path) -> None:
    found = write_evaluation(vectors, ks=[1, 5], dims=[4], similarity="cosine")
    assert found.metrics_file == vectors.with_name("vectors-eval") / "metrics.json"
    assert json.loads(found.metrics_file.read_text()) == json.loads(json.dumps(found.summary))
    assert list(found.summary["dims"]) == ["4", "8"]
    assert isinstance(found.result, Evaluation)
    kept = Evaluation.load(found.metrics_file.with_name("queries.npz"))
    assert kept.metrics["r@1"] == found.summary["metrics"]["r@1"]
    again = write_evaluation(
        vectors, ks=[1, 5], similarity="cosine", compare=found.metrics_file.with_name("queries.npz"), overwrite=True
    )
    assert again.summary["compared_with"]["r@1"]["difference"] == 0


def test_an_earlier_result_is_kept_unless_told_otherwise(vectors: Path) -> None:
    first = write_evaluation(vectors, ks=[1])
    with pytest.raises(InputError, match="--overwrite"):
        write_evaluation(vectors, ks=[2])
    assert json.loads(first.metrics_file.read_text())["metrics"].keys() >= {"r@1"}
    assert "r@2" in write_evaluation(vectors, ks=[2], overwrite=True).summary["metrics"]


def test_images_of_a_single_class_measure_nothing_which_is_said(
    vectors: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "recollect")
    write_evaluation(vectors)
    assert "measure nothing" not in caplog.text
    rows = np.load(vectors)["embeddings"]
    np.savez(vectors, embeddings=rows, labels=np.zeros(40, np.int64), gallery=rows, gallery_labels=np.arange(40) % 2)
    write_evaluation(vectors, overwrite=True)
    assert "measure nothing" not in caplog.text, "the gallery has another class"
    np.savez(vectors, embeddings=rows, labels=np.zeros(40, np.int64))
    write_evaluation(vectors, overwrite=True)
    assert "all images are of one class" in caplog.text


def test_what_cannot_be_is_refused_before_anything_is_written(vectors: Path) -> None:
    wrong = ({"protocol": "some"}, {"metrics": ["nothing"]}, {"recipe": "glyphs", "model": None})
    for options in wrong:
        with pytest.raises((ConfigError, InputError)):
            write_evaluation(**{"model": vectors, **options})
    with pytest.raises(InputError, match="give one model"):
        write_evaluation()
    assert [path.name for path in vectors.parent.iterdir()] == ["vectors.npz"]
