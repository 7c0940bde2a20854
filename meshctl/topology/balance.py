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

from meshctl.topology.balance_few import LIGHT_FRACTION, WINDOW, lacking_loads

Numbers: TypeAlias = NDArray[numpy.int64]

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
    owner = numpy.empty(len(weights), numpy.int64)
    light: slice | Numbers = slice(None)
    while len(left := weights[light]):
        lacking = numpy.array(lacking_loads(loads.tolist(), int(left.sum())))
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


def _longest_first(weights: Numbers, loads: Numbers) -> Numbers:
    """The part of each unit, where each one, the heaviest first, goes to the part with the smallest load.
    Adds the weights to `loads`.

    Units are dealt in rounds. In a round the heaviest unit goes to the smallest load, the next one to the
    second smallest, and so on while a load is smaller than all those that the round has made. So the result
    is that of dealing units one by one. The smallest load rises by a weight in each round, so the rounds are
    about as many as the units of a part.
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
    """The part of each light unit, in sample order: each part receives neighbours, as many as it lacks, and
    then the boundaries are evened out."""
    sums = numpy.concatenate([[0], weights.cumsum()])
    ends = lacking.cumsum()[:-1]
    cuts = sums.searchsorted(ends, side="right") - 1
    counts = numpy.diff(cuts, prepend=0, append=len(weights))
    owner = numpy.arange(len(lacking)).repeat(counts)
    half = numpy.minimum(numpy.minimum(counts[:-1], counts[1:]) // 2, WINDOW // 2)
    _refine(weights, owner, cuts, half, ends - sums[cuts - half])
    return owner


def _refine(weights: Numbers, owner: Numbers, cuts: Numbers, half: Numbers, left: Numbers) -> None:
    """Deals the units around each boundary again: the heaviest that still fits goes to the part on the left,
    until nothing fits into what that part has `left`."""
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
