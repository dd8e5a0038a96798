"""Faulty code of a user: one sentence that names it and what is wrong, never a report of a defect of recollect."""

from __future__ import annotations

from pathlib import Path

import pytest

import recollect
from outside.test_outside import folder, train

__all__ = ["folder"]  # the fixture

FAULTY = '''
import torch
from torch import nn

class Vector(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.sum(dim=1)

class Detached(nn.Module):
    def forward(self, embeddings, labels):
        return embeddings.detach().sum()

class LateNan(nn.Module):
    """Sound when it is tried, and not a number in the first step."""
    def forward(self, embeddings, labels):
        return embeddings.sum() * (float("nan") if len(labels) == 16 else 1.0)

class Unmade(nn.Module):
    def __init__(self):
        super().__init__()
        {}["margin"]

def images(split):
    raise ValueError("no such folder")

def no_images(split):
    return [1, 2]

def backbone(width=8):
    return torch.zeros(width, "x")

def augmentation(size):
    def change(image):
        raise RuntimeError("too dark")
    return change

def metric(ranks, positives):
    return ranks.no_such_method()

class Logger:
    def __init__(self):
        open("no/such/file")
'''


@pytest.fixture
def faulty(folder: Path) -> Path:
    (folder / "faulty.py").write_text(FAULTY)
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loss", "faulty.py:Vector"], "loss 'faulty.py:Vector' returns"),
        (["--loss", "faulty.py:Detached"], "does not depend on the embeddings"),
        (["--loss", "faulty.py:Unmade"], "fails: KeyError: 'margin' (faulty.py, line 21)"),
        (["--loss", "faulty.py"], "faulty.py:name"),
        (["--data", "faulty.py:images"], "data set 'faulty.py:images' fails: ValueError: no such folder (faulty.py"),
        (["--data", "faulty.py:no_images"], "returned a list: it must return an ImageSet"),
        (["--init", "faulty.py:backbone"], "backbone 'faulty.py:backbone' fails: TypeError"),
        (["--set", "data.augmentation=faulty.py:augmentation"], "fails: RuntimeError: too dark (faulty.py"),
        (["--validation", "random", "--set", "run.select=faulty.py:metric"], "metric 'metric' fails: AttributeError"),
        (["--logger", "faulty.py:Logger"], "logger 'faulty.py:Logger' fails: FileNotFoundError"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_faulty_code_is_named_with_its_fault(
    faulty: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--set", "data.options={classes: 12}"] if "--data" not in words else []
    assert train(*more, *words) == 1
    heard = " ".join(capsys.readouterr().err.split())
    assert message in heard
    assert "bug in recollect" not in heard


def test_a_loss_that_becomes_nan_keeps_the_batch(faulty: Path) -> None:
    settings = ["run.steps=1", "run.epochs=null", "batch.chunk=8", "batch.size=16", "model.image_size=32"]
    named = ["data.name=my_data.py:squares", "model.init=my_backbone.py:backbone", "batch.samples_per_class=4"]
    with pytest.raises(recollect.TrainingStoppedError, match="the loss is nan"):
        recollect.train("folder", "run", settings=[*named, *settings], loss="faulty.py:LateNan")
    assert list(Path("run/stopped").rglob("*"))
