"""What an index knows about itself (``search/settings.py``), and pairs as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_model import ToyEncoder

from recollect.cli.options import parse_pairs
from recollect.common.errors import InputError
from recollect.search import Index
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
        write_settings(store, settings.with_current(approximate={"candidates": 16}))
        again = read_settings(store)
        assert again is not None
        assert again.current.approximate == {"candidates": 16}
        assert again.current.fingerprint == ToyEncoder().fingerprint
        for wrong in ({"format": 99}, {"format": 2}, {"format": 2, "current": {"number": 1, "model": {}, "dim": 4}}):
            store.write_document("settings", wrong)
            with pytest.raises(StoreError, match=r"format 99|not valid"):
                read_settings(store)
    store.close()
