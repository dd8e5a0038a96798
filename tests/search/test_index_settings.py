"""What an index knows about itself (``Settings``), and pairs as people write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy_model import ToyEncoder

from recollect.cli.options import parse_pairs
from recollect.common.errors import InputError
from recollect.search import Index
from recollect.search.stores.base import Settings, StoreError
from recollect.search.stores.sqlite import SQLiteStore


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
    settings = Settings.read(store)
    assert settings is not None
    with store.writing():
        replace(settings, building=replace(settings.current, number=2)).write(store)
        again = Settings.read(store)
        assert again is not None
        assert again.building is not None
        assert again.building.number == 2
        assert again.current.model["fingerprint"] == ToyEncoder().fingerprint
        for wrong in ({"format": 99}, {"format": 2}):
            store.write_document("settings", wrong)
            with pytest.raises(StoreError, match=r"format 99|not valid"):
                Settings.read(store)
    store.close()
