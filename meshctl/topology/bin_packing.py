"""Bin packing: searches a distribution of the groups' blocks of devices over gaps, if the groups cannot take
the next free devices in turn.

    item    the request of a group: `count` blocks of `size` consecutive devices, each inside one gap
    gap     consecutive free devices of one node

The search tries larger blocks first, and all distributions of each item. It ends after `MAX_STEPS`, so it is
exact for jobs of some nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from meshctl.dataclass import dataclass

MAX_GAPS = 64
"""The largest number of gaps for which callers search."""
MAX_STEPS = 5000
"""The number of tried distributions after which a search ends without a result."""


@dataclass(frozen=True)
class Item:
    """The request of a group."""

    count: int
    """The number of blocks."""
    size: int
    """The devices of a block."""
    gaps: Collection[int]
    """The numbers of the gaps that it may use."""


Distribution = list[dict[int, int]]
"""For each item: gap -> the number of the item's blocks in this gap."""


def distribute(items: Sequence[Item], sizes: Sequence[int]) -> Distribution | None:
    """Returns a distribution of all items; None if none was found. `sizes` are the devices of the gaps."""
    return _Search(items, sizes).result()


class _Search:
    def __init__(self, items: Sequence[Item], sizes: Sequence[int]) -> None:
        self._items, self._free, self._steps = items, list(sizes), 0
        self._found: Distribution = [{} for _ in items]
        places = range(len(items))
        self._order = sorted(places, key=lambda place: (-items[place].size, len(items[place].gaps)))

    def result(self) -> Distribution | None:
        return self._found if self._place(0) else None

    def _place(self, begin: int) -> bool:
        """Places the items from the position `begin` of the order on. Returns whether that is possible."""
        if not all(self._has_room(place, self._items[place].gaps) for place in self._order[begin:]):
            return False
        if begin == len(self._order):
            return True
        item = self._items[self._order[begin]]
        gaps = sorted(item.gaps, key=lambda gap: (self._free[gap] % item.size, gap))
        return self._fill(begin, gaps, item.count)

    def _has_room(self, place: int, gaps: Collection[int], count: int | None = None) -> bool:
        """Returns whether the gaps hold `count` blocks of an item; all of its blocks if `count` is None."""
        item = self._items[place]
        return sum(self._free[gap] // item.size for gap in gaps) >= (item.count if count is None else count)

    def _fill(self, begin: int, gaps: Sequence[int], count: int) -> bool:
        """Places `count` blocks of an item in these gaps, then the items after it. Returns whether that is
        possible; if not, it places nothing."""
        self._steps += 1
        if not count or self._steps > MAX_STEPS:
            return not count and self._place(begin + 1)
        place, (gap, *others) = self._order[begin], gaps
        size = self._items[place].size
        for here in range(min(count, self._free[gap] // size), -1, -1):
            if not self._has_room(place, others, count - here):
                return False
            self._free[gap] -= here * size
            if self._fill(begin, others, count - here):
                self._found[place][gap] = here
                return True
            self._free[gap] += here * size
        return False
