from __future__ import annotations

import os
from pathlib import Path

import pytest

from recollect.common.files import cache_folder


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RECOLLECT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("RECOLLECT_CACHE")
    assert cache_folder().name in ("recollect", "cache")
    assert str(cache_folder()).startswith((str(Path.home()), os.environ.get("XDG_CACHE_HOME", "?")))
