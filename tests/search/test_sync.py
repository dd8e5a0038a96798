"""``update_index``: what ``recollect index`` does in one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.common.errors import DataError, InputError
from recollect.search.commands import update_index
from search.toy_model import make_photos, save_model


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos", classes=2, each=3)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model")


def test_approximate_search_compares_as_many_candidates_as_were_asked_for(photos: Path, model: Path) -> None:
    place = photos.parent / "x.index"
    assert update_index(place, [photos], model=model, approximate=True).facts["approximate"]["candidates"] == 100
    assert update_index(place, approximate=True, candidates=20).facts["approximate"]["candidates"] == 20
    with pytest.raises(InputError, match="--approximate, too"):
        update_index(place, candidates=20)


def test_no_index_is_left_behind_for_a_folder_that_does_not_exist(tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("nowhere", "empty"):
        with pytest.raises(DataError, match=folder):
            update_index(tmp_path / "x.index", [tmp_path / folder], model=model)
        assert not (tmp_path / "x.index").exists()


def test_files_that_cannot_be_added_are_an_error(tmp_path: Path, photos: Path, model: Path) -> None:
    place = tmp_path / "x.index"
    update_index(place, [photos], model=model)
    with pytest.raises(DataError, match=r"nothing was added.*gone.png"):
        update_index(place, add=[tmp_path / "gone.png"])
    done = update_index(place, add=[tmp_path / "gone.png", photos / "class1" / "0.png"])
    assert (done.changes[0].added, len(done.changes[0].skipped)) == (1, 1)


def test_another_length_or_precision_is_not_ignored(tmp_path: Path, photos: Path, model: Path) -> None:
    place = tmp_path / "x.index"
    update_index(place, [photos], model=model, dim=4)
    update_index(place, [photos], model=model, dim=4)
    for options in ({"dim": 8}, {"half": True}):
        with pytest.raises(InputError, match=r"4 values in single precision.*--rebuild"):
            update_index(place, [photos], **options)
    done = update_index(place, model=model, rebuild=True, dim=6, half=True)
    assert (done.facts["dim"], done.facts["half"], done.facts["items"]) == (6, True, 6)
