"""Families of recipes: rows, words, columns, comments, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.common.errors import ConfigError
from recollect.config.recipes import Origin, load_recipe
from recollect.config.resolve import resolve

BASE = """
optimizer: {weight_decay: 0.1, gamma: 0.5} # from the base
words:
  slow:
    description: slowly
    optimizer:
      lr: 1.0e-5 # so slow
    note: it takes long
  slower: {like: slow, description: still more slowly, run: {seed: 7}}
  plain: {note: null}
"""
FAMILY = """
description: mine
inherits: base
batch: {size: 40}
words:
  small: {batch: {size: 8}} # very small
  slow: {optimizer: {gamma: 0.1}}
columns:
  sop/test: [r@1, r@10]
  cars196/test: [r@1]
rows:
  small/slow: [1.5, 2, 3] # table 1
  small/slower: [4, null, 6]
  slower/small: null
  slow/plain: []
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "mine.yaml").write_text(FAMILY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_row_is_its_file_then_its_words(folder: Path) -> None:
    config = resolve("mine/small/slow")
    assert config.batch.size == 8
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (1e-5, 0.1)
    assert config.optimizer.gamma == 0.1  # the family's say on a word comes after the base's
    assert config.name == "mine/small/slow"
    assert config.run.seed == 0
    like = resolve(folder / "mine" / "small" / "slower")
    assert (like.optimizer.lr, like.optimizer.gamma, like.run.seed) == (1e-5, 0.1, 7)


def test_what_is_said_of_a_row(folder: Path) -> None:
    recipe = load_recipe("mine/small/slower")
    assert recipe.description == "mine, still more slowly"
    assert recipe.notes == ("it takes long",)
    assert load_recipe("mine/slow/plain").notes == ()
    origins = load_recipe("mine/small/slow").origins
    base, mine = str(folder / "base.yaml"), str(folder / "mine.yaml")
    assert origins["batch.size"] == Origin(f"{mine}: small", "very small")
    assert origins["optimizer.weight_decay"] == Origin(base, "from the base")
    assert origins["optimizer.lr"] == Origin(f"{base}: slow", "so slow")
    assert origins["optimizer.gamma"] == Origin(f"{mine}: slow", "")
    assert origins["published"] == Origin(mine, "table 1")


def test_a_row_can_be_inherited_and_so_can_a_family(folder: Path) -> None:
    (folder / "child.yaml").write_text("inherits: mine/small/slow\nrun: {seed: 3}\n")
    child = resolve("child")
    assert (child.batch.size, child.run.seed, child.name) == (8, 3, "child")
    assert child.published["cars196/test"] == {"r@1": 3}
    (folder / "more.yaml").write_text("inherits: mine\nrows: {slow: [7, 8, 9]}\n")
    assert resolve("more/slow").published["sop/test"] == {"r@1": 7, "r@10": 8}
    (folder / "own.yaml").write_text("inherits: sop/vit-b16-in21k/rsk\nbatch: {size: 1000}\n")
    assert (resolve("own").optimizer.lr, resolve("own").batch.size) == (5e-5, 1000)


def test_built_in_names_win_and_are_not_hijacked_by_the_folder_one_is_in(folder: Path) -> None:
    for name in ("glyphs", "sop", "_benchmarks"):
        (folder / f"{name}.yaml").write_text("optimizer: {lr: 77}\nrun: {epochs: 77}\n")
    assert resolve("glyphs").optimizer.lr == 1e-3
    config = resolve("sop/r50-512/rsk")
    assert (config.optimizer.lr, config.optimizer.weight_decay, config.run.epochs) == (2e-4, 4e-4, 55)
    assert resolve("glyphs.yaml").optimizer.lr == 77


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine", "", r"mine is a family of 4 recipes: choose one, such as mine/small/slow"),
        ("mine/small/fast", "", r"there is no recipe 'mine/small/fast'"),
        ("sop/vit-b16/rsk", "", r"Did you mean sop/vit-b16-in21k/rsk\?"),
        ("..", "", "'..' is a folder, not a recipe"),
        ("x/fast", "rows: {fast: null}", "the word 'fast' in the name of a row is not defined"),
        ("x/a", "rows: {a: [1]}\nwords: {a: {run: {seed: 1}}}", "row a has 1 numbers for 0 columns"),
        (
            "x/a",
            "rows: {a: null}\nwords: {a: {like: b}, b: {like: a}}",
            "circular use of 'like' among words: a → b → a",
        ),
        ("x", "rows: [a, b]", r"rows must be .*, but is \['a', 'b'\]"),
    ],
)
def test_what_is_refused(folder: Path, name: str, text: str, message: str) -> None:
    (folder / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_recipe(name)
