"""Questions of ``recollect search``: files, folders, ids, and files that cannot be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from recollect.cli.options import parse_pairs
from recollect.common.errors import DataError, ImageError, InputError
from recollect.search import Index
from recollect.search.commands import search_images
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
    results = search_images(index, ["class0/3.png", file, photos / "class1"], 3, where={"label": "class1"})
    files = [photos / "class1" / f"{number}.png" for number in range(5)]
    assert [result.query for result in results] == ["class0/3.png", file, *files]
    assert all(len(result.matches) == 3 for result in results)
    assert all(match.metadata["label"] == "class1" for result in results for match in result.matches)
    (result,) = search_images(index, ["class3/1.png"], 20)
    assert len(result.matches) == 19
    assert "class3/1.png" not in {match.id for match in result.matches}, "an id does not find itself"
    assert len(search_images(index, [file])[0].matches) == 10
    with pytest.raises(InputError, match="neither a file"):
        search_images(index, ["nothing"])


def test_pairs() -> None:
    pairs = parse_pairs(["label=shoe", "label=boot", " size =a=b"], "--where")
    assert pairs == {"label": ["shoe", "boot"], "size": ["a=b"]}
    for wrong in ("label", "=shoe", " =x"):
        with pytest.raises(InputError, match=r"--where .*name=value"):
            parse_pairs([wrong], "--where")


def test_a_folder_of_queries_needs_no_labels(
    index: Index, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Folders inside folders, whose labels ``recollect index`` asks about, are no matter for queries."""
    shutil.copytree(photos, tmp_path / "asked" / "all")
    with caplog.at_level("INFO", logger="recollect"):
        assert len(search_images(index, [tmp_path / "asked"], 1)) == 20
    assert not caplog.records


def test_bad_files_end_the_search_or_are_skipped(
    index: Index, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = tmp_path / "asked"
    asked.mkdir()
    for number, path in enumerate(sorted(photos.rglob("*.png"))):  # more than are embedded together, in the end
        for copy in range(4):
            (asked / f"{number:02d}-{copy}.png").write_bytes(path.read_bytes())
    for name in ("05-1.png", "19-3.png"):
        (asked / name).write_bytes(b"not an image")
    with pytest.raises(ImageError, match=r"05-1.png.*--skip-bad"):
        search_images(index, [asked])
    with caplog.at_level("INFO", logger="recollect"):
        results = search_images(index, [asked], 1, on_bad_image="skip")
    assert len(results) == 78
    assert "05-1.png" in caplog.text
    assert "19-3.png" in caplog.text
    for result in results:
        number = int(Path(result.query).name[:2])
        assert result.matches[0].id == f"class{number // 5}/{number % 5}.png"
    with pytest.raises(DataError, match="nothing to search with"):
        search_images(index, [asked / "05-1.png"], on_bad_image="skip")
