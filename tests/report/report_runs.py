"""Runs to report on: a few steps on small pictures in folders, one of whose names is an attack; and made-up results."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.config.schema import Config
from recollect.data import ImageSet
from recollect.evaluation import evaluate
from recollect.inference import vectors
from recollect.report.results import ModelResult, ReportImages, Run
from recollect.training.run import RunFolder
from recollect.training.trainer import train
from training.small_runs import make_images, small_config

EVIL = "<img src=x onerror=alert(1)>\u202e&\"'"
"""A class name that would act if it were not escaped: folders may be called so."""
EVIL_FILE = "\"'><script>alert(1)<\u202e.png"
"""The same for a file."""


def count_images(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images are put through a network from now on, a number per part."""
    through: list[int] = []
    real = vectors._Pixels.rows

    def counted(pixels: Any, network: Any, places: Any) -> Any:
        through.append(len(places))
        return real(pixels, network, places)

    monkeypatch.setattr(vectors._Pixels, "rows", counted)
    return through


def make_data(root: Path) -> Path:
    make_images(root, classes=8, each=5)
    make_images(root, classes=6, each=5, split="test", seed=1)
    (root / "test" / "test-03").rename(root / "test" / EVIL)
    (root / "test" / "test-05").rename(root / "test" / "test-0")  # part of the others' names
    (root / "test" / "test-04" / "2.png").rename(root / "test" / "test-04" / EVIL_FILE)
    return root


def report_config(root: Path, **settings: Any) -> Config:
    few = {
        "run.epochs": 2,
        "run.watch_test": True,
        "batch.batches_per_epoch": 2,
        "published": {"r@1": 81.2, "r@7": 90.0},
    }
    return small_config(root, **{**few, **settings})


def make_run(root: Path, out: Path, **settings: Any) -> Path:
    return train(report_config(root, **settings), out).folder


NAMES = ["<b>&amp;", "two", "three", "four"]


def made_result(name: str, noise: float, seed: int = 0, trained: bool = True) -> tuple[ModelResult, ReportImages]:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(4), 10)
    vectors = np.eye(4, 6)[labels] + random.normal(size=(40, 6)) * noise
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    pixels = np.random.default_rng(1).integers(0, 255, (40, 40, 40, 3), np.uint8)
    images = ImageSet("set", [f"{n}/{i}.png" for i, n in enumerate(labels)], labels, NAMES, arrays=pixels)
    shown = ReportImages("set", "test", list(images.names), labels, NAMES, 40, images)
    evaluation = evaluate(vectors, labels, ks=(1, 2, 1000), metrics=("r@k", "map@r", "first_rank", "map"))
    return ModelResult(name, "words", vectors, evaluation, trained), shown


def made_run(name: str, seconds: float = 60.0, **settings: Any) -> Run:
    manifest = {"outcome": {"seconds": seconds}, "preparation_seconds": 30.0}
    return Run(name, RunFolder(Path(name)), None, settings, manifest, [], [])


class PageReader(HTMLParser):
    """The elements and the text of a page; every element that is opened must be closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("img", "br", "meta", "hr", "input", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.text.append(data)


def read_page(text: str) -> PageReader:
    reader = PageReader()
    reader.feed(text)
    reader.close()
    return reader


def text_of(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())
