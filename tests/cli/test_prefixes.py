"""``--dims`` of train and eval, ``--dim`` of embed, search and export: one run with Matryoshka, through every verb."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.common.errors import RecollectError
from recollect.inference.models import open_model
from recollect.training.run import RunFolder
from training.small_runs import final_weights, make_images, same_bits, small_config


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    if isinstance(result.exception, RecollectError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from recollect.training.trainer import train

    place = tmp_path_factory.mktemp("prefixes")
    make_images(place / "data")
    make_images(place / "data", classes=6, split="test", seed=1)
    config = small_config(place / "data", **{"loss.dims": [4, 8]})
    train(config, place / "run")
    return place / "run"


def test_eval_measures_the_lengths_of_the_run(trained: Path, tmp_path: Path) -> None:
    out = run("eval", trained, "--ks", "1", "--metrics-out", tmp_path / "m.json", "--queries-out", tmp_path / "q.npz")
    written = json.loads((tmp_path / "m.json").read_text())
    assert list(written["dims"]) == ["4", "8", "16"]
    assert written["dims"]["16"]["r@1"] == written["metrics"]["r@1"]
    assert "only the first numbers" in out
    with pytest.raises(RecollectError, match="from 1 to 16"):
        run("eval", trained, "--dims", "99", "--overwrite")


def test_a_resumed_run_ends_with_the_same_weights(trained: Path, tmp_path: Path) -> None:
    from recollect.training import trainer

    config = RunFolder(trained).read_config()
    half = tmp_path / "half"

    class StopError(Exception):
        pass

    original = trainer.take_step
    calls = 0

    def stopping(*args, **options):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise StopError
        return original(*args, **options)

    trainer.take_step = stopping
    try:
        with pytest.raises(StopError):
            trainer.train(config, half)
    finally:
        trainer.take_step = original
    trainer.train(resume=half)
    assert same_bits(final_weights(half), final_weights(trained))


def test_embed_and_search_compare_the_same_numbers(trained: Path, tmp_path: Path) -> None:
    images = trained.parent / "data" / "test"
    run("embed", trained, images, "--out", tmp_path / "all.npz")
    run("embed", trained, images, "--out", tmp_path / "short.npz", "--dim", 4)
    whole, short = (np.load(tmp_path / name)["embeddings"] for name in ("all.npz", "short.npz"))
    expected = whole[:, :4] / np.linalg.norm(whole[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-5)
    query = next(images.rglob("*.png"))
    cut = json.loads(run("search", tmp_path / "all.npz", query, "--dim", 4, "--top", 5, "--json"))
    kept = json.loads(run("search", tmp_path / "short.npz", query, "--top", 5, "--json"))
    assert [r["name"] for r in cut[0]["results"]] == [r["name"] for r in kept[0]["results"]]
    with pytest.raises(RecollectError, match="choose from 1 to 4"):
        run("search", tmp_path / "short.npz", query, "--dim", 8)


def test_an_index_says_how_to_make_a_shorter_one(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RecollectError, match="index --dim 4"):
        run("search", tmp_path / "photos.db", trained.parent / "data", "--dim", 4)


def test_export_of_a_prefix(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    run("export", trained, "--onnx", tmp_path / "e.onnx", "--dim", 4)
    session = runtime.InferenceSession(str(tmp_path / "e.onnx"), providers=["CPUExecutionProvider"])
    pixels = np.zeros((1, 3, 24, 24), np.uint8)
    assert session.run(["embedding"], {"pixels": pixels})[0].shape == (1, 4)


def test_train_takes_dims(trained: Path) -> None:
    out = run("train", "--plan", "--data", trained.parent / "data", "--dims", "8,16", "--init", "tiny", "--json")
    assert "steps" in json.loads(out)
    with pytest.raises(RecollectError, match=r"loss\.dims: 999"):
        run("train", "--plan", "--data", trained.parent / "data", "--dims", "999", "--init", "tiny")


def test_a_file_of_distractors_is_cut_as_well(trained: Path, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((20, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(tmp_path / "d.npy", vectors)
    places = ["--metrics-out", tmp_path / "m.json", "--queries-out", tmp_path / "q.npz"]
    run("eval", trained, "--distractors", tmp_path / "d.npy", "--dims", "4", *places)
    alone = open_model(trained, dim=4)
    assert alone.embedder.dim == 4
    assert list(json.loads((tmp_path / "m.json").read_text())["dims"]) == ["4", "16"]
