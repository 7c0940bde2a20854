"""Assigns weighted units to parts so that the parts' loads are nearly equal, in a few passes over arrays.

A unit is a sample, or a group of samples that stays together; its weight is its number of tokens. Every rank
computes the whole assignment alone, so it depends on nothing but the weights: all arithmetic is in integers,
and ties go to the lower index.

Heavy units go, longest first, to the part with the smallest load. What is left is light: each part receives
the next units in order, as many as it lacks, and a few units around each boundary even out its two sides. So
a part consists of few runs of neighbouring samples, of few producers, which are copied as a whole.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias

import numpy
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[numpy.int64]

LIGHT_FRACTION = 16
"""A light unit weighs at most 1/16 of the smallest load that parts are filled up to."""
WINDOW = 16
"""The number of units around a boundary between two parts that even out its two sides."""
MAX_ITEMS = 1 << 13
"""The number of items that equal counts assign one by one; of more units, neighbours form blocks."""
MIN_ITEMS_PER_PART = 4


def equal_loads(weights: Numbers, parts: int) -> Numbers:
    """The part of each unit, for loads as equal as possible.

    The largest load is at most 17/16 of the largest load that pure longest-first scheduling gives, and no
    part stays empty where there are as many units as parts.
    """
    weights = numpy.maximum(weights, 1)
    loads = numpy.zeros(parts, numpy.int64)
    owner = numpy.zeros(len(weights), numpy.int64)
    light = numpy.arange(len(weights))
    while len(light):
        lacking = _lacking(loads, int(weights[light].sum()))
        limit = (loads + lacking).min() // LIGHT_FRACTION
        is_heavy = weights[light] > limit
        if not is_heavy.any():
            break
        _longest_first(weights, light[is_heavy], loads, owner)
        light = light[~is_heavy]
    if len(light):
        neighbours = owner[light]
        _fill(weights[light], loads, neighbours)
        owner[light] = neighbours
    return owner


def equal_counts(weights: Numbers, parts: int) -> Numbers:
    """The part of each unit, where the parts' numbers of units differ by at most one.

    The heaviest item goes to the part with the smallest load that has room for it. An item is a unit, or a
    block of neighbours where there are more than `MAX_ITEMS`; the units that are left over even out what the
    blocks leave.
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


def _lacking(loads: Numbers, amount: int) -> Numbers:
    """How much of `amount` each part receives so that the smallest loads rise to one level."""
    rising = numpy.argsort(loads, kind="stable")
    sums = numpy.cumsum(loads[rising])
    needed = loads[rising] * numpy.arange(1, len(loads) + 1) - sums
    filled = int(numpy.searchsorted(needed, amount, side="right"))
    level, rest = divmod(amount + int(sums[filled - 1]), filled)
    lacking = numpy.zeros(len(loads), numpy.int64)
    lacking[rising[:filled]] = level - loads[rising[:filled]]
    lacking[rising[:rest]] += 1
    return lacking


def _longest_first(weights: Numbers, units: Numbers, loads: Numbers, owner: Numbers) -> None:
    """Gives each unit, the heaviest first, to the part with the smallest load."""
    heap = [(load, part) for part, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    falling = units[numpy.argsort(-weights[units], kind="stable")]
    for unit, weight in zip(falling.tolist(), weights[falling].tolist(), strict=True):
        load, part = heap[0]
        owner[unit] = part
        heapq.heapreplace(heap, (load + weight, part))
    for load, part in heap:
        loads[part] = load


def _fill(weights: Numbers, loads: Numbers, owner: Numbers) -> None:
    """Gives neighbouring units to each part, as many as it lacks, and then evens out the boundaries.

    `weights` and `owner` are those of the light units, in sample order.
    """
    sums = numpy.concatenate([[0], numpy.cumsum(weights)])
    ends = numpy.cumsum(_lacking(loads, int(sums[-1])))[:-1]
    cuts = numpy.searchsorted(sums, ends, side="right") - 1
    owner[:] = numpy.searchsorted(cuts, numpy.arange(len(weights)), side="right")
    before = numpy.diff(cuts, prepend=0)
    after = numpy.diff(cuts, append=len(weights))
    half = numpy.minimum(numpy.minimum(before, after) // 2, WINDOW // 2)
    _refine(weights, owner, cuts, half, ends - sums[cuts - half])


def _refine(weights: Numbers, owner: Numbers, cuts: Numbers, half: Numbers, left: Numbers) -> None:
    """Deals the units around each boundary again: the heaviest that still fits goes to the part on the left,
    until nothing fits into what that part has `left`."""
    offsets = numpy.arange(-(WINDOW // 2), WINDOW // 2)
    is_inside = (offsets >= -half[:, None]) & (offsets < half[:, None])
    units = numpy.where(is_inside, cuts[:, None] + offsets, 0)
    window = numpy.where(is_inside, weights[units], 0)
    falling = numpy.argsort(-window, axis=1, kind="stable")
    boundary = numpy.arange(len(cuts))
    goes_right = numpy.ones(window.shape, bool)
    for column in falling.T:
        weight = window[boundary, column]
        fits = weight <= left
        goes_right[boundary, column] = ~fits
        left = left - numpy.where(fits, weight, 0)
    owner[units[is_inside]] = (boundary[:, None] + goes_right)[is_inside]


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
