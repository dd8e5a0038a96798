from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from recollect.common.errors import DataError, RecollectError
from recollect.data import load
from recollect.evaluation import evaluate
from recollect.inference.models import make_embedder
from recollect.models import Embedder
from recollect.report import write_report
from recollect.report.results import EvaluationCache, choose, distinct_names, evaluate_run, read_run
from report.report_runs import make_run


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(4, 80))
def test_chosen_images_are_few_and_of_whole_classes(sizes: list[int], limit: int) -> None:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    places = choose(labels, limit)
    assert np.array_equal(places, np.unique(places))
    assert np.array_equal(places, choose(labels, limit))
    if len(labels) <= limit:
        assert len(places) == len(labels)
        return
    assert 1 <= len(places) <= limit
    most = max(2, limit // min(10, len(sizes)))
    counts = np.bincount(labels[places], minlength=len(sizes))
    assert all(count in (0, min(size, most)) for size, count in zip(sizes, counts.tolist(), strict=True))
    assert len(choose(labels, None)) == len(labels)


def test_results_are_those_of_the_weights_before_and_after(runs: Path) -> None:
    run = read_run(runs / "first")
    found = evaluate_run(run)
    images = load("folder", run.config.data.root, "test")
    pictures = [images.read(index) for index in range(len(images))]
    for embedder, model in (
        (make_embedder(run.config.model, run.config.run.seed), found.init),
        (Embedder.load(runs / "first" / "model"), found.trained),
    ):
        vectors = embedder.embed(pictures, progress=False)
        np.testing.assert_allclose(model.vectors, vectors.numpy(), atol=1e-6)
        assert model.evaluation.metrics["r@1"] == evaluate(vectors, images.labels, ks=(1,)).metrics["r@1"]
    assert not np.allclose(found.init.vectors, found.trained.vectors)
    assert "r@7" in found.trained.evaluation.metrics  # the recipe publishes it
    # The first and last evaluations of the training itself say the same.
    logged = [record["r@1"] for record in run.evaluations]
    assert logged[0] == pytest.approx(found.init.evaluation.metrics["r@1"])
    assert logged[-1] == pytest.approx(found.trained.evaluation.metrics["r@1"])


def test_a_folder_that_is_named_must_be_there(runs: Path, tmp_path: Path) -> None:
    write_report([runs / "first"])
    with pytest.raises(DataError, match="there is no folder"):
        write_report([runs / "first"], root=tmp_path / "typo")


def test_one_network_at_two_sizes_is_two_starts(made: Path, tmp_path: Path) -> None:
    """Else the second run is judged by what the first started from."""
    folders = [make_run(made / "data", tmp_path / str(size), **{"model.image_size": size}) for size in (24, 32)]
    alone = [evaluate_run(read_run(folder)).init for folder in folders]
    cache: EvaluationCache = {}
    together = [evaluate_run(read_run(folder), cache=cache) for folder in folders]
    assert together[0].init_key != together[1].init_key
    for one, other in zip(alone, together, strict=True):
        assert one.evaluation.metrics == other.init.evaluation.metrics


def test_other_weights_are_embedded_anew(runs: Path) -> None:
    before = evaluate_run(read_run(runs / "first"))
    shutil.rmtree(runs / "first" / "model")
    shutil.copytree(runs / "second" / "model", runs / "first" / "model")
    after = evaluate_run(read_run(runs / "first"))
    assert not np.array_equal(before.trained.vectors, after.trained.vectors)
    assert np.array_equal(before.init.vectors, after.init.vectors)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", "cut"])
def test_a_damaged_store_is_made_again(runs: Path, damage: bytes | str) -> None:
    first = evaluate_run(read_run(runs / "first"))
    store = runs / "first" / "report" / "vectors.npz"
    store.write_bytes(store.read_bytes()[:-200] if damage == "cut" else bytes(damage))
    again = evaluate_run(read_run(runs / "first"))
    assert np.array_equal(first.trained.vectors, again.trained.vectors)
    assert any("damaged" in remark for remark in again.remarks)
    assert not any("damaged" in remark for remark in evaluate_run(read_run(runs / "first")).remarks)


def test_without_images_the_kept_vectors_serve(moved: tuple[Path, Path]) -> None:
    data, folder = moved
    shutil.copytree(data / "train" / "train-00", data / "test" / "again")
    shutil.copy(data / "train" / "train-01" / "0.png", data / "test" / "test-00" / "00.png")
    whole = evaluate_run(read_run(folder))
    shutil.rmtree(data)
    later = evaluate_run(read_run(folder))
    said = next(remark for remark in later.remarks if "not available" in remark)
    assert "\n" not in said
    assert "name their folder with --root." in said
    assert later.images.images is None
    assert later.trained.evaluation.metrics == whole.trained.evaluation.metrics
    assert any("not available" in remark for remark in later.remarks)
    assert [whole.images.names[place] for place in whole.copies] == ["test/test-00/00.png"]
    assert whole.excluded == ["1 class that was trained on"]
    assert (later.excluded, later.copies) == (whole.excluded, whole.copies)
    shutil.rmtree(folder / "report")
    with pytest.raises(RecollectError):
        evaluate_run(read_run(folder))


def test_a_run_without_a_model_shows_its_checkpoint(runs: Path) -> None:
    finished = evaluate_run(read_run(runs / "first"))
    shutil.rmtree(runs / "first" / "model")
    refused = evaluate_run(read_run(runs / "first"))
    assert refused.trained is None, "a finished run is never shown with other weights"
    assert any("model.safetensors is missing" in remark for remark in refused.remarks)
    manifest = runs / "first" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"outcome"', '"earlier"'))
    found = evaluate_run(read_run(runs / "first"))
    np.testing.assert_array_equal(found.trained.vectors, finished.trained.vectors)  # its last checkpoint is its end
    assert "unfinished" in found.trained.what
    assert any("last.pt" in remark for remark in found.remarks)
    (runs / "first" / "checkpoints" / "last.pt").unlink()
    nothing = evaluate_run(read_run(runs / "first"))
    assert nothing.trained is None
    assert nothing.init is not None
    assert any("no trained weights" in remark for remark in nothing.remarks)


def test_unreadable_images_are_left_out_for_all(moved: tuple[Path, Path]) -> None:
    data, folder = moved
    (data / "test" / "test-00" / "0.png").write_bytes(b"no image")
    found = evaluate_run(read_run(folder))
    assert len(found.images.names) == 29
    assert np.isfinite(found.trained.vectors).all()
    assert len(found.trained.vectors) == len(found.images.labels) == 29
    assert "1 image that cannot be read" in found.excluded


def test_settings_of_another_version_are_refused_with_a_sentence(runs: Path) -> None:
    file = runs / "first" / "config.yaml"
    file.write_text(file.read_text() + "unheard_of: 1\n")
    run = read_run(runs / "first")
    assert run.config is None
    assert run.setting("loss.name") == "recall_at_k"
    with pytest.raises(DataError, match="settings cannot be read"):
        evaluate_run(run)


def test_runs_of_one_name_are_told_apart_by_as_little_as_possible(runs: Path) -> None:
    for place in ("one", "two"):
        shutil.copytree(runs / "first", runs / place / "same")
    read = [read_run(runs / "one" / "same"), read_run(runs / "two" / "same")]
    assert distinct_names(read) == ["one/same", "two/same"]
    assert distinct_names([read[0], read_run(runs / "first")]) == ["same", "first"]
    assert distinct_names([read[0], read[0]]) == ["same (1)", "same (2)"]
