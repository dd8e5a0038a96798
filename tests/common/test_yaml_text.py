from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from recollect.common.errors import ConfigError
from recollect.common.yaml_text import compose_yaml, parse_yaml, read_yaml

BOMB = "\n".join(["a0: &a0 [1, 2]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))])
MERGES = "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))])


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        MERGES,
        "a: &x [*x]",
        "&x {a: {b: *x}}",
        "[" * 3000,
        "[" * 3000 + "]" * 3000,
        "{a: " * 500,
        "- " * 3000 + "a",
        "0x_",
        "0b_",
        "1" * 5000,
        "0x" + "f" * 5000,
        "!!int x",
        "!!float x",
        "!!bool x",
        "!!timestamp x",
        "!!binary é",
        "!!python/object/apply:os.system [touch run]",
        "{[a]: b}",
        "*absent",
        "a: b: c",
        "\x07",
        "%YAML 9.9\n---\na",
        "--- a\n--- b",
    ],
)
def test_what_is_wrong_or_excessive_is_a_sentence_with_a_place(text: str) -> None:
    for read in (parse_yaml, compose_yaml):
        with pytest.raises(ConfigError, match=r"^there: not valid YAML"):
            read(text, "there")


def test_dates_stay_text() -> None:
    assert parse_yaml("[2020-13-45, 2020-01-31, 2001-12-14t21:59:43.10-05:00]", "") == [
        "2020-13-45",
        "2020-01-31",
        "2001-12-14t21:59:43.10-05:00",
    ]


def test_honest_aliases_are_read() -> None:
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x, d: 2}\ne: [*x, *x]", "") == {
        "a": {"b": 1},
        "c": {"b": 1, "d": 2},
        "e": [{"b": 1}, {"b": 1}],
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_plain_values_are_read_as_pyyaml_reads_them(value: object) -> None:
    text = yaml.safe_dump(value)
    assert parse_yaml(text, "") == yaml.safe_load(text)


@given(st.text(alphabet="&*<:-[]{}!|>'\"#%@`,? \nab01.x_"))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_yaml(text, "there")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: 1")
    assert read_yaml(tmp_path / "a.yaml") == {"a": 1}
    (tmp_path / "a.yaml").write_text("#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="more than"):
        read_yaml(tmp_path / "a.yaml")
    with pytest.raises(ConfigError, match="no such file"):
        read_yaml(tmp_path / "absent.yaml")
