from __future__ import annotations

from pathlib import Path

import pytest

from recollect.common.caches import UNKNOWN, second_level_bytes


def _machine(root: Path, *caches: tuple[str, str, str]) -> Path:
    for number, (level, size, shared) in enumerate(caches):
        folder = root / f"sys/devices/system/cpu/cpu0/cache/index{number}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(value + "\n")
    return root


@pytest.mark.parametrize(
    ("size", "shared", "expected"),
    [
        ("1024K", "0", 2**20),
        ("2M", "0", 2**21),
        ("4096K", "0-3", 2**20),
        ("2048K", "0,32", 2**20),
        ("524288", "0", 2**19),
    ],
)
def test_share_of_one_core(tmp_path, size, shared, expected):
    machine = _machine(tmp_path, ("1", "32K", "0"), ("2", size, shared), ("3", "32768K", "0-7"))
    assert second_level_bytes(machine) == expected


@pytest.mark.parametrize(
    "caches", [(), (("1", "32K", "0"),), (("2", "lots", "0"),), (("2", "0K", "0"),), (("2", "1M", "x"),)]
)
def test_unknown(tmp_path, caches):
    assert second_level_bytes(_machine(tmp_path, *caches)) == UNKNOWN


def test_this_machine():
    assert second_level_bytes() >= 2**15
