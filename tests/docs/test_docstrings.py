"""Every example runs, and public names are typed.

Examples of all modules run in a folder with ``photos`` (8 classes of 5 images) and ``run``, trained on it.
"""

from __future__ import annotations

import doctest
import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import recollect
from test_docs import _folders_the_pages_speak_of

SOURCE = Path(recollect.__file__).parent
MODULES = sorted(
    ".".join(("recollect", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    _folders_the_pages_speak_of(folder)
    settings = {"data.root": str(folder / "photos"), "model.init": "tiny", "batch.size": 8, "run.device": "cpu"}
    recollect.train("folder", folder / "run", settings={**settings, "run.steps": 1, "run.epochs": None})
    return folder


@pytest.fixture
def there(place: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(place)
    yield
    os.chdir(before)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore::recollect.common.errors.DataWarning")
def test_the_examples_of_a_module_run(name: str, there: None) -> None:
    module = importlib.import_module(name)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    message: list[str] = []
    runner = doctest.DocTestRunner(optionflags=options)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(test, out=message.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(message)
