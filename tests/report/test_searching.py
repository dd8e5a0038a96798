"""``search_images``: what ``recollect search`` does in one call, in an index made by ``update_index``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from recollect import search_images, update_index
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
