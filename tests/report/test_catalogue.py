from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from recollect.cli.main import app
from recollect.common.errors import ConfigError, DataError, DataWarning, ImageError, InputError
from recollect.models import Embedder
from recollect.report.catalogue import embed_catalogue, read_catalogue, search_catalogue


def test_links_out_of_a_folder_are_followed(runs: Path, made: Path, tmp_path: Path) -> None:
    source, flat = made / "data" / "test" / "test-00", tmp_path / "flat"
    flat.mkdir()
    shutil.copy(source / "0.png", flat)
    (flat / "link.png").symlink_to(source / "1.png")
    embed_catalogue(str(runs / "first"), [flat], tmp_path / "v.npz")
    assert read_catalogue(tmp_path / "v.npz").names == ["0.png", "link.png"]


def test_an_image_beside_the_classes_costs_no_label(runs: Path, made: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(made / "data" / "test" / "test-00", photos / "a")
    written = embed_catalogue(str(runs / "first"), [photos], tmp_path / "v.npz")
    assert written.labels == ["a"] * 5
    shutil.copy(photos / "a" / "0.png", photos / "beside.png")
    labels = embed_catalogue(str(runs / "first"), [photos], tmp_path / "w.npz").labels
    assert labels is not None
    assert sorted(labels) == ["", *["a"] * 5]


def test_vectors_are_the_embedders_and_search_finds_the_image_itself(runs: Path, made: Path, tmp_path: Path) -> None:
    test, out = made / "data" / "test", tmp_path / "v.npz"
    written = embed_catalogue(str(runs / "first"), [test], out)
    read = read_catalogue(out)
    assert read.names == written.names
    assert read.labels == written.labels
    embedder = Embedder.load(runs / "first" / "model")
    expected = embedder.embed([test / name for name in read.names], progress=False).numpy()
    np.testing.assert_allclose(read.embeddings, expected, atol=1e-6)
    place = read.names.index("test-01/2.png")
    (answer,) = search_catalogue(read, [test / "test-01" / "2.png"], 3)
    assert answer.query == answer.picture == test / "test-01" / "2.png"
    assert answer.found.indices[0, 0] == place
    assert answer.found.similarities[0, 0] == pytest.approx(1, abs=1e-5)
    order = np.argsort(-(expected @ expected[place]))[:3]
    assert answer.found.indices[0].tolist() == order.tolist()


def test_folders_files_and_names_are_answered_in_order(runs: Path, made: Path, tmp_path: Path) -> None:
    test = made / "data" / "test"
    catalogue = embed_catalogue(str(runs / "first"), [test], tmp_path / "v.npz")
    (tmp_path / "bad.png").write_bytes(b"junk")
    asked: list[Path | str] = [
        "test-02/1.png",
        test / "test-01" / "0.png",
        tmp_path / "bad.png",
        test / "test-00",
        "test-04/3.png",
    ]
    with pytest.warns(DataWarning, match=r"bad\.png"):
        answers = search_catalogue(catalogue, asked, 3, skip_bad=True)
    files = [test / "test-01" / "0.png", *(test / "test-00" / f"{number}.png" for number in range(5))]
    assert [answer.query for answer in answers] == ["test-02/1.png", *files, "test-04/3.png"]
    assert all(answer.found.indices.shape == (1, 3) for answer in answers)
    for answer, path in zip(answers[1:-1], files, strict=True):
        assert catalogue.names[answer.found.indices[0, 0]] == path.relative_to(test).as_posix()
    for answer in (answers[0], answers[-1]):
        assert answer.picture == test / answer.query
        place = catalogue.names.index(str(answer.query))
        similarities = catalogue.embeddings @ catalogue.embeddings[place]
        similarities[place] = -2
        assert answer.found.indices[0].tolist() == np.argsort(-similarities)[:3].tolist(), "without the image itself"
        np.testing.assert_allclose(answer.found.similarities[0], np.sort(similarities)[::-1][:3], atol=1e-6)
    with pytest.raises(InputError, match="neither a file, a folder"):
        search_catalogue(catalogue, ["test-02/99.png"])


def test_names_need_no_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", embeddings=np.eye(3), names=np.array(["a", "b", "b"]))
    catalogue = read_catalogue(tmp_path / "v.npz")
    (answer,) = search_catalogue(catalogue, ["a"])
    assert (answer.query, answer.found.indices.tolist()) == ("a", [[1, 2]])
    with pytest.raises(InputError, match="name of 2 images"):
        search_catalogue(catalogue, ["b"])
    np.savez(tmp_path / "one.npz", embeddings=np.eye(1))
    (answer,) = search_catalogue(read_catalogue(tmp_path / "one.npz"), ["0"])
    assert answer.found.indices.shape == (1, 0), "no other image"


def test_a_model_that_moved_is_asked_for(runs: Path, made: Path, tmp_path: Path) -> None:
    test = made / "data" / "test"
    catalogue = embed_catalogue(str(runs / "first"), [test], tmp_path / "v.npz")
    (runs / "first").rename(runs / "moved")
    query = [test / "test-00" / "0.png"]
    with pytest.raises(ConfigError, match=r"no such run.* --model"):
        search_catalogue(catalogue, query)
    (answer,) = search_catalogue(catalogue, query, model=str(runs / "moved"))
    assert catalogue.names[answer.found.indices[0, 0]] == "test-00/0.png"
    with pytest.raises(DataError, match="no such run"):  # the one that was given did not move
        search_catalogue(catalogue, query, model=str(runs / "nowhere"))


def test_a_model_that_changed_is_refused(runs: Path, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.npz"
    embed_catalogue(str(runs / "first"), [made / "data" / "test"], out)
    query = [made / "data" / "test" / "test-00" / "0.png"]
    shutil.rmtree(runs / "first" / "model")
    shutil.copytree(runs / "second" / "model", runs / "first" / "model")
    with pytest.raises(DataError, match="not the model"):
        search_catalogue(read_catalogue(out), query)
    with pytest.raises(DataError, match="not the model"):
        search_catalogue(read_catalogue(out), query, model=str(runs / "second"))


def test_what_cannot_be_embedded_is_said(runs: Path, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    shutil.copytree(made / "data" / "test" / "test-00", folder)
    (folder / "bad.png").write_bytes(b"no image")
    run = str(runs / "first")
    with pytest.raises(ImageError, match=r"bad\.png"):
        embed_catalogue(run, [folder], tmp_path / "v.npz")
    assert not (tmp_path / "v.npz").exists()
    with pytest.warns(DataWarning, match=r"1 image .*bad\.png"):
        kept = embed_catalogue(run, [folder], tmp_path / "v.npz", skip_bad=True)
    assert len(kept.names) == len(kept.embeddings) == 5
    with pytest.raises(InputError, match="already exists"):
        embed_catalogue(run, [folder], tmp_path / "v.npz")
    with pytest.raises(InputError, match=r"ends in"):
        embed_catalogue(run, [folder], tmp_path / "v.npy")
    with pytest.raises(ConfigError, match="random weights"):
        embed_catalogue("tiny", [folder], tmp_path / "w.npz")
    with pytest.raises(ConfigError, match=r"neither .*initialisation"):
        embed_catalogue("nothing-like-it", [folder], tmp_path / "w.npz")


def test_vectors_made_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    np.savez(path, embeddings=np.eye(3))
    read = read_catalogue(path)
    assert read.names == ["0", "1", "2"]
    (tmp_path / "x.png").touch()
    with pytest.raises(ConfigError, match="--model"):
        search_catalogue(read, [tmp_path / "x.png"])
    np.savez(path, embeddings=np.eye(3), names=np.array(["a"]))
    with pytest.raises(DataError, match="per vector"):
        read_catalogue(path)
    np.savez(path, vectors=np.eye(3))
    with pytest.raises(DataError, match="no array 'embeddings'"):
        read_catalogue(path)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"not an \.npz"):
        read_catalogue(path)


def test_the_commands(runs: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, test = CliRunner().invoke, made / "data" / "test"
    done = call(app, ["embed", str(runs / "first"), str(test)])
    assert done.exit_code == 0, done.output
    assert "30 vectors of 16 dimensions, 6 classes" in done.output
    query = str(test / "test-04" / "1.png")
    done = call(app, ["search", "vectors.npz", query, "--top", "4", "--json"])
    assert done.exit_code == 0, done.output
    (answer,) = json.loads(done.stdout)
    assert answer["results"][0] == {"name": "test-04/1.png", "similarity": 1.0, "label": "test-04"}
    assert len(answer["results"]) == 4
    done = call(app, ["search", "vectors.npz", query, str(test / "test-00" / "0.png"), "--html", "s.html"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "s.html"
    page = Path("s.html").read_text(encoding="utf-8")
    assert page.count("<article") == 2
    assert page.count("data:image/") == 22
    assert "<img src=x" not in page
    done = call(app, ["eval", "vectors.npz"])
    assert done.exit_code == 0, done.output
    metrics = json.loads(Path("vectors-eval/metrics.json").read_text())["metrics"]
    assert metrics["r@1"] > 1 / 6
    done = call(app, ["report", str(runs / "first")])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == str(runs / "first" / "report.html")


def test_heic_without_its_reader_is_left_out_with_a_remedy(
    runs: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = shutil.copytree(made / "data" / "test" / "test-00", tmp_path / "photos")
    (photos / "photo.heic").write_bytes(b"\0\0\0\x18ftypheic")
    monkeypatch.setattr("recollect.data.image_files.can_read_heif", lambda: False)
    with pytest.warns(DataWarning, match=r"recollect\[heic\]"):
        found = embed_catalogue(str(runs / "first"), [photos], tmp_path / "v.npz")
    assert found.source["left_out"]["HEIC"] == 1


@pytest.mark.parametrize("name", ["names", "labels"])
def test_a_name_for_all_vectors_is_refused(tmp_path: Path, name: str) -> None:
    arrays: dict[str, Any] = {"embeddings": np.eye(2, dtype=np.float32), name: np.array("all of them")}
    np.savez(tmp_path / "v.npz", **arrays)
    with pytest.raises(DataError, match="must be lists"):
        read_catalogue(tmp_path / "v.npz")
