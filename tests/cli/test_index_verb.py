"""``recollect index`` and ``recollect search`` on an index, as a user types them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from recollect.cli.main import app, main
from search.toy_model import make_photos, save_model


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_photos(Path("photos"))
    for seed, name in enumerate(("model", "other")):
        save_model(name, seed)
    return tmp_path


def _run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def _fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["recollect", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


def test_from_a_folder_to_answers(place: Path) -> None:
    message = _run("index", "shop.index", "photos", "--model", "model")
    assert "20 added" in message
    assert "20 images" in message
    Image.new("RGB", (12, 12), "red").save("photos/class0/red.png")
    assert "1 added, 0 updated, 0 removed, 20 unchanged, 0 skipped; 1 embedded" in _run("index", "shop.index", "photos")
    Path("photos/class0/red.png").unlink()
    assert "1 removed" in _run("index", "shop.index", "photos", "--prune")
    lines = _run("search", "shop.index", "photos/class1/2.png", "--top", "3").splitlines()
    assert lines[0] == "photos/class1/2.png"
    assert lines[1].split() == ["1", "1.0000", "class1/2.png", "(class1)"]
    answers = json.loads(
        _run("search", "shop.index", "class1/2.png", "photos/class0", "--json", "--where", "label=class1")
    )
    assert [answer["query"] for answer in answers][:2] == ["class1/2.png", "photos/class0/0.png"]
    assert len(answers) == 6
    assert "class1/2.png" not in [row["id"] for row in answers[0]["results"]]
    assert len(answers[0]["results"]) == 4
    assert {row["label"] for answer in answers for row in answer["results"]} == {"class1"}
    assert _run("search", "shop.index", "class1/2.png", "--html", "page.html").splitlines()[-1] == "page.html"
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count("data:image/") == 11
    assert str(place) not in page


def test_single_images_and_information(place: Path) -> None:
    _run("index", "shop.index", "photos", "--model", "model", "--half", "--dim", "6", "--approximate")
    Image.new("RGB", (12, 12), "red").save("red.png")
    assert "1 added" in _run("index", "shop.index", "--add", "red.png", "--meta", "label=new", "--meta", "price=3")
    info = json.loads(_run("index", "shop.index", "--info", "--json"))
    assert (info["items"], info["dim"], info["half"]) == (21, 6, True)
    assert info["approximate"]["recall"] > 0.9
    text = _run("index", "shop.index", "--info")
    assert "21" in text
    assert "approximate, recall@10" in text
    assert "1 of 2 ids removed" in _run("index", "shop.index", "--remove", "red.png", "nothing")
    _run("index", "shop.index", "--exact")
    text = _run("index", "shop.index", "--info", "--check")
    assert "exact" in text
    assert "no damage found" in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("index nothing.index photos", "--model"),
        ("index photos photos --model model", "is a folder"),
        ("index shop.index --add --model model", "give the files"),
        ("index shop.index photos --model model --dim 9", "from 1 to 8"),
        ("index ftp://x/y photos --model model", "Choose one of postgresql"),
        ("search nothing.index photos/class0/0.png", "no index"),
        ("index made.index photos/class0/0.png", "folders and .csv files"),
        ("search made.index nothing.png", "neither a file"),
        ("search made.index photos/class0/0.png --model other", "not the model"),
    ],
)
def test_mistakes_end_with_a_sentence(
    place: Path, words: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "made.index" in words:
        _run("index", "made.index", "photos", "--model", "model")
    assert says in _fails(capsys, monkeypatch, *words.split())


def test_calibrate_and_duplicates(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _run("index", "shop.index", "photos", "--model", "model")
    message = _run("calibrate", "shop.index", "--false-match-rate", "0.02")
    assert "20 images of 4 classes: 40 pairs of one class, 150 of two" in message
    assert "same" in message
    result = json.loads(_run("calibrate", "model", "--data", "photos", "--false-match-rate", "0.02", "--json"))
    assert result["other_pairs"] == 150
    assert Path("model/calibration.json").is_file()
    assert "same from" in _run("index", "shop.index", "--info")
    lines = _run("search", "shop.index", "photos/class1/2.png", "--top", "1").splitlines()
    assert lines[1].split()[2] == "same"
    Path("photos/class3/copy.png").write_bytes(Path("photos/class0/0.png").read_bytes())
    _run("index", "shop.index", "photos")
    message = _run("duplicates", "shop.index", "--similarity", "0.9999")
    assert "1 has more than one label" in message
    assert "class3/copy.png" in message
    groups = json.loads(_run("duplicates", "photos", "--model", "model", "--similarity", "0.9999", "--json"))["groups"]
    assert {"ids": ["class0/0.png", "class3/copy.png"], "similarity": 1.0, "identical": True, "crosses": False,
            "labels": ["class0", "class3"]} in groups  # fmt: skip
    for words, says in (
        ("calibrate shop.index --false-match-rate 0.00001", "cannot tell"),
        ("calibrate model", "--data"),
        ("duplicates nowhere --model model", "no such folder"),
    ):
        assert says in _fails(capsys, monkeypatch, *words.split())


def test_search_follows_links_and_takes_its_own_advice_on_moved_models(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _run("index", "shop.index", "photos", "--model", "model")
    _run("embed", "model", "photos", "--out", "shop.npz")
    Path("model").rename("moved")
    Path("asked").mkdir()
    Path("asked/link.png").symlink_to(place / "photos/class1/2.png")
    for name in ("shop.index", "shop.npz"):
        words = ["search", name, "asked", "--top", "1"]
        assert "--model" in _fails(capsys, monkeypatch, *words)
        assert "class1/2.png" in _run(*words, "--model", "moved")
        assert "class1/2.png" in _run("search", name, "class1/2.png"), "an id needs no model"
