"""``recollect eval`` on vectors, and how it wires models and data to the evaluation."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from recollect.cli.app import app
from recollect.cli.eval_recipe import name_of_test, published_ks, published_row
from recollect.cli.eval_target import which_data
from recollect.common.errors import RecollectError
from recollect.data.image_set import ImageSet
from recollect.evaluation import Evaluation, evaluate


def run(*arguments):
    result = CliRunner().invoke(app, ["eval", *map(str, arguments)])
    if isinstance(result.exception, RecollectError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 5)
    found = rng.standard_normal((30, 8))[labels] + rng.standard_normal((150, 8))
    return found.astype(np.float32), labels


@pytest.fixture
def file(vectors, tmp_path):
    path = tmp_path / "run.npz"
    np.savez(path, embeddings=vectors[0], labels=vectors[1])
    return path


def test_vectors_from_a_file(file, vectors):
    out = run(file, "--ks", "1,4")
    expected = evaluate(*vectors, ks=[1, 4])
    assert f"{100 * expected.metrics['r@1']:.2f}" in out
    written = json.loads((file.parent / "run-eval" / "metrics.json").read_text())
    assert written["metrics"] == expected.metrics
    assert written["queries"] == 150
    assert Evaluation.load(file.parent / "run-eval" / "queries.npz").metrics == expected.metrics


def test_nothing_is_overwritten_silently(file):
    run(file)
    with pytest.raises(RecollectError, match="exists already"):
        run(file)
    run(file, "--overwrite")


def test_gallery_and_options(vectors, tmp_path):
    found, labels = vectors
    np.savez(
        tmp_path / "two.npz",
        embeddings=found[:50],
        labels=labels[:50],
        gallery=found[50:],
        gallery_labels=labels[50:] % 10,
    )
    np.save(tmp_path / "more.npy", found[:20])
    run(
        tmp_path / "two.npz", "--similarity", "cosine", "--ties", "optimistic", "--distractors", tmp_path / "more.npy",
        "--metrics-out", tmp_path / "m.json", "--queries-out", tmp_path / "q.npz", "--memory", "2",
    )  # fmt: skip
    expected = evaluate(
        found[:50], labels[:50], found[50:], labels[50:] % 10,
        distractors=found[:20], similarity="cosine", ties="optimistic",
    )  # fmt: skip
    written = json.loads((tmp_path / "m.json").read_text())
    assert written["metrics"] == expected.metrics
    assert written["settings"]["distractors"] == 20


def test_compare_with_another_run(file, vectors, tmp_path):
    worse = vectors[0] + np.random.default_rng(1).standard_normal(vectors[0].shape).astype(np.float32)
    evaluate(worse, vectors[1]).save(tmp_path / "worse.npz")
    out = run(file, "--compare", tmp_path / "worse.npz")
    found = json.loads((tmp_path / "run-eval" / "metrics.json").read_text())["compared_with"]["map"]
    assert found["difference"] > 0
    assert f"{100 * found['difference']:+.2f}" in out


def test_index(file):
    pytest.importorskip("faiss")
    out = run(file, "--index", "ivf")
    assert "nprobe=4" in out
    assert json.loads((file.parent / "run-eval" / "metrics.json").read_text())["index"]["kind"] == "ivf"


def test_reid(file):
    assert "reid/r@1" in run(file, "--protocol", "reid")


def test_instance_search(vectors, tmp_path):
    found, _ = vectors
    gnd = [{"easy": [i], "hard": [i + 1], "junk": []} for i in range(5)]
    np.savez(tmp_path / "ox.npz", embeddings=found[:5], gallery=found, gnd=np.array(json.dumps(gnd)))
    assert "medium/map" in run(tmp_path / "ox.npz")
    assert "hard/mp@10" in np.load(tmp_path / "ox-eval" / "queries.npz").files


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the two"),
        (["x.npz", "--init", "tiny"], "one of the two"),
        (["missing.npz"], "no such file"),
        (["--init", "tiny"], "--data NAME"),
        (["nowhere", "--data", "glyphs"], "no such run or folder"),
        (["x.npz", "--ks", "1,two"], "separated by commas"),
        (["x.npz", "--protocol", "other"], "choose all or reid"),
    ],
)
def test_mistakes_are_sentences(arguments, message, stubs):
    with pytest.raises(RecollectError, match=message):
        run(*arguments)


def test_files_that_are_not_vectors(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", something=np.eye(2))
    np.savez(tmp_path / "bare.npz", embeddings=np.eye(2))
    for name, message in (
        ("text", "not an .npz"),
        ("other", "no array 'embeddings'"),
        ("bare", "no array 'labels'"),
    ):
        with pytest.raises(RecollectError, match=message):
            run(tmp_path / f"{name}.npz")


@pytest.fixture
def stubs(monkeypatch):
    """Stand-ins for the models and data rooms: mean colour as the embedding of four images of two classes."""
    seen = {}

    class Embedder:
        preprocessing = types.SimpleNamespace(max_side=None)

        @classmethod
        def load(cls, folder):
            seen["folder"] = folder
            return cls()

        @classmethod
        def create(cls, init, *, dim, weights, download):
            seen["init"] = (init, dim, weights)
            return cls()

        def embed(self, images, *, batch_size, device, progress, scales):
            assert len(images) == 4
            return torch.stack([torch.from_numpy(np.asarray(image, np.float32).mean((0, 1))) for image in images])

    pixels = np.zeros((4, 2, 2, 3), np.uint8)
    pixels[:2, ..., 0], pixels[2:, ..., 1] = 200, 200
    images = ImageSet("toy", list("abcd"), np.array([0, 0, 1, 1]), ["x", "y"], arrays=pixels, split="test")
    models = types.ModuleType("recollect.models")
    models.Embedder, models.INSTANCE_SEARCH_SCALES = Embedder, (1.0,)
    monkeypatch.setitem(sys.modules, "recollect.models", models)
    import recollect.data

    monkeypatch.setattr(recollect.data, "load", lambda name, root, split: images, raising=False)
    return seen


def test_a_run_with_its_published_row(stubs, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "config.yaml").write_text("published: {r@1: 88.4, r@10: 96.2, table: methods}\n")
    out = run(tmp_path, "--data", "toy", "--ks", "1,2", "--vectors-out", tmp_path / "v.npz")
    assert stubs["folder"] == tmp_path / "model"
    assert "published" in out
    assert "88.4" in out
    written = json.loads((tmp_path / "eval" / "toy-test" / "metrics.json").read_text())
    assert written["metrics"]["r@1"] == 1.0
    assert written["source"]["data"] == "toy"
    assert len(written["source"]["fingerprint"]) == 64
    assert np.load(tmp_path / "v.npz")["embeddings"].shape == (4, 3)


def test_a_bare_initialisation_has_no_head(stubs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("--init", "lite0-in1k", "--data", "toy")
    assert stubs["init"] == ("lite0-in1k", None, None)
    assert (tmp_path / "runs" / "init-lite0-in1k" / "eval" / "toy-test" / "metrics.json").is_file()


def test_published_row_of_the_test_that_is_measured():
    published = {"sop/test": {"r@1": 80.1}, "vehicleid/test_small": {"r@5": 7}, "vehicleid/test_large": {"r@5": 6}}
    assert published_row(published, "sop/test") == {"r@1": 80.1}
    assert published_row(published, "cars196/test") == {}
    assert published_row(published, "vehicleid/test") == {"r@5": 7.0}  # "test" is the small list
    assert published_row(published, "vehicleid/test_large") == {"r@5": 6.0}
    assert published_row({"r@10": 95, "note": "x", "ok": True}, "any/test") == {"r@10": 95.0}
    assert published_row(None, "sop/test") == {}
    assert published_ks({"sop/test": {"r@1": 1, "r@10": 2, "map@r": 3}}, "sop/test") == "1,10"
    assert published_ks(None, "sop/test") is None
    assert name_of_test("roxford5k", "test", distractors=True) == "roxford5k+revisitop1m"
    assert name_of_test("rparis6k", "test") == "rparis6k"


def test_a_run_beside_a_recipe_of_the_paper(stubs, tmp_path):
    (tmp_path / "model").mkdir()
    out = run(tmp_path, "--recipe", "sop/r50-512/rsk")
    assert "82.8" in out
    assert (tmp_path / "eval" / "sop-test" / "metrics.json").is_file()
    other = run(tmp_path, "--recipe", "sop/r50-512/rsk", "--data", "toy")
    assert "published" not in other  # those numbers are of another data set


def test_help_does_not_load_torch():
    import subprocess

    code = "import sys; from recollect.cli.app import app; sys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


def test_what_data_means(tmp_path):
    photos, run_folder = tmp_path / "photos", tmp_path / "run"
    photos.mkdir()
    run_folder.mkdir()
    (run_folder / "config.yaml").write_text(f"data: {{name: folder, root: {photos}}}\n")
    assert which_data(run_folder, None, None) == ("folder", photos), "a run is tested on its own data"
    assert which_data(run_folder, "sop", tmp_path) == ("sop", tmp_path)
    assert which_data(run_folder, str(photos), None) == ("folder", photos)
    assert which_data(None, "glyphs", None) == ("glyphs", None)
    assert which_data(None, None, None) == (None, None)
