"""What an index knows about itself (``search/settings.py``), and pairs as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_model import ToyEncoder

from recollect.common.errors import DataWarning, ImageError, InputError
from recollect.search import Index
from recollect.search.queries import parse_pairs
from recollect.search.settings import read_settings, write_settings
from recollect.search.sqlite_store import SQLiteStore
from recollect.search.store_protocol import StoreError


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


def test_unreadable_queries_are_skipped_when_asked_to(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    with Index.create(str(tmp_path / "index.sqlite"), ToyEncoder()) as index:
        index.sync(photos)
        queries = make_photos(tmp_path / "queries") / "class1"
        (queries / "1.png").write_bytes(b"not an image")
        with pytest.raises(ImageError, match=r"1\.png"):
            ask(index, [str(queries), "class0/0.png"], 2)
        with pytest.warns(DataWarning, match=r"1\.png.*skipped"):
            answers = ask(index, [str(queries), "class0/0.png"], 2, skip_bad=True)
        assert [Path(answer.query).name for answer in answers] == ["0.png", "2.png", "3.png", "4.png", "0.png"]
        assert [answer.matches[0].id for answer in answers[:2]] == ["class1/0.png", "class1/2.png"]
        with pytest.raises(InputError, match="neither a file"):
            ask(index, ["nowhere"], skip_bad=True)
