"""Files of vectors: written by ``recollect embed``, searched like an index."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.running import run
from recollect import embed_catalogue, search_images, update_index
from recollect.common.errors import ConfigError, DataError, DataWarning, ImageError, InputError
from recollect.models import Embedder
from recollect.search import Index, OtherModelError, StoreError
from recollect.search.stores.vector_file import VectorFile
from search.toy_model import make_photos, save_model


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with photos and two models."""
    monkeypatch.chdir(tmp_path)
    make_photos(Path("photos"))
    for seed, name in enumerate(("model", "other")):
        save_model(name, seed)


def _ids(index: Index | str, query: str | Path, k: int = 3, **options: Any) -> list[str]:
    (result,) = search_images(index, [query], k, **options)
    return [match.id for match in result.matches]


def test_vectors_are_the_embedders(tmp_path: Path) -> None:
    embed_catalogue("model", ["photos"], "v.npz")
    embed_catalogue("model", ["photos"], "short.npz", dim=4)
    paths = [tmp_path / "photos" / name for name in VectorFile.open("v.npz").names]
    expected = Embedder.load("model").embed(paths, progress=False).numpy()
    for file, rows in (("v.npz", expected), ("short.npz", expected[:, :4])):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(VectorFile.open(file).embeddings, rows / lengths, atol=1e-6)
    query = "photos/class1/2.png"
    assert _ids("short.npz", query) == _ids("v.npz", query, dim=4), "queries are shortened, too"
    with pytest.raises(InputError, match="from 1 to 8"):
        search_images("v.npz", [query], dim=9)


def test_queries_and_answers_are_those_of_an_index() -> None:
    update_index("shop.index", ["photos"], model="model")
    embed_catalogue("model", ["photos"], "shop.npz")
    queries = ["class2/1.png", "photos/class1", "photos/class0/3.png"]
    for where in (None, {"label": ["class0", "class2"]}):
        one, other = (search_images(name, queries, 3, where=where) for name in ("shop.index", "shop.npz"))
        assert [result.query for result in one] == [result.query for result in other]
        one, other = ([match for result in results for match in result.matches] for results in (one, other))
        assert [match.id for match in one] == [match.id for match in other]
        assert [m.similarity for m in one] == pytest.approx([m.similarity for m in other], abs=1e-5)
    with Index.open("shop.npz") as index:
        assert (len(index), index.count({"label": "class1"}), index.values("label")["class0"]) == (20, 5, 5)
        with pytest.raises(StoreError, match="does not change"):
            index.remove(["class2/1.png"])
    with pytest.raises(StoreError, match="does not change"):
        update_index("shop.npz", ["photos"])
    with pytest.raises(InputError, match="another name"):
        Index.create("new.npz", "model")
    with pytest.raises(InputError, match="one length"):
        search_images("shop.index", queries, dim=4)


def test_names_need_no_model() -> None:
    np.savez("v.npz", embeddings=np.eye(3), names=np.array(["a", "b", "b"]))
    assert _ids("v.npz", "a") == ["b", "b"]
    with pytest.raises(InputError, match="nor an id"):  # of two images
        search_images("v.npz", ["b"])
    np.savez("one.npz", embeddings=np.eye(1))
    assert _ids("one.npz", "0") == [], "no other image"


def test_a_model_that_changed_is_refused() -> None:
    embed_catalogue("model", ["photos"], "v.npz")
    shutil.rmtree("model")
    shutil.copytree("other", "model")
    for model in (None, "other"):
        with pytest.raises(OtherModelError, match="not the model"):
            search_images("v.npz", ["photos/class0/0.png"], model=model)


def test_what_cannot_be_embedded_is_said() -> None:
    Path("photos/class0/bad.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"bad\.png"):
        embed_catalogue("model", ["photos"], "v.npz")
    assert not Path("v.npz").exists()
    with pytest.warns(DataWarning, match=r"(?s)1 image .*bad\.png"):
        made = embed_catalogue("model", ["photos"], "v.npz", on_bad_image="skip")
    assert len(made.names) == len(made.embeddings) == 20
    assert [Path(bad["name"]).name for bad in made.source["skipped"]] == ["bad.png"]
    with pytest.raises(InputError, match="already exists"):
        embed_catalogue("model", ["photos"], "v.npz")
    with pytest.raises(InputError, match=r"ends in"):
        embed_catalogue("model", ["photos"], "v.npy")
    with pytest.raises(ConfigError, match="random weights"):
        embed_catalogue("tiny", ["photos"], "w.npz")


def test_vectors_made_elsewhere() -> None:
    np.savez("v.npz", embeddings=np.eye(3))
    assert VectorFile.open("v.npz").names == ["0", "1", "2"]
    with pytest.raises(ConfigError, match="--model"):
        search_images("v.npz", ["photos/class0/0.png"])
    with pytest.raises(InputError, match="3 values"):
        search_images("v.npz", ["photos/class0/0.png"], model="model")
    arrays: list[tuple[str, dict[str, Any]]] = [
        ("per vector", {"embeddings": np.eye(3), "names": np.array(["a"])}),
        ("no array 'embeddings'", {"vectors": np.eye(3)}),
        ("not finite", {"embeddings": np.full((2, 2), np.nan)}),
        ("must be lists", {"embeddings": np.eye(2), "labels": np.array("all of them")}),
    ]
    for message, wrong in arrays:
        np.savez("v.npz", **wrong)
        with pytest.raises(DataError, match=message):
            VectorFile.open("v.npz")


def test_the_commands(tmp_path: Path) -> None:
    assert "20 vectors of 8 dimensions, 4 classes" in run("embed", "model", "photos").output
    query = "photos/class2/1.png"
    (answer,) = json.loads(run("search", "vectors.npz", query, "--top", "4", "--json").stdout)
    about = {"name": "class2/1.png", "label": "class2"}
    assert answer["results"][0] == {"id": "class2/1.png", "similarity": 1.0, **about, "metadata": about}
    assert (answer["query"], len(answer["results"])) == (query, 4)
    Path("photos").rename("moved")
    asked = ["moved/class0/0.png", "class3/1.png"]
    done = run("search", "vectors.npz", *asked, "--html", "s.html", "--root", "moved")
    assert done.output.splitlines()[-1] == "s.html"
    page = Path("s.html").read_text(encoding="utf-8")
    assert (page.count("<article"), page.count("data:image/")) == (2, 22)
    assert "Search among 20 images" in page
    run("eval", "vectors.npz")
    assert json.loads(Path("vectors-eval/metrics.json").read_text())["metrics"]["r@1"] > 1 / 4
    Path("s.html").write_text("mine")
    with pytest.raises(InputError):
        run("search", "vectors.npz", *asked, "--html", "s.html")
