"""Which test set is measured, under which name and with which k; what may be compared; what ``recollect eval`` writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recollect import write_evaluation
from recollect.common.errors import ConfigError, DataError, InputError
from recollect.config.resolve import resolve
from recollect.config.schema import DataConfig
from recollect.data import available
from recollect.evaluation import Evaluation, evaluate
from recollect.inference.evaluate import (
    EvaluationInput,
    compare_evaluations,
    evaluate_input,
    evaluate_prefixes,
    measure_labelled,
)
from recollect.inference.models import RunFiles
from recollect.inference.test_sets import (
    choose_test,
    evaluation_ks,
    load_test,
    name_of_test,
    published_ks,
    published_row,
)
from recollect.training.run import RunFolder
from training.small_runs import make_images


@pytest.fixture
def vectors() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 4)
    return (rng.standard_normal((10, 8))[labels] + rng.standard_normal((40, 8))).astype(np.float32), labels


def test_protocols(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    target = EvaluationInput("x", *vectors, ks=(1, 3), provenance={"a": 1})
    result, summary = evaluate_input(target)
    assert summary["metrics"] == evaluate(*vectors, ks=[1, 3]).metrics == result.metrics
    assert summary["source"] == {"a": 1}
    assert set(measure_labelled(*vectors, ks=(1, 3))) == {"r@1", "r@3", "map@r"}
    assert "reid/r@2" in evaluate_input(target, [2], "reid")[1]["metrics"]
    assert set(evaluate_prefixes(target, [4])[4]) == {"r@1", "r@3", "map@r"}
    assert "reid/r@2" in evaluate_prefixes(target, [4], [2], "reid")[4]
    truth = [{"easy": [i], "hard": [i + 1], "junk": []} for i in range(5)]
    target = EvaluationInput("x", vectors[0][:5], gallery=vectors[0], gnd=truth, distractors=vectors[0][:3])
    summary = evaluate_input(target)[1]
    assert summary["protocol"] == "revisited"
    assert summary["metrics"]["medium/map"] < summary["without_distractors"]["medium/map"]


def test_both_levels_of_labels_are_ranked_unless_told_otherwise(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    target = EvaluationInput("x", *vectors, coarse_labels=vectors[1] // 2, ks=(1,))
    for choice in (None, True):
        summary = evaluate_input(target, hierarchical=choice)[1]
        assert {"h_ap", "ndcg"} <= set(summary["metrics"])
        assert "left_out" not in summary
    summary = evaluate_input(target, hierarchical=False)[1]
    assert not {"h_ap", "ndcg"} & set(summary["metrics"])
    assert summary["left_out"] == ["h_ap", "h_ap_released", "ndcg"]


def test_vectors_of_a_file_come_back(vectors: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    target = EvaluationInput("x", *vectors, gallery=vectors[0], gallery_labels=vectors[1])
    target.save_vectors(tmp_path / "v.npz")
    read = EvaluationInput.from_file(tmp_path / "v.npz")
    assert np.array_equal(read.gallery, vectors[0])
    assert read.ks == (1, 10)
    np.savez(tmp_path / "w.npz", embeddings=vectors[0])
    with pytest.raises(DataError, match="labels"):
        EvaluationInput.from_file(tmp_path / "w.npz")


def test_images_without_a_class_are_nobodys_positives(tmp_path: Path) -> None:
    rows = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "v.npz", embeddings=rows, labels=np.array(["a", "", "a", ""]))
    result, _ = evaluate_input(EvaluationInput.from_file(tmp_path / "v.npz"), [1])
    assert np.isnan(result.per_query["r@1"]).tolist() == [False, True, False, True]


def test_what_may_be_compared(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    plain = evaluate(*vectors, ks=[1])

    def of(**identity: object) -> object:
        return replace(plain, settings={**plain.settings, "identity": identity})

    here = of(images="abc", **{"image size": 224, "scales": [1.0]})

    def differences(there: object) -> list[str]:
        return compare_evaluations(there, here)["differences"]  # type: ignore[no-any-return, arg-type]

    assert differences(of(images="abc", **{"image size": 224, "scales": [1.0]})) == []
    assert differences(of(images="abc", **{"image size": 96})) == ["image size: 96 there, 224 here"]
    with pytest.raises(ConfigError, match="different images"):
        differences(of(images="xyz"))
    assert "only labels" in differences(plain)[0]


@pytest.fixture
def vectors_file(vectors: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> Path:
    np.savez(tmp_path / "vectors.npz", embeddings=vectors[0], labels=vectors[1])
    return tmp_path / "vectors.npz"


def test_it_returns_what_it_writes(vectors_file: Path) -> None:
    written = write_evaluation(vectors_file, ks=[1, 5], dims=[4], similarity="cosine")
    assert written.metrics_file == vectors_file.with_name("vectors-eval") / "metrics.json"
    assert json.loads(written.metrics_file.read_text()) == json.loads(json.dumps(written.summary))
    assert list(written.summary["dims"]) == ["4", "8"]
    assert isinstance(written.result, Evaluation)
    saved = Evaluation.load(written.metrics_file.with_name("queries.npz"))
    assert saved.metrics["r@1"] == written.summary["metrics"]["r@1"]
    queries = written.metrics_file.with_name("queries.npz")
    again = write_evaluation(vectors_file, ks=[1, 5], similarity="cosine", compare=queries, overwrite=True)
    assert again.summary["compared_with"]["r@1"]["difference"] == 0


def test_what_cannot_be_is_refused_before_anything_is_written(vectors_file: Path) -> None:
    wrong = ({"protocol": "some"}, {"metrics": ["nothing"]}, {"recipe": "glyphs", "model": None}, {"model": None})
    for options in wrong:
        with pytest.raises((ConfigError, InputError)):
            write_evaluation(**{"model": vectors_file, **options})
    assert [path.name for path in vectors_file.parent.iterdir()] == ["vectors.npz"]


OPTIONS = {"csv": "x", "class_split": "alphabet"}


def test_what_data_means(tmp_path: Path) -> None:
    photos, folder = tmp_path / "photos", tmp_path / "run"
    photos.mkdir()
    folder.mkdir()
    own = {"data.name": "folder", "data.root": str(photos), "data.test_split": "val", "data.options": OPTIONS}
    RunFolder(folder).write_config(resolve(None, own))
    run = RunFiles(folder)
    config = run.read_config().data
    assert choose_test(run) == (config, True), "a run is tested on its own data"
    assert choose_test(run, root=tmp_path) == (replace(config, root=str(tmp_path)), True)
    assert choose_test(run, split="all") == (replace(config, test_split="all"), True)
    assert choose_test(run, data="sop", root=tmp_path) == (DataConfig("sop", str(tmp_path)), False)
    assert choose_test(run, data=f"{photos}/../photos") == choose_test(run), "its own folder, given again"
    other = tmp_path / "other"
    other.mkdir()
    assert choose_test(run, data=str(other)) == (DataConfig("folder", str(other)), False)
    assert choose_test(data="glyphs") == (DataConfig("glyphs"), False)
    first, _ = choose_test(data="vehicleid", root=tmp_path)
    assert first.test_split == "test_small", "the first of several lists, by its name"
    for gone in ("gone.csv", f"{tmp_path}/gone"):
        with pytest.raises(DataError, match=f"--data {gone}: no such file or folder"):
            choose_test(data=gone)
    for arguments in ({}, {"root": tmp_path}):
        with pytest.raises(ConfigError, match="--data NAME"):
            choose_test(None, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--root says where"):
        choose_test(data="roxford5k")


def test_a_recipe_beside_a_run_keeps_the_run_s_root(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_config(resolve(None, {"data.name": "sop", "data.root": str(tmp_path)}))
    recipe = resolve("sop/r50-512/rsk")
    assert choose_test(RunFiles(tmp_path), recipe=recipe)[0].root == str(tmp_path)
    other = resolve("cars196/r50-512/rsk")
    data, own = choose_test(RunFiles(tmp_path), recipe=other)
    assert (data.name, data.root, data.options, own) == ("cars196", None, other.data.options, False)


def test_every_set_has_a_result_name_of_its_own(tmp_path: Path) -> None:
    def name(root: Path, **options: Path) -> str:
        return load_test(data=str(root), split="train", **options).name  # type: ignore[arg-type]

    one = make_images(tmp_path / "one" / "photos", classes=3)
    other = make_images(tmp_path / "other" / "photos", classes=3, seed=1)
    names = [name(root) for root in (one, other)]
    assert names[0] != names[1]
    assert all(each.startswith("photos-train-") for each in names)
    assert name(one) == names[0]
    (one / "train" / "train-00" / "0.png").write_bytes((one / "train" / "train-01" / "0.png").read_bytes())
    assert name(one) != names[0], "a photo was exchanged"
    assert name(one, distractors=tmp_path / "many.npy").startswith("photos+many-train-")
    (tmp_path / "a b ü#1").mkdir()
    assert name(make_images(tmp_path / "a b ü#1" / "x y", classes=2)).startswith("x_y-train-")


def test_default_ks() -> None:
    assert evaluation_ks("inaturalist", {}, 136_093) == (1, 4, 16, 32)
    assert evaluation_ks("folder", {}, 60_502) == (1, 10, 100, 1000)
    assert evaluation_ks("folder", {"r@1": 80.0, "r@7": 1.0, "map@r": 3.0}, 500) == (1, 7)
    assert evaluation_ks("folder", {}, 40) == (1, 10)
    assert evaluation_ks("folder", {}, 3) == (1,)


@pytest.mark.parametrize(
    ("recipe", "ks"),
    [
        ("cars196/r50-512/rsk", (1, 2, 4, 8)),
        ("cars196-k/r50-512/rsk/k-16", (1, 2, 4, 8, 16)),
        ("cars196-tau1/r50-512/rsk/tau1-5", (1, 2, 4, 8)),  # publishes nothing
        ("vehicleid/r50-512/rsk", (1, 5)),
    ],
)
def test_a_run_is_measured_at_the_k_of_its_recipe(recipe: str, ks: tuple[int, ...]) -> None:
    config = resolve(recipe)
    row = published_row(config.published, name_of_test(config.data.name, config.data.test_split))
    assert evaluation_ks(config.data.name, row, 50) == ks
    assert {"cars196", "cub", "inaturalist", "vehicleid"} <= set(available())


def test_published_row_of_the_test_that_is_measured() -> None:
    published = {"sop/test": {"r@1": 80.1}, "vehicleid/test_small": {"r@5": 7}, "vehicleid/test_large": {"r@5": 6}}
    assert published_row(published, "sop/test") == {"r@1": 80.1}
    assert published_row(published, "cars196/test") == {}
    assert published_row(published, name_of_test("vehicleid", "test")) == {"r@5": 7.0}  # "test" is the small list
    assert published_row(published, "vehicleid/test_large") == {"r@5": 6.0}
    assert published_row({"r@10": 95, "note": "x"}, "any/test") == {"r@10": 95.0}
    assert published_row(None, "sop/test") == {}
    assert published_ks({"r@10": 2, "r@1": 1, "map@r": 3, "r@x": 1}) == (1, 10)
    assert name_of_test("roxford5k", "test", distractors=True) == "roxford5k+revisitop1m"
    assert name_of_test("rparis6k", "test") == "rparis6k"
