"""Assigns weighted units to parts so that the parts' loads are nearly equal, in a few passes over arrays.

A unit is a sample, or a group of samples that stays together; its weight is its number of tokens. Every rank
computes the whole assignment alone, so it depends on nothing but the weights: all arithmetic is in integers,
and ties go to the lower index.

Heavy units go, longest first, to the part with the smallest load. What is left is light: neighbouring units
fill what each part lacks, first most of them, and then the lightest ones, which even out what the first pass
left. So a part consists of few runs of neighbouring samples, which are copied as a whole.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias

import numpy
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[numpy.int64]

LIGHT_FRACTION = 16
"""A light unit weighs at most 1/16 of the smallest load that parts are filled up to."""
RESERVED_FRACTION = 8
MAX_RESERVED_PER_PART = 64
"""The second pass has the lightest units: one of 8, and at most so many for each part."""
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
    for units in _coarse_and_fine(weights, light, parts):
        _fill(weights, units, loads, owner)
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


def _coarse_and_fine(weights: Numbers, light: Numbers, parts: int) -> tuple[Numbers, Numbers]:
    """Most of the light units in sample order, and the lightest ones, the heaviest of them first."""
    reserved = min(len(light) // RESERVED_FRACTION, MAX_RESERVED_PER_PART * parts)
    if not reserved:
        return light, light[:0]
    keys = weights[light] * len(light) + numpy.arange(len(light))
    is_fine = keys < numpy.partition(keys, reserved)[reserved]
    fine = light[is_fine]
    return light[~is_fine], fine[numpy.argsort(-weights[fine], kind="stable")]


def _fill(weights: Numbers, units: Numbers, loads: Numbers, owner: Numbers) -> None:
    """Gives each part the next units in order, as many as it lacks: a unit goes to the part in whose span of
    the running total its middle lies."""
    if not len(units):
        return
    sums = numpy.cumsum(weights[units])
    ends = numpy.cumsum(_lacking(loads, int(sums[-1])))
    middles = sums - weights[units] // 2 - 1
    part = numpy.searchsorted(ends, middles, side="right")
    owner[units] = part
    numpy.add.at(loads, part, weights[units])


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
