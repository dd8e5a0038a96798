"""A folder outside the project with a thing of each kind, used from the command line and from Python."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import recollect
from recollect.cli import main
from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError

HERE = Path(__file__).parent
THINGS = sorted((HERE / "things").glob("*.py"))
SHORT = [
    *("--chunk", "8", "--image-size", "32", "--steps", "2"),
    *("--batch-size", "16", "--set", "batch.samples_per_class=4"),
]
BY_NAME = ["--data", "my_data.py:squares", "--init", "my_backbone.py:backbone", "--loss", "my_loss.py:LogRank"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The things, copied to a folder of their own, which is the current one."""
    for path in THINGS:
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that adds names through entry points, as if it were installed."""
    monkeypatch.syspath_prepend(str(HERE / "package"))


def run(*words: str) -> int:
    """``recollect WORDS``; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["recollect", *words])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)


def train(*more: str) -> int:
    """``BY_NAME`` without the options that are given again: an option has one value."""
    pairs = zip(BY_NAME[::2], BY_NAME[1::2], strict=True)
    names = [word for option, value in pairs if option not in more for word in (option, value)]
    return run("train", *names, *SHORT, "--out", "run", "--device", "cpu", *more)


def test_every_kind_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("data.augmentation=my_augmentation.py:jitter", "data.augmentation_options={strength: 0.1}",
                "model.options={width: 8}", "loss.options={tau: 0.1}", "run.select=my_metric.py:hit_share",
                "run.logger_options={'my_logger.py:Diary': {name: mine.txt}}", "data.options={classes: 12}")  # fmt: skip
    words = [word for setting in settings for word in ("--set", setting)]
    assert train("--validation", "random", "--logger", "my_logger.py:Diary", *words) == 0
    manifest = json.loads(Path("run/manifest.json").read_text())
    recorded = {(entry["kind"], entry["reference"]): entry["sha256"] for entry in manifest["outside"]}
    assert {kind for kind, _ in recorded} == {"loss", "data set", "backbone", "augmentation", "metric", "logger"}
    assert recorded["loss", "my_loss.py:LogRank"] == plugins.load("loss", "my_loss.py:LogRank").sha256
    assert str(folder) not in json.dumps(manifest["outside"])
    assert "hit_share" in manifest["outcome"]["metrics"]["val"]
    assert manifest["outcome"]["chosen_by"].startswith("hit_share")
    lines = Path("run/mine.txt").read_text().splitlines()
    assert lines[0].endswith("my_loss.py:LogRank at step 0")
    assert lines[-1] == "end after 2 steps"
    capsys.readouterr()

    # The run names code. Another command follows it only with --trust, wherever it is called from.
    os.chdir(folder.parent)
    assert run("eval", str(folder / "run"), "--json") != 0
    assert "--trust" in capsys.readouterr().err
    assert (
        run("eval", str(folder / "run"), "--metric", str(folder / "my_metric.py:hit_share"), "--json", "--trust") == 0
    )
    assert "hit_share" in json.loads(capsys.readouterr().out)["metrics"]
    assert run("train", "--final", str(folder / "run"), "--trust") == 1
    assert "has no split with all classes" in " ".join(capsys.readouterr().err.split())


def test_resuming_asks_for_trust_and_says_what_has_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Stop(recollect.Callback):
        def on_step(self, step: int, values: object) -> None:
            raise KeyboardInterrupt

    names = ["data.name=my_data.py:squares", "model.init=my_backbone.py:backbone", "loss.name=my_loss.py:LogRank"]
    short = ["model.image_size=32", "batch.chunk=8", "run.steps=2", "run.epochs=null", "run.checkpoint_steps=1"]
    with pytest.raises(KeyboardInterrupt):
        recollect.train("folder", "run", settings=[*names, *short], callbacks=[Stop()])
    assert run("train", "--resume", "run") != 0
    assert "--trust" in capsys.readouterr().err
    file = folder / "my_loss.py"
    file.write_text(file.read_text() + "# a remark\n")
    assert run("train", "--resume", "run", "--trust") == 0
    message = capsys.readouterr()
    assert "loss my_loss.py:LogRank has changed" in message.err
    assert "backbone" not in message.err
    assert "has changed" in Path("run/train.log").read_text()


def test_misspelt_names_and_options_get_a_hint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, hint in (
        (["--loss", "my_loss.py:LogRnk"], "Did you mean LogRank?"),
        (["--set", "loss.options={tua: 1}"], "Did you mean tau?"),
        (["--set", "model.options={widht: 1}"], "Did you mean width?"),
        (["--set", "data.options={clases: 1}"], "Did you mean classes?"),
        (["--set", "data.augmentation=my_augmentation.py:jiter"], "Did you mean jitter?"),
        (["--set", "data.augmentation=crp"], "Did you mean crop?"),
        (["--logger", "tensorbord"], "Did you mean tensorboard?"),
        (
            ["--logger", "my_logger.py:Diary", "--set", "run.logger_options={'my_logger.py:Diary': {nam: x}}"],
            "mean name?",
        ),
        (["--loss", "missing.py:X"], "no file missing.py"),
        (["--init", "my_metric.py:hit_share"], "needs the option"),
    ):
        assert train(*words) != 0
        assert hint in capsys.readouterr().err.replace("\n", " "), words
    assert not Path("run").exists()


def test_names_of_an_installed_package(folder: Path, package: None, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", "petals", "--init", "stem", "--loss", "petal_loss", "--logger", "silent"]
    words += ["--set", "data.augmentation=turn", "--set", "run.select=first_is_right", "--validation", "none"]
    assert run("train", *words, *SHORT[:-4], "--batch-size", "12", "--out", "run", "--device", "cpu") == 0
    kinds = {entry["kind"] for entry in json.loads(Path("run/manifest.json").read_text())["outside"]}
    assert kinds == {"loss", "data set", "backbone", "augmentation", "logger"}
    capsys.readouterr()
    assert run("eval", "run", "--metric", "first_is_right", "--json") == 0  # registered names need no trust
    assert "first_is_right" in capsys.readouterr().out
    for verb, name in (("losses", "petal_loss"), ("data", "petals"), ("models", "stem")):
        assert run(verb) == 0
        assert name in (out := capsys.readouterr().out)
        assert "flower-tools" in out
        assert run(verb, "--json") == 0
        assert name in {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert run("losses", "petal_loss") == 0
    assert "Smooth-AP under another name" in capsys.readouterr().out


def test_a_recipe_is_kept_with_the_code_it_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "recipe.yaml").write_text(
        "data: {name: 'my_data.py:squares'}\nmodel: {init: 'my_backbone.py:backbone', image_size: 32}\n"
        "loss: {name: 'my_loss.py:LogRank'}\nbatch: {size: 16, chunk: 8}\nrun: {steps: 1, epochs: null}\n"
    )
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    assert run("recipes", "../recipe.yaml") == 0  # shows it, and runs nothing
    assert run("train", "../recipe.yaml", "--out", "run", "--device", "cpu") == 0


def test_objects_in_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loss = plugins.load("loss", "my_loss.py:LogRank").target(tau=0.1)
    images = plugins.load("data set", "my_data.py:squares").target
    backbone = plugins.load("backbone", "my_backbone.py:backbone").target
    output: list[int] = []

    class Counting(recollect.Callback):
        def on_step(self, step: int, values: object) -> None:
            output.append(step)

    settings = {"run.steps": 2, "run.epochs": None, "batch.chunk": 8, "model.image_size": 32, "run.device": "cpu"}
    outcome = recollect.train(
        out="run", settings=settings, loss=loss, train_set=images("train"), model=backbone(), callbacks=[Counting()]
    )
    assert output == [1, 2]
    recorded = {entry["kind"]: entry for entry in json.loads(Path("run/manifest.json").read_text())["outside"]}
    assert recorded["loss"]["reference"].endswith(".LogRank")
    assert recorded["loss"]["sha256"] == plugins.load("loss", "my_loss.py:LogRank").sha256
    assert recorded["data set"]["reference"] == "given:squares"

    with pytest.raises(ConfigError, match="backbone="):
        recollect.load(outcome.folder)
    embedder = recollect.load(outcome.folder, backbone=backbone())
    vectors = recollect.embed(embedder, images("test"), progress=False)
    assert vectors.shape == (48, embedder.dim)
    result = recollect.evaluate_model(embedder, images("test"), metrics=["my_metric.py:hit_share"])
    assert 0 <= result.metrics["hit_share"] <= 1
    again = recollect.evaluate(vectors, images("test").labels, ks=[1])
    assert result.metrics["r@1"] == pytest.approx(again.metrics["r@1"])


def test_a_run_with_given_objects_goes_on_in_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Stop(recollect.Callback):
        def on_step(self, step: int, values: object) -> None:
            if step == 1:
                raise RuntimeError("enough")

    def objects() -> dict[str, object]:
        torch.manual_seed(0)
        return {
            "loss": plugins.load("loss", "my_loss.py:LogRank").target(),
            "train_set": plugins.load("data set", "my_data.py:squares").target("train"),
            "model": recollect.Embedder.create("tiny", size=32),
        }

    settings = {"run.steps": 2, "run.epochs": None, "batch.chunk": 8, "batch.size": 16, "run.checkpoint_steps": 1}
    recollect.train("glyphs", "whole", settings=settings, **objects())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="enough"):
        recollect.train("glyphs", "run", settings=settings, callbacks=[Stop()], **objects())  # type: ignore[arg-type]
    assert run("train", "--resume", "run") != 0
    message = capsys.readouterr().err
    assert "recollect.train(resume=" in message
    assert "my_loss.LogRank" in message
    recollect.train(resume="run", **objects())  # type: ignore[arg-type]
    one, other = (recollect.load(f"{name}/model").state_dict() for name in ("whole", "run"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_with_code_from_outside_is_published_without_places(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "run.logger_options={'my_logger.py:Diary': {name: password.txt}}"
    assert train("--logger", "my_logger.py:Diary", "--set", secret) == 0
    os.chdir(folder.parent)
    assert run("publish", str(folder / "run"), "--folder", str(folder / "out")) != 0
    assert "--trust" in capsys.readouterr().err
    assert run("publish", str(folder / "run"), "--folder", str(folder / "out"), "--trust") == 0
    card, settings = ((folder / "out" / name).read_text() for name in ("README.md", "training.yaml"))
    for text in (card, settings):
        assert str(folder) not in text
        assert "untrusted" not in text
        assert "password" not in text
        assert "my_loss.py:LogRank" in text
    assert 'Embedder.load("hf://user/name", backbone="my_backbone.py:backbone")' in card
    assert "is code that is not part of this repository" in card
    loaded = recollect.Embedder.load(folder / "out", backbone=str(folder / "my_backbone.py:backbone"))
    assert loaded.dim == recollect.load(folder / "run", trust=True).dim


def test_a_saved_backbone_runs_only_if_given_or_trusted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marker = folder / "it-ran"
    code = (folder / "my_backbone.py").read_text()
    (folder / "my_backbone.py").write_text(f"{code}\nopen({str(marker)!r}, 'a').close()\n")
    embedder = recollect.Embedder.create("my_backbone.py:backbone", options={"width": 8}, size=32, dim=16)
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    expected = recollect.embed(embedder, list(images), progress=False)
    embedder.save(folder / "model")
    assert str(folder) not in (folder / "model" / "embedder.json").read_text()
    for name in [name for name in sys.modules if name.startswith("recollect_outside_my_backbone")]:
        del sys.modules[name]  # as in a new process
    marker.unlink()

    with pytest.raises(ConfigError, match="--trust"):
        recollect.Embedder.load(folder / "model")
    assert run("embed", "model", "x.jpg", "--out", "x.npz") != 0
    assert not marker.exists()

    for opened in (
        recollect.load(folder / "model", trust=True),
        recollect.load(folder / "model", backbone="my_backbone.py:backbone"),
        recollect.Embedder.load(folder / "model", backbone="my_backbone.py:backbone"),
    ):
        assert torch.equal(recollect.embed(opened, list(images), progress=False), expected)
    with recollect.trusting():
        assert recollect.load("model").dim == 16
    # Beside embedder.json it is found from anywhere.
    shutil.move(folder / "my_backbone.py", folder / "model")
    os.chdir(folder.parent)
    assert recollect.load(folder / "model", trust=True).dim == 16
    shutil.move(folder / "model" / "my_backbone.py", folder / "gone.py")
    with pytest.raises((ConfigError, DataError), match="no file my_backbone"):
        recollect.load(folder / "model", trust=True)


def test_changed_code_makes_other_vectors_and_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    embedder = recollect.Embedder.create("my_backbone.py:backbone", size=32)
    embedder.save("model")
    file = folder / "my_backbone.py"
    file.write_text(file.read_text().replace("nn.ReLU()", "nn.GELU()"))
    changed = recollect.load("model", trust=True)
    assert "has changed" in caplog.text
    # What the store of vectors and an index know a network by.
    assert changed.config.architecture != embedder.config.architecture
