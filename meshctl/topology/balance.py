"""Assigns weighted units to parts so that the parts' loads are nearly equal, in a few passes over arrays.

A unit is a sample, or a group of samples that stays together; its weight is its number of tokens. Every rank
computes the whole assignment alone, so it depends on nothing but the weights: all arithmetic is in integers,
and ties go to the lower index.

Heavy units go, heaviest first, to the part with the smallest load. The other units are light. They are
assigned in sample order: each part receives the next units until its load is nearest to the common level.
Where that is not near enough, a few units around the boundary between two parts are exchanged to even out the
loads of these parts. So a part consists of few runs of neighbouring samples from few producers, and each run
is copied as a whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TypeAlias

import numpy
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[numpy.int64]

LIGHT_FRACTION = 16
"""A light unit weighs at most 1 / `LIGHT_FRACTION` of the smallest load that any part has in the end."""
EVEN_FRACTION = 256
"""A boundary between two parts stays where it is if the units before it miss their common level by at most
1 / `EVEN_FRACTION` of the light units of a part."""
WINDOW = 16
"""The number of units around a boundary between two parts that are assigned again to even out their loads."""
MAX_ITEMS = 1 << 13
"""The approximate number of items that `equal_counts` assigns. Of more units, neighbours form blocks."""
MIN_ITEMS_PER_PART = 4
"""The number of items for each part, where this makes more than `MAX_ITEMS`."""


def equal_loads(weights: Numbers, parts: int) -> Numbers:
    """The part of each unit, for loads as equal as possible.

    The largest load is at most 17/16 of the largest load that pure longest-first scheduling gives, and no
    part stays empty if there are as many units as parts.
    """
    weights = numpy.maximum(weights, 1)
    loads = numpy.zeros(parts, numpy.int64)
    owner = numpy.empty(len(weights), numpy.int64)
    light: slice | Numbers = slice(None)
    while len(left := weights[light]):
        lacking = numpy.array(_lacking_loads(loads.tolist(), int(left.sum())))
        is_heavy = left > (loads + lacking).min() // LIGHT_FRACTION
        if not is_heavy.any():
            owner[light] = _fill(left, lacking)
            break
        units = numpy.arange(len(weights))[light]
        owner[units[is_heavy]] = _longest_first(left[is_heavy], loads)
        light = units[~is_heavy]
    return owner


def equal_counts(weights: Numbers, parts: int) -> Numbers:
    """The part of each unit, where the parts' numbers of units differ by at most one.

    Items go, heaviest first, to the part with the smallest load that may have one more. An item is a unit, or
    where there are many units a block of neighbours. The units that remain after the blocks are assigned in
    smaller blocks, then one by one, which evens out the loads.
    """
    loads = numpy.zeros(parts, numpy.int64)
    owner = numpy.zeros(len(weights), numpy.int64)
    first = 0
    while first < len(weights):
        left = len(weights) - first
        block = max(1, left // max(MAX_ITEMS, MIN_ITEMS_PER_PART * parts))
        count = left if block == 1 else (left // (block * parts) - 1) * parts
        stop = first + count * block
        items = weights[first:stop].reshape(count, block).sum(1)
        owner[first:stop] = numpy.repeat(_capped_longest_first(items, loads), block)
        first = stop
    return owner


def _lacking_loads(loads: Sequence[int], amount: int) -> list[int]:
    """Distributes `amount` so that the smallest loads rise to a common level. Returns the addition to each
    load."""
    rising = sorted(range(len(loads)), key=loads.__getitem__)
    count = total = 0
    for part in rising:
        if loads[part] * count - total > amount:
            break
        count, total = count + 1, total + loads[part]
    level, rest = divmod(amount + total, count)
    lacking = [0] * len(loads)
    for number, part in enumerate(rising[:count]):
        lacking[part] = level - loads[part] + (number < rest)
    return lacking


def _longest_first(weights: Numbers, loads: Numbers) -> Numbers:
    """The part of each unit, where units go, heaviest first, to the part with the smallest load. Adds the
    weights to `loads`.

    Units are assigned in rounds. In a round the heaviest unit goes to the smallest load, the next unit to the
    second smallest, and so on, as long as the next load is smaller than all loads that the round has raised.
    So the result is the same as that of assigning units one by one, and the number of rounds is about the
    number of units of a part.
    """
    falling = (-weights).argsort(kind="stable")
    dealt = numpy.empty(len(weights), numpy.int64)
    first = 0
    while first < len(weights):
        parts = loads.argsort(kind="stable")[: len(weights) - first]
        before = loads[parts]
        after = before + weights[falling[first : first + len(parts)]]
        is_smallest = before[1:] < numpy.minimum.accumulate(after)[:-1]
        count = len(parts) if is_smallest.all() else 1 + int(is_smallest.argmin())
        dealt[first : first + count] = parts[:count]
        loads[parts[:count]] = after[:count]
        first += count
    owner = numpy.empty(len(weights), numpy.int64)
    owner[falling] = dealt
    return owner


def _fill(weights: Numbers, lacking: Numbers) -> Numbers:
    """The part of each light unit, in sample order: each part receives neighbouring units of about the weight
    that it lacks, then `_refine` evens out the boundaries whose loads differ too much."""
    sums = numpy.concatenate([[0], weights.cumsum()])
    ends = lacking.cumsum()[:-1]
    cuts = sums.searchsorted(ends, side="right") - 1
    above = sums[numpy.minimum(cuts + 1, len(weights))] - ends
    cuts += above < ends - sums[cuts]
    counts = numpy.diff(cuts, prepend=0, append=len(weights))
    owner = numpy.arange(len(lacking)).repeat(counts)
    half = numpy.minimum(numpy.minimum(counts[:-1], counts[1:]) // 2, WINDOW // 2)
    half[abs(sums[cuts] - ends) <= sums[-1] // (EVEN_FRACTION * len(lacking))] = 0
    if half.any():
        _refine(weights, owner, cuts, half, ends - sums[cuts - half])
    return owner


def _refine(weights: Numbers, owner: Numbers, cuts: Numbers, half: Numbers, left: Numbers) -> None:
    """Changes the `owner` of the units around each boundary between two parts. Heaviest first, a unit goes to
    the part on the left if that part still lacks its weight, and to the part on the right otherwise.

    Per boundary, `cuts` has the first unit to its right, `half` the number of units on each side that are
    assigned again, and `left` the weight that the part on the left lacks without these units.
    """
    offsets = numpy.arange(-(WINDOW // 2), WINDOW // 2)
    is_inside = (offsets >= -half[:, None]) & (offsets < half[:, None])
    units = numpy.where(is_inside, cuts[:, None] + offsets, 0)
    window = weights[units] * is_inside
    order = (-window).argsort(axis=1, kind="stable")
    falling = numpy.take_along_axis(window, order, 1).T.copy()
    is_right = numpy.empty_like(falling)
    for weight, goes_right in zip(falling, is_right, strict=True):
        goes_right[:] = weight > left
        left = left - weight * (1 - goes_right)
    moved = numpy.empty_like(window)
    numpy.put_along_axis(moved, order, is_right.T, 1)
    moved += numpy.arange(len(cuts))[:, None]
    owner[units[is_inside]] = moved[is_inside]


def _capped_longest_first(items: Numbers, loads: Numbers) -> Numbers:
    """The part of each item, where the parts' numbers of items differ by at most one."""
    each, more = divmod(len(items), len(loads))
    heap = [(load, 0, part) for part, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    owner = numpy.empty(len(items), numpy.int64)
    falling = numpy.argsort(-items, kind="stable")
    for item, weight in zip(falling.tolist(), items[falling].tolist(), strict=True):
        load, count, part = heap[0]
        while count >= each + (more > 0):  # it stays full: `more` only falls
            heapq.heappop(heap)
            load, count, part = heap[0]
        more -= count == each
        owner[item] = part
        heapq.heapreplace(heap, (load + weight, count + 1, part))
    numpy.add.at(loads, owner, items)
    return owner
