"""``--dims`` of train and eval, ``--dim`` of embed, search and export: one run with Matryoshka, through every verb."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.running import run
from recollect.common.errors import RecollectError
from recollect.training.trainer import train
from training.small_runs import make_images, small_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("prefixes")
    make_images(place / "data")
    make_images(place / "data", classes=6, split="test", seed=1)
    config = small_config(place / "data", **{"loss.dims": [4, 8]})
    train(config, place / "run")
    return place / "run"


def test_eval_measures_the_lengths_of_the_run(trained: Path, tmp_path: Path) -> None:
    done = run("eval", trained, "--ks", "1", "--metrics-out", tmp_path / "m.json", "--queries-out", tmp_path / "q.npz")
    written = json.loads((tmp_path / "m.json").read_text())
    assert list(written["dims"]) == ["4", "8", "16"]
    assert written["dims"]["16"]["r@1"] == written["metrics"]["r@1"]
    assert "only the first numbers" in done.stdout
    with pytest.raises(RecollectError, match="from 1 to 16"):
        run("eval", trained, "--dims", "99", "--overwrite")


def test_embed_and_search_compare_the_same_numbers(trained: Path, tmp_path: Path) -> None:
    images = trained.parent / "data" / "test"
    run("embed", trained, images, "--out", tmp_path / "all.npz")
    run("embed", trained, images, "--out", tmp_path / "short.npz", "--dim", 4)
    whole, short = (np.load(tmp_path / name)["embeddings"] for name in ("all.npz", "short.npz"))
    expected = whole[:, :4] / np.linalg.norm(whole[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-5)
    query = next(images.rglob("*.png"))
    cut = json.loads(run("search", tmp_path / "all.npz", query, "--dim", 4, "--top", 5, "--json").stdout)
    rows = json.loads(run("search", tmp_path / "short.npz", query, "--top", 5, "--json").stdout)
    assert [r["name"] for r in cut[0]["results"]] == [r["name"] for r in rows[0]["results"]]
    with pytest.raises(RecollectError, match="choose from 1 to 4"):
        run("search", tmp_path / "short.npz", query, "--dim", 8)


def test_export_of_a_prefix(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    command = ("export", trained, "--onnx", tmp_path / "e.onnx", "--dim", 4)
    assert "differs from the model by at most" in run(*command).stdout
    session = runtime.InferenceSession(str(tmp_path / "e.onnx"), providers=["CPUExecutionProvider"])
    pixels = np.zeros((1, 3, 24, 24), np.uint8)
    assert session.run(["embedding"], {"pixels": pixels})[0].shape == (1, 4)
    with pytest.raises(RecollectError, match="already exists"):
        run(*command)
    run(*command, "--overwrite")
