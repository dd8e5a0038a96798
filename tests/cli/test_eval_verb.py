"""``recollect eval`` on vectors, and how it wires models and data to the evaluation."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from cli.running import run as done
from recollect.common.errors import RecollectError
from recollect.data import load
from recollect.evaluation import evaluate
from recollect.models import Embedder
from recollect.training.trainer import train
from training.small_runs import make_images, small_config


def run(*arguments):
    return done("eval", *arguments).stdout


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 5)
    actual = rng.standard_normal((30, 8))[labels] + rng.standard_normal((150, 8))
    return actual.astype(np.float32), labels


@pytest.fixture
def file(vectors, tmp_path):
    path = tmp_path / "run.npz"
    np.savez(path, embeddings=vectors[0], labels=vectors[1])
    return path


def test_gallery_and_options(vectors, tmp_path):
    actual, labels = vectors
    case = {
        "embeddings": actual[:50],
        "labels": labels[:50],
        "gallery": actual[50:],
        "gallery_labels": labels[50:] % 10,
    }
    np.savez(tmp_path / "two.npz", **case)
    np.save(tmp_path / "more.npy", actual[:20])
    out = ["--metrics-out", tmp_path / "m.json", "--queries-out", tmp_path / "q.npz"]
    options = [
        "--similarity",
        "cosine",
        "--ties",
        "optimistic",
        "--distractors",
        tmp_path / "more.npy",
        "--memory",
        "2",
    ]
    run(tmp_path / "two.npz", *options, *out)
    expected = evaluate(**case, distractors=actual[:20], similarity="cosine", ties="optimistic", ks=[1, 10])
    written = json.loads((tmp_path / "m.json").read_text())
    assert written["metrics"] == expected.metrics
    assert written["settings"]["distractors"] == 20


def test_compare_takes_the_folder_of_a_run(file, vectors, tmp_path):
    place = tmp_path / "runs" / "other"
    for arguments in ((file,), ("tiny", "--data", "nowhere")):  # before anything else is looked for
        with pytest.raises(RecollectError, match=r"no result of recollect eval\. Give one file, RUN/eval/TEST/queries"):
            run(*arguments, "--compare", tmp_path)
    evaluate(*vectors).save(place / "eval" / "photos-test-1" / "queries.npz")
    run(file, "--compare", place)
    actual = json.loads((tmp_path / "run-eval" / "metrics.json").read_text())
    assert actual["compared_with"]["r@1"]["difference"] == 0
    evaluate(*vectors).save(place / "eval" / "photos-all-2" / "queries.npz")
    with pytest.raises(RecollectError, match=r"contains 2 results: .*photos-all-2.queries\.npz, .*photos-test-1"):
        run(file, "--compare", place, "--overwrite")


def test_instance_search(vectors, tmp_path):
    actual, _ = vectors
    gnd = [{"easy": [i], "hard": [i + 1], "junk": []} for i in range(5)]
    np.savez(tmp_path / "ox.npz", embeddings=actual[:5], gallery=actual, gnd=np.array(json.dumps(gnd)))
    assert "medium/map" in run(tmp_path / "ox.npz")
    assert "hard/mp@10" in np.load(tmp_path / "ox-eval" / "queries.npz").files


PHOTOS = {"r@1": 88.4, "r@7": 96.2, "table": "methods"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of one epoch on six classes, with three to test on."""
    folder = tmp_path_factory.mktemp("eval")
    root = make_images(make_images(folder / "images", classes=6), classes=3, split="test", seed=1)
    make_images(folder / "other", classes=3, split="test", seed=2)
    make_images(folder / "other", classes=1, seed=3)
    config = small_config(root, **{"run.epochs": 1, "published": PHOTOS})
    return train(config, folder / "run").folder


@pytest.fixture
def run_folder(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def written_by(place):
    (path,) = place.rglob("metrics.json")
    return json.loads(path.read_text())


def test_a_run_with_its_published_row(run_folder, tmp_path):
    out = run(run_folder, "--vectors-out", tmp_path / "v.npz")
    assert "published" in out
    assert "88.4" in out
    assert "mean over classes" in out
    images = load("folder", written_by(run_folder)["source"]["root"], "test")
    vectors = Embedder.load(run_folder).embed([images.path(i) for i in range(len(images))], progress=False)
    expected = evaluate(vectors, images.labels, ks=[1, 7])
    written = written_by(run_folder)
    assert written["metrics"]["r@7"] == pytest.approx(expected.metrics["r@7"])
    assert f"{100 * expected.metrics['r@1']:.2f}" in out
    assert written["settings"]["ks"] == [1, 7], "the k that are published"
    assert written["source"]["data"] == "folder"
    assert written["source"]["fingerprint"] == images.fingerprint
    assert np.allclose(np.load(tmp_path / "v.npz")["embeddings"], vectors.numpy(), atol=1e-5)


def test_a_bare_initialisation_has_no_head(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ["--data", trained.parent / "images"]
    run("lite0-in1k", *data, "--vectors-out", "v.npz")
    assert np.load("v.npz")["embeddings"].shape == (18, 1280)
    assert written_by(tmp_path / "runs" / "init-lite0-in1k" / "eval")["source"]["model"] == "init lite0-in1k"
    with pytest.raises(RecollectError, match="already exists"):
        run("--init", "lite0-in1k", *data)


def test_compare_is_of_the_same_images(run_folder, trained, tmp_path):
    run(run_folder)
    (queries,) = run_folder.rglob("queries.npz")
    again = ["--metrics-out", tmp_path / "m.json", "--queries-out", tmp_path / "q.npz"]
    out = run("lite0-in1k", "--data", trained.parent / "images", "--ks", "1,7", "--compare", queries, *again)
    differences = json.loads((tmp_path / "m.json").read_text())["compared_with"]["differences"]
    assert "init: tiny there, lite0-in1k here" in differences
    assert "image size: 24 there, 224 here" in differences
    assert "image size" in out
    again = [str(path).replace("m.json", "n.json").replace("q.npz", "o.npz") for path in again]
    # The other set has as many images of as many classes.
    with pytest.raises(RecollectError, match="of different images"):
        run(run_folder, "--data", trained.parent / "other", "--compare", queries, *again)
