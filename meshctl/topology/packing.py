"""Searches a distribution of equal blocks of devices over gaps, where taking the next free ones has failed.

    item    the request of a group: `count` blocks of `size` consecutive devices, each inside one gap
    gap     consecutive free devices of one node

The search tries larger blocks first, and all distributions of each item. It ends after `MAX_STEPS`, so it is
exact for jobs of some nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshctl.dataclass import dataclass

MAX_GAPS = 64
MAX_STEPS = 5000


@dataclass(frozen=True)
class Item:
    count: int
    size: int
    gaps: Collection[int]
    """The numbers of the gaps that it may use."""


Packed = list[dict[int, int]]
"""By item: gap -> the number of its blocks there."""


def packed(items: Sequence[Item], sizes: Sequence[int]) -> Packed | None:
    """Returns a distribution of all items; None if none was found. `sizes` are the devices of the gaps."""
    return _Search(items, sizes).result()


class _Search:
    def __init__(self, items: Sequence[Item], sizes: Sequence[int]) -> None:
        self._items, self._free, self._steps = items, list(sizes), 0
        self._found: Packed = [{} for _ in items]
        places = range(len(items))
        self._order = sorted(places, key=lambda place: (-items[place].size, len(items[place].gaps)))

    def result(self) -> Packed | None:
        return self._found if self._is_placed(0) else None

    def _is_placed(self, begin: int) -> bool:
        """Places the items from a position in the order on. Returns whether that is possible."""
        if not all(self._room(place, self._items[place].gaps) for place in self._order[begin:]):
            return False
        if begin == len(self._order):
            return True
        item = self._items[self._order[begin]]
        gaps = sorted(item.gaps, key=lambda gap: (self._free[gap] % item.size, gap))
        return self._is_filled(begin, gaps, item.count)

    def _room(self, place: int, gaps: Collection[int], count: int | None = None) -> bool:
        """Returns whether the gaps hold so many blocks of an item, or all of them."""
        item = self._items[place]
        return sum(self._free[gap] // item.size for gap in gaps) >= (item.count if count is None else count)

    def _is_filled(self, begin: int, gaps: Sequence[int], count: int) -> bool:
        """Places `count` blocks of an item in these gaps, and then the items after it."""
        self._steps += 1
        if not count or self._steps > MAX_STEPS:
            return not count and self._is_placed(begin + 1)
        place, (gap, *others) = self._order[begin], gaps
        size = self._items[place].size
        for here in range(min(count, self._free[gap] // size), -1, -1):
            if not self._room(place, others, count - here):
                return False
            self._free[gap] -= here * size
            if self._is_filled(begin, others, count - here):
                self._found[place][gap] = here
                return True
            self._free[gap] += here * size
        return False
