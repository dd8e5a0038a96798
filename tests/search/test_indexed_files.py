"""Files for an index: parts become metadata, and what is left out is said."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from toy_model import make_photos

from recollect.search.indexed_files import list_images


def test_parts_and_classes_are_metadata(tmp_path: Path) -> None:
    make_photos(tmp_path / "train", classes=1, each=1)
    make_photos(tmp_path / "test", classes=1, each=1)
    found, remarks = list_images(tmp_path, prefix="shop/")
    assert [(file.id, file.metadata) for file in found] == [
        (f"shop/{part}/class0/0.png", {"name": "0.png", "split": part, "label": "class0"}) for part in ("test", "train")
    ]
    assert not remarks
    make_photos(tmp_path / "other", classes=1, each=1)  # then train and test are classes like any other
    assert {file.metadata["label"] for file in list_images(tmp_path)[0]} == {"train", "test", "other"}


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = make_photos(tmp_path / "photos", classes=1, each=1)
    (photos / "class0" / "phone.heic").write_bytes(b"\0")
    (photos / "notes.txt").write_text("not an image")
    (photos / "away").symlink_to(make_photos(tmp_path / "elsewhere", classes=1, each=2))
    monkeypatch.setattr("recollect.data.image_files.can_read_heif", lambda: False)
    left_out: Counter[str] = Counter()
    found, remarks = list_images(photos, left_out=left_out)
    assert [file.id for file in found] == ["class0/0.png"]
    assert len(remarks) == 2
    assert "away: skipped, a link that leaves the folder" in remarks[0]
    assert "1 HEIC images are skipped" in remarks[1]
    assert left_out == {"HEIC": 1, "not an image": 1}
    assert len(list_images(photos, allow_outside=True)[0]) == 3
