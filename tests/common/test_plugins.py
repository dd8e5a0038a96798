"""References to things outside the package: found, refused with a reason, remembered by content."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from recollect.common import plugins
from recollect.common.errors import ConfigError, DataError

CODE = """
class MyLoss:
    def __init__(self, margin, scale=2.0):
        self.margin, self.scale = margin, scale
    class Inner:
        pass
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_loss.py"
    path.write_text(CODE)
    return path


def test_a_file_and_a_module(file: Path) -> None:
    loaded = plugins.load("loss", f"{file}:MyLoss")
    assert loaded.target(margin=1).scale == 2.0
    assert loaded.file == file.resolve()
    assert plugins.load("loss", f"{file}:MyLoss").target is loaded.target
    assert plugins.load("loss", f"{file}:MyLoss.Inner").target is loaded.target.Inner
    assert plugins.load("loss", "collections:OrderedDict").target({"a": 1}) == {"a": 1}


def test_a_changed_file_is_read_again_and_said_to_have_changed(file: Path) -> None:
    before = plugins.load("loss", f"{file}:MyLoss")
    assert plugins.changed_code([before.as_dict()], [before]) == []
    file.write_text(CODE.replace("2.0", "3.0"))
    after = plugins.load("loss", f"{file}:MyLoss")
    assert after.target(margin=1).scale == 3.0
    (message,) = plugins.changed_code([before.as_dict()], [after])
    assert "my_loss.py:MyLoss has changed" in message
    assert "was not when the run began" in plugins.changed_code([], [after])[0]
    assert str(file.parent) not in str(after.as_dict())


def test_what_lies_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "beside_it_lies.py").write_text("VALUE = 7\n")
    (tmp_path / "one.py").write_text("from beside_it_lies import VALUE\n")
    assert plugins.load("metric", f"{tmp_path / 'one.py'}:VALUE").target == 7


@pytest.mark.parametrize(
    ("code", "attribute", "words"),
    [
        (CODE, "MyLos", ("has no 'MyLos'", "Did you mean MyLoss?")),
        ("\n1 / 0", "MyLoss", ("cannot be imported", "ZeroDivisionError", "(bad.py, line 2)")),
        ("import sys; sys.exit('bye')", "MyLoss", ("cannot be imported", "SystemExit: bye")),
        ("def (", "MyLoss", ("cannot be imported", "SyntaxError")),
        ("import nothing_of_that_name", "MyLoss", ("cannot be imported", "nothing_of_that_name")),
    ],
)
def test_trouble_is_a_sentence(tmp_path: Path, code: str, attribute: str, words: tuple[str, ...]) -> None:
    path = tmp_path / "bad.py"
    path.write_text(code)
    with pytest.raises(ConfigError) as caught:
        plugins.load("loss", f"{path}:{attribute}")
    assert all(word in str(caught.value) for word in ("loss", *words))


def test_a_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console script has no current folder on ``sys.path``, ``python -m`` has."""
    (tmp_path / "own_tools").mkdir()
    (tmp_path / "own_tools" / "losses.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    before = list(sys.path)
    loaded = plugins.load("loss", "own_tools.losses:MyLoss")
    assert loaded.file == tmp_path / "own_tools" / "losses.py"
    assert sys.path == before


def test_code_that_fails_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import json\n\ndef make(text):\n    return json.loads(text)\n")
    make = plugins.load("data set", f"{path}:make").target
    message = r"^data set 'mine' fails: JSONDecodeError: .* \(mine.py, line 4\)\.$"
    with pytest.raises(ConfigError, match=message), plugins.errors_as_config("data set 'mine'"):
        make("{")
    with pytest.raises(DataError, match="as it is"), plugins.errors_as_config("data set 'mine'"):
        raise DataError("as it is")
    with pytest.raises(KeyboardInterrupt), plugins.errors_as_config("data set 'mine'"):
        raise KeyboardInterrupt
