"""Questions of ``recollect search``: files, folders, ids, and files that cannot be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recollect.common.errors import DataError, ImageError, InputError
from recollect.search import Index
from recollect.search.queries import ask
from search.toy_model import ToyEncoder, make_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return make_photos(tmp_path / "photos")


@pytest.fixture
def index(photos: Path, tmp_path: Path) -> Index:
    made = Index.create(tmp_path / "x.index", ToyEncoder())
    made.sync(photos)
    return made


def test_files_folders_and_ids_are_answered_in_order(index: Index, photos: Path) -> None:
    file = photos / "class2" / "1.png"
    answers, remark = ask(index, ["class0/3.png", str(file), str(photos / "class1")], 3, {"label": "class1"})
    assert remark is None
    assert [Path(answer.query).name for answer in answers] == ["3.png", "1.png", *(f"{n}.png" for n in range(5))]
    assert all(len(answer.matches) == 3 for answer in answers)
    assert all(match.metadata["label"] == "class1" for answer in answers for match in answer.matches)
    assert answers[1].picture == file
    (answer,) = ask(index, ["class3/1.png"], 20)[0]
    assert "class3/1.png" not in {match.id for match in answer.matches}, "an id does not find itself"
    with pytest.raises(InputError, match="neither a file"):
        ask(index, ["nothing"])


def test_a_folder_of_queries_needs_no_labels(
    index: Index, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Folders inside folders, whose labels ``recollect index`` asks about, are no matter for queries."""
    shutil.copytree(photos, tmp_path / "asked" / "all")
    with caplog.at_level("INFO", logger="recollect"):
        assert len(ask(index, [str(tmp_path / "asked")], 1)[0]) == 20
    assert not caplog.records


def test_bad_files_end_the_search_or_are_skipped(index: Index, photos: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.mkdir()
    for number, path in enumerate(sorted(photos.rglob("*.png"))):  # more than are embedded together, in the end
        for copy in range(4):
            (asked / f"{number:02d}-{copy}.png").write_bytes(path.read_bytes())
    for name in ("05-1.png", "19-3.png"):
        (asked / name).write_bytes(b"not an image")
    with pytest.raises(ImageError, match=r"05-1.png.*--skip-bad"):
        ask(index, [str(asked)])
    answers, remark = ask(index, [str(asked)], 1, skip_bad=True)
    assert len(answers) == 78
    assert "05-1.png" in str(remark)
    assert "19-3.png" in str(remark)
    for answer in answers:
        number = int(Path(answer.query).name[:2])
        assert answer.matches[0].id == f"class{number // 5}/{number % 5}.png"
    with pytest.raises(DataError, match="nothing to search with"):
        ask(index, [str(asked / "05-1.png")], skip_bad=True)
