"""What people get wrong: every mistake ends with a sentence and an exit code, never with a traceback."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.cli import main


def _images(folder: Path, classes: int, each: int) -> None:
    generator = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"c{label}").mkdir(parents=True)
        for number in range(each):
            pixels = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"c{label}" / f"{number}.jpg")


def _vectors(here: Path) -> None:
    generator = np.random.default_rng(0)
    some = generator.normal(size=(8, 4)).astype(np.float32)
    pairs = np.arange(8) // 2
    for name, arrays in {
        "ok": {"embeddings": some, "labels": pairs},
        "nolabels": {"embeddings": some},
        "nan": {"embeddings": some * np.nan, "labels": pairs},
        "objects": {"embeddings": np.array([{}], dtype=object), "labels": np.arange(1)},
    }.items():
        np.savez(here / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    torch.save({"a": torch.ones(3)}, here / "other.pth")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("place")
    for name, classes, each in (("good", 4, 5), ("broken", 4, 5), ("oneclass", 1, 5), ("singles", 5, 1)):
        _images(here / name, classes, each)
    for number in range(4):  # whichever classes are held out
        (here / "broken" / f"c{number}" / "2.jpg").write_bytes(b"not an image")
    for name in ("empty", "norun", "full", "brokenrun"):
        (here / name).mkdir(parents=True)
    (here / "full" / "x").write_text("x")
    (here / "notes.txt").write_text("hello")
    (here / "brokenrun" / "config.yaml").write_text("a: [")
    (here / "bad.csv").write_text("a;b\n1;2\n")
    _vectors(here)
    return here


CASES = {
    # what is trained on
    "train --data nowhere": "there is no folder nowhere",
    "train --data empty": "no images below empty",
    "train --data oneclass": "class ('c0') cannot be split",
    "train --data singles": "a single image",
    "train --data broken": "2.jpg: not a readable image",
    "train --data notes.txt": "no column 'path'",
    "train --data good/c0/0.jpg": "0.jpg is an image. Give a folder",
    "train sop/r50-512/rsk": "no root was given",
    # where it goes
    "train --data good --out full": "full exists and is not empty",
    "train --resume nowhere": "nowhere is not a run",
    "train --resume brokenrun": "not valid YAML (line 1, column 5",
    "train --resume norun --out elsewhere": "--out would have no effect with --resume",
    "demo --out full": "full exists and is not empty",
    # recipes and settings
    "train nothing": "there is no recipe 'nothing'",
    "train sop/r50-512/rks": "Did you mean sop/r50-512/rsk?",
    "train sop": "a family of 50 recipes",
    "train --set size": "write key=value",
    "train --lr 0": "it must be above 0",
    "train --steps 0": "would leave the last layer random",
    "train --nothing": "No such option",
    # losses, batches, models
    "train --loss nothing": "loss 'nothing' is unknown",
    "train --data good --freeze none --set loss.options.k=text": "k must be 1 to 1,000 whole numbers, but is 'text'",
    "train --batch-size 7": "set it to 4 or 8",
    "train --init nothing --data good": "no initialisation 'nothing'",
    "train --weights nowhere.pth --data good": "nowhere.pth: no such weights file",
    "train --weights other.pth --data good": "does not fit lite0-in1k",
    "train --init vit-b16-in21k --weights none --image-size 100 --data good": "use 96 or 112",
    "train --device banana": "'banana' is not a device",
    # evaluation
    "eval": "give one model to evaluate",
    "eval norun": "neither a run",
    "eval nolabels.npz": "has no array 'labels'",
    "eval nan.npz": "not finite",
    "eval objects.npz": "not an .npz of plain arrays",
    "eval ok.npz --ks text": "whole numbers separated by commas",
    "eval ok.npz --protocol nothing": "choose all or reid",
    "eval ok.npz --compare ok.npz": "not a file of per-query results",
    "eval ok.npz --metrics-out notes.txt/m.json": "notes.txt/m.json cannot be written",
    "eval --init lite0-in1k": "no images are given",
    "eval --init lite0-in1k --data roxford5k": "--root says where",
    "eval --recipe sop/r50-512/rsk": "recollect eval RUN --recipe",
    # vectors, search, reports, exports
    "embed lite0-in1k nowhere": "nowhere: no such file or folder",
    "embed lite0-in1k broken": "--skip-bad",
    "embed lite0-in1k good --out full": "give a name that ends in .npz",
    "embed lite0-in1k good --out ok.npz": "ok.npz already exists",
    "embed lite0-in1k good --batch-size 0": "--batch-size",
    "search ok.npz good/c0/0.jpg": "give it with --model",
    "export norun --onnx a.onnx": "nor a saved embedder",
    "report": "Missing argument",
    "losses recal_at_k": "Did you mean recall_at_k?",
    "data verify folder bad.csv": "no column 'path'",
    "data verify roxford5k empty": "gnd_roxford5k.pkl is missing",
    "trian": "Did you mean 'train'?",
    # an option with one value, given twice
    "train --data one --data two": "--data is given 2 times",
    "data verify folder . --max-pixels 5 --max-pixels 6": "--max-pixels is given 2 times",
}


@pytest.mark.filterwarnings("ignore::recollect.common.errors.DataWarning")
@pytest.mark.parametrize("command", CASES)
def test_a_mistake_is_answered_with_a_sentence(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("RECOLLECT_CACHE", str(place / "cache"))
    monkeypatch.setattr(sys, "argv", ["recollect", *shlex.split(command)])
    before = _files(place)
    with pytest.raises(SystemExit) as ended:
        main()
    output = " ".join(capsys.readouterr().err.replace("│", " ").split())  # errors of typer stand in a box
    assert CASES[command] in output
    if ended.value.code == 1:
        last = output.rpartition("recollect: ")[2]
        assert 0 < len(last) < 520
        assert last.rstrip(")").endswith((".", "?")) or "://" in last or "Expected: " in last
    else:
        assert ended.value.code == 2
    assert _files(place) <= before, "a mistake leaves no result behind"


def _files(place: Path) -> set[Path]:
    return {path for path in place.rglob("*") if path.is_file() and "cache" not in path.parts}
