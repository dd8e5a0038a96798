"""Groups images of equal size into batches, for images that keep their own sizes.

``SizeGroups`` takes items one by one and returns a group when it is full; ``grouped`` does so for a whole list. The
pipeline, ``Embedder.forward`` and ``Embedder.embed`` use them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Size = TypeVar("Size", bound=Hashable)
Item = TypeVar("Item")


class SizeGroups(Generic[Size, Item]):
    """Items waiting for a group of their size.

    Args:
        room: how many items of a size make a group.
        cost: the cost of a waiting item of a size.
        most: the largest total cost of waiting items; beyond it the fullest group is returned, so that many sizes with
            few items each stay within bounds. None for no limit.

    Examples:
        >>> groups = SizeGroups(lambda size: 2)
        >>> [group for size, item in (("a", 1), ("b", 2), ("a", 3)) for group in groups.add(size, item)]
        [[1, 3]]
        >>> list(groups.rest())
        [[2]]
    """

    def __init__(
        self,
        room: Callable[[Size], int],
        cost: Callable[[Size], int] = lambda size: 1,
        most: int | None = None,
    ) -> None:
        self._room, self._cost, self._most = room, cost, most
        self._waiting: dict[Size, list[Item]] = {}
        self._held = 0

    def add(self, size: Size, item: Item) -> Iterator[list[Item]]:
        """Add one item; yields every group that is now complete."""
        self._waiting.setdefault(size, []).append(item)
        self._held += self._cost(size)
        if len(self._waiting[size]) >= self._room(size):
            yield self._take(size)
        elif self._most is not None and self._held > self._most:
            yield self._take(max(self._waiting, key=lambda other: len(self._waiting[other])))

    def rest(self) -> Iterator[list[Item]]:
        """The remaining items, in the order in which sizes appeared."""
        for size in list(self._waiting):
            yield self._take(size)

    def _take(self, size: Size) -> list[Item]:
        taken = self._waiting.pop(size)
        self._held -= len(taken) * self._cost(size)
        return taken


def grouped(sizes: Iterable[Hashable], batch_size: int | None = None) -> list[list[int]]:
    """Groups of positions with equal size, at most ``batch_size`` each, in the order of their first position.

    Examples:
        >>> grouped([(2, 3), (3, 2), (2, 3), (2, 3)], 2)
        [[0, 2], [1], [3]]
    """
    groups: SizeGroups[Hashable, int] = SizeGroups(lambda size: batch_size or 2**62)
    found = [group for position, size in enumerate(sizes) for group in groups.add(size, position)]
    return sorted([*found, *groups.rest()])
