"""``search_images``: what ``recollect search`` does in one call, in an index made by ``update_index`` and in an ``.npz``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recollect import embed_catalogue, search_images, update_index
from recollect.common.errors import ConfigError, InputError
from recollect.models import Embedder
from search.toy_model import make_photos


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_photos(Path("photos"))
    torch.manual_seed(0)
    Embedder.create("tiny", size=16, dim=8).save("model")
    return tmp_path


def test_an_index_is_made_changed_and_searched(place: Path) -> None:
    with pytest.raises(ConfigError, match="no index"):
        update_index("shop.index", ["photos"])
    made = update_index("shop.index", ["photos"], model="model", half=True)
    assert (made.facts["items"], made.facts["half"], made.changes[0].added) == (20, True, 20)
    changed = update_index("shop.index", remove=["class0/0.png", "nothing"], add=["photos/class1/0.png"])
    assert (changed.removed, changed.changes[0].added, changed.facts["items"]) == (1, 1, 20)
    with pytest.raises(InputError, match="--model"):
        update_index("shop.index", rebuild=True)
    found = search_images("shop.index", ["photos/class1/2.png", "class2/1.png"], 2, html="page.html")
    assert [answer["query"] for answer in found.answers] == ["photos/class1/2.png", "class2/1.png"]
    assert found.answers[0]["results"][0]["id"] == "class1/2.png"
    assert found.answers[0]["results"][0]["label"] == "class1"
    assert found.page == Path("page.html")
    with pytest.raises(InputError, match="one length"):
        search_images("shop.index", ["photos/class1/2.png"], dim=4)


def test_an_npz_takes_folders_and_ids_as_an_index_does(place: Path) -> None:
    update_index("shop.index", ["photos"], model="model")
    embed_catalogue("model", ["photos"], "shop.npz")
    asked = ["class2/1.png", "photos/class1", "photos/class0/3.png"]
    in_index, in_vectors = (search_images(name, asked, 3).answers for name in ("shop.index", "shop.npz"))
    assert [answer["query"] for answer in in_index] == [answer["query"] for answer in in_vectors]
    assert len(in_vectors) == 7
    for one, other in zip(in_index, in_vectors, strict=True):
        assert [row["id"] for row in one["results"]] == [row["name"] for row in other["results"]]
        assert [row["similarity"] for row in one["results"]] == pytest.approx(
            [row["similarity"] for row in other["results"]], abs=1e-5
        )
    search_images("shop.npz", ["class2/1.png"], 3, html="page.html")
    assert Path("page.html").read_text(encoding="utf-8").count("data:image/") == 4


@pytest.mark.parametrize("name", ["shop.index", "shop.npz"])
def test_links_of_a_folder_of_queries_are_followed(place: Path, name: str) -> None:
    update_index("shop.index", ["photos"], model="model")
    embed_catalogue("model", ["photos"], "shop.npz")
    Path("asked").mkdir()
    Path("asked/link.png").symlink_to(place / "photos/class1/2.png")
    Path("asked/own.png").write_bytes(Path("photos/class0/0.png").read_bytes())
    found = search_images(name, ["asked"], 1).answers
    assert [answer["query"] for answer in found] == ["asked/link.png", "asked/own.png"]
    assert [answer["results"][0]["label"] for answer in found] == ["class1", "class0"]
