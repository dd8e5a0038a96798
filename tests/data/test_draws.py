from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from recollect.data.transforms import occurrences, uniforms


def test_values_never_change() -> None:
    """Pinned: other values would change the augmentation of every saved run."""
    found = uniforms(3, 2, 1, np.array([10, 11]), np.array([0, 1]), 2)
    golden = [[0.5868287652147531, 0.6811320455498124], [0.9244230240536899, 0.2463895937856564]]
    np.testing.assert_array_equal(found, golden)


def plain(seed: int, epoch: int, batch: int, index: int, occurrence: int, count: int) -> list[float]:
    """The definition in Python's own integers: a chain of splitmix64 steps, then one word a number."""
    golden, mask = 0x9E3779B97F4A7C15, 2**64 - 1

    def mix(value: int) -> int:
        value = (value + golden) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    key = seed
    for part in (epoch, batch, index, occurrence):
        key = (mix(key) + part) & mask
    return [(mix((mix(key) + step * golden) & mask) >> 11) * 2.0**-53 for step in range(1, count + 1)]


@given(
    st.integers(0, 2**40),
    st.integers(0, 999),
    st.integers(0, 9999),
    st.integers(0, 2**40),
    st.integers(0, 9),
    st.integers(0, 30),
)
def test_equal_to_the_definition(seed: int, epoch: int, batch: int, index: int, occurrence: int, count: int) -> None:
    found = uniforms(seed, epoch, batch, np.array([index]), np.array([occurrence]), count)
    assert found[0].tolist() == plain(seed, epoch, batch, index, occurrence, count)


def test_uniform_and_unrelated() -> None:
    indices = np.arange(20_000)
    zero = np.zeros_like(indices)
    rows = [
        uniforms(0, 0, 0, indices, zero, 4),
        uniforms(0, 0, 1, indices, zero, 4),
        uniforms(0, 1, 0, indices, zero, 4),
        uniforms(1, 0, 0, indices, zero, 4),
        uniforms(0, 0, 0, indices, zero + 1, 4),
        uniforms(0, 0, 0, indices + 1, zero, 4),
    ]
    columns = np.concatenate(rows, axis=1)
    assert 0 <= columns.min() < 0.001
    assert 0.999 < columns.max() < 1
    for column in columns.T:
        counts = np.histogram(column, 20, (0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 55  # 19 degrees of freedom
    correlation = np.corrcoef(columns.T) - np.eye(24)
    assert np.abs(correlation).max() < 0.03  # 4 standard errors


@given(st.lists(st.integers(0, 5), max_size=20))
def test_occurrences_count_earlier_equals(values: list[int]) -> None:
    expected = [values[:position].count(value) for position, value in enumerate(values)]
    assert occurrences(np.array(values, dtype=np.int64)).tolist() == expected
