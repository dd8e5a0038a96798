from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recollect.common.size_groups import SizeGroups, grouped

SIZES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2)), max_size=30)


@given(SIZES, st.integers(1, 5))
def test_groups_hold_every_position_once_and_equal_sizes(sizes: list[tuple[int, int]], batch_size: int) -> None:
    groups = grouped(sizes, batch_size)
    assert sorted(np.concatenate([[], *groups]).tolist()) == list(range(len(sizes)))
    for group in groups:
        assert 1 <= len(group) <= batch_size
        assert group == sorted(group)
        assert len({sizes[position] for position in group}) == 1
    # No more groups than needed, in the order of their first position.
    assert len(groups) == sum(-(-sizes.count(size) // batch_size) for size in set(sizes))
    assert [group[0] for group in groups] == sorted(group[0] for group in groups)


@given(SIZES)
def test_without_a_batch_size_a_size_is_one_group(sizes: list[tuple[int, int]]) -> None:
    assert len(grouped(sizes)) == len(set(sizes))


@given(SIZES, st.integers(1, 4), st.integers(6, 30))
def test_what_waits_is_bounded(sizes: list[tuple[int, int]], room: int, most: int) -> None:
    groups: SizeGroups[tuple[int, int], int] = SizeGroups(lambda size: room, lambda size: size[0] * size[1], most)
    given_out: list[int] = []
    for position, size in enumerate(sizes):
        for group in groups.add(size, position):
            given_out += group
        waiting = [sizes[p] for p in range(position + 1) if p not in given_out]
        assert sum(height * width for height, width in waiting) <= most
    for group in groups.rest():
        given_out += group
    assert sorted(given_out) == list(range(len(sizes)))
