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


def _recipes(here: Path) -> None:
    for name, text in {
        "bad": "a: [1, 2\nb: }",
        "unknown": "batch: {sise: 3}\n",
        "circle": "inherits: circle.yaml\n",
        "misspelt": "optimzer: {lr: 1.0}\n",
    }.items():
        (here / f"{name}.yaml").write_text(text)


def _vectors(here: Path) -> None:
    generator = np.random.default_rng(0)
    some = generator.normal(size=(8, 4)).astype(np.float32)
    pairs = np.arange(8) // 2
    for name, arrays in {
        "ok": {"embeddings": some, "labels": pairs},
        "empty": {"x": np.ones(3)},
        "nolabels": {"embeddings": some},
        "short": {"embeddings": some, "labels": np.arange(3)},
        "nan": {"embeddings": some * np.nan, "labels": pairs},
        "objects": {"embeddings": np.array([{}], dtype=object), "labels": np.arange(1)},
        "gallery": {"embeddings": some, "labels": pairs, "gallery": np.ones((4, 3)), "gallery_labels": np.arange(4)},
    }.items():
        np.savez(here / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    for name in ("junk.npy", "junk.pth"):
        (here / name).write_bytes(b"PK junk")
    torch.save({"a": torch.ones(3)}, here / "other.pth")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("place")
    for name, classes, each in (
        ("good", 4, 5),
        ("broken", 4, 5),
        ("oneclass", 1, 5),
        ("singles", 5, 1),
        ("pair", 2, 1),
    ):
        _images(here / name, classes, each)
    for number in range(4):  # whichever classes are held out
        (here / "broken" / f"c{number}" / "2.jpg").write_bytes(b"not an image")
    for name in ("empty", "flat", "norun", "full", "brokenrun"):
        (here / name).mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(here / "flat" / "a.jpg")
    (here / "full" / "x").write_text("x")
    (here / "notes.txt").write_text("hello")
    (here / "brokenrun" / "config.yaml").write_text("a: [")
    (here / "bad.csv").write_text("a;b\n1;2\n")
    _recipes(here)
    _vectors(here)
    return here


CASES = {
    # what is trained on
    "train --data nowhere": "there is no folder nowhere",
    "train --data empty": "no images below empty",
    "train --data flat": "flat has 1 image but no class folders",
    "train --data oneclass": "class ('c0') cannot be split",
    "train --data pair": "at least two classes",
    "train --data singles": "a single image",
    "train --data broken": "2.jpg: not a readable image",
    "train --data notes.txt": "no column 'path'",
    "train --data good/c0/0.jpg": "0.jpg is an image. Give a folder",
    "train sop/r50-512/rsk": "no root was given",
    "train sop/r50-512/rsk --root nowhere": "there is no folder nowhere",
    "train cars196/r50-512/rsk --root empty": "no cars_annos.mat in empty",
    "train --data good --set data.options.nothing=3": "folder has no option 'nothing'",
    # where it goes
    "train --data good --out full": "full exists and is not empty",
    "train --resume nowhere": "nowhere is not a run",
    "train --resume brokenrun": "not valid YAML (line 1, column 5",
    "train --resume norun --out elsewhere": "remove the recipe, --data, --final, --out and --plan",
    "demo --out full": "full exists and is not empty",
    # recipes and settings
    "train nothing": "there is no recipe 'nothing'",
    "train good": "--data good",
    "train glyphs --data good": "--data good",
    "train sop/r50-512/rks": "Did you mean sop/r50-512/rsk?",
    "train sop": "a family of 50 recipes",
    "train bad.yaml": "not valid YAML (line 2, column 2: expected",
    "train unknown.yaml": "there is no setting 'batch.sise'. Did you mean size?",
    "train circle.yaml": "circular inheritance",
    "train misspelt.yaml": "Did you mean optimizer?",
    "train --set size": "write key=value",
    "train --set batch.size=[": "not valid YAML (line 1",
    "train --lr 0": "it must be above 0",
    "train --epochs -3": "it must be 0 or more",
    "train --steps 0": "would leave the last layer random",
    "train --nothing": "No such option",
    # losses, batches, models
    "train --loss nothing": "loss 'nothing' is unknown",
    "train --data good --freeze none --set loss.options.nothing=3": "has no option 'nothing'",
    "train --data good --freeze none --set loss.options.k=text": "k must be 1 to 1,000 whole numbers, but is 'text'",
    "train --batch-size 7": "set it to 4 or 8",
    "train --data good --freeze none --batch-size 4000000": "the largest possible batch_size is",
    "train --init nothing --data good": "no initialisation 'nothing'",
    "train --init timm:nothing --data good": "has no model 'nothing'",
    "train --weights nowhere.pth --data good": "nowhere.pth: no such weights file",
    "train --weights junk.pth --data good": "junk.pth: refused",
    "train --weights other.pth --data good": "does not fit lite0-in1k",
    "train --init vit-b16-in21k --weights none --image-size 100 --data good": "use 96 or 112",
    "train --device banana": "'banana' is not a device",
    # evaluation
    "eval": "give one model to evaluate",
    "eval no/where": "no such run",
    "eval norun": "neither a run",
    "eval nowhere.npz": "no such file",
    "eval empty.npz": "has no array 'embeddings'",
    "eval nolabels.npz": "has no array 'labels'",
    "eval short.npz": "8 vectors but 3 labels",
    "eval nan.npz": "not finite",
    "eval objects.npz": "not an .npz of plain arrays",
    "eval gallery.npz": "embed both with the same model",
    "eval ok.npz --ks text": "whole numbers separated by commas",
    "eval ok.npz --protocol nothing": "choose all or reid",
    "eval ok.npz --similarity nothing": "choose 'dot' or 'cosine'",
    "eval ok.npz --distractors junk.npy": "not a readable array",
    "eval ok.npz --compare ok.npz": "not a file of per-query results",
    "eval ok.npz --metrics-out full/x": "full/x already exists",
    "eval ok.npz --metrics-out notes.txt/m.json": "notes.txt/m.json cannot be written",
    "eval --init lite0-in1k": "no images are given",
    "eval --init lite0-in1k --data roxford5k": "--root says where",
    "eval --recipe sop/r50-512/rsk": "also give the run to evaluate",
    # vectors, search, reports, exports
    "embed lite0-in1k nowhere": "nowhere: no such file or folder",
    "embed lite0-in1k broken": "--skip-bad",
    "embed nothing good": "neither a folder nor an initialisation",
    "embed lite0-in1k good --out full": "give a name that ends in .npz",
    "embed lite0-in1k good --out ok.npz": "ok.npz already exists",
    "embed lite0-in1k good --batch-size 0": "--batch-size",
    "search ok.npz good/c0/0.jpg": "give it with --model",
    "export norun --onnx a.onnx": "nor a saved embedder",
    "report": "Missing argument",
    "report nowhere": "nowhere is not a run",
    "losses recal_at_k": "Did you mean recall_at_k?",
    "models nothing": "no initialisation 'nothing'",
    "recipes nothing": "there is no recipe 'nothing'",
    "data verify folder bad.csv": "no column 'path'",
    "data verify roxford5k empty": "gnd_roxford5k.pkl is missing",
    "data nothing": "No such command",
    "trian": "Did you mean 'train'?",
}


@pytest.mark.filterwarnings("ignore::recollect.common.errors.DataWarning")
@pytest.mark.parametrize("command", CASES)
def test_a_mistake_is_answered_with_a_sentence(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("RECOLLECT_CACHE", str(place / "cache"))
    monkeypatch.setattr(sys, "argv", ["recollect", *shlex.split(command)])
    before = {path for path in place.rglob("*") if "cache" not in path.parts}
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
    left = {path.relative_to(place).as_posix() for path in place.rglob("*") if "cache" not in path.parts} - {
        path.relative_to(place).as_posix() for path in before
    }
    assert not {path for path in left if (place / path).is_file()}  # a mistake leaves no result behind


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("train --data one --data two", "--data is given 2 times"),
        ("data verify folder . --max-pixels 5 --max-pixels 6", "--max-pixels is given 2 times"),
    ],
)
def test_an_option_with_one_value_is_not_given_twice(
    command: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["recollect", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert output in capsys.readouterr().err
