"""Files, folders and ids as questions (``search/queries.py``), and the document of an index (``search/settings.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_model import ToyEncoder, make_photos

from recollect.common.errors import InputError
from recollect.search import Index
from recollect.search.queries import ask, parse_pairs
from recollect.search.settings import read_settings, write_settings
from recollect.search.sqlite_store import SQLiteStore
from recollect.search.store_protocol import StoreError


def test_files_folders_and_ids_keep_their_order(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    with Index.create(str(tmp_path / "i.index"), ToyEncoder()) as index:
        index.sync(photos)
        file, folder = str(photos / "class1" / "0.png"), str(photos / "class2")
        answers = ask(index, ["class3/1.png", folder, file], k=2)
        assert [answer.query for answer in answers[:1] + answers[-1:]] == ["class3/1.png", file]
        assert sorted(answer.query for answer in answers[1:-1]) == sorted(str(p) for p in Path(folder).iterdir())
        assert "class3/1.png" not in {match.id for match in answers[0].matches}, "an id does not find itself"
        assert answers[-1].matches[0].id == "class1/0.png"
        with pytest.raises(InputError, match=r"'nothing' is neither"):
            ask(index, ["nothing"])


def test_pairs() -> None:
    assert parse_pairs(["label=shoe", "label=boot", " size =a=b"], "--where") == {
        "label": ["shoe", "boot"],
        "size": ["a=b"],
    }
    for wrong in ("label", "=shoe", " =x"):
        with pytest.raises(InputError, match=r"--where .*name=value"):
            parse_pairs([wrong], "--where")


def test_settings_are_read_back_or_refused(tmp_path: Path) -> None:
    address = str(tmp_path / "i.index")
    Index.create(address, ToyEncoder()).close()
    store = SQLiteStore.open(address)
    settings = read_settings(store)
    assert settings is not None
    with store.writing():
        write_settings(store, settings.with_current(approximate={"m": 16}))
        again = read_settings(store)
        assert again is not None
        assert again.current.approximate == {"m": 16}
        assert again.current.fingerprint == ToyEncoder().fingerprint
        for wrong in ({"format": 99}, {"format": 1}, {"format": 1, "current": {"number": 1, "model": {}, "dim": 4}}):
            store.write_document("settings", wrong)
            with pytest.raises(StoreError, match=r"format 99|understood"):
                read_settings(store)
    store.close()
