"""The assignment of `balance.equal_loads` in plain Python, for some hundred weighted units.

For a small batch this is faster: the fifty numpy calls of `balance` take longer than the whole step.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import add

LIGHT_FRACTION = 16
"""A light unit weighs at most 1 / `LIGHT_FRACTION` of the smallest load that any part has in the end."""
EVEN_FRACTION = 256
"""A boundary between two parts stays where it is if the units before it miss their common level by at most
1 / `EVEN_FRACTION` of the light units of a part."""
WINDOW = 16
"""The number of units around a boundary between two parts that are assigned again to even out their loads."""


def equal_loads_of_few(weights: Sequence[int], parts: int) -> list[int]:
    """Returns the part of each unit, with the same result as `balance.equal_loads`."""
    loads, left = [0] * parts, list(weights)
    if min(left, default=1) < 1:
        left = [max(weight, 1) for weight in left]
    rounds: list[list[tuple[int, int]]] = []
    """(unit, part) of the heavy units of each round. Units are numbered without those of earlier rounds."""
    owner: list[int] = []
    while left:
        lacking = lacking_loads(loads, sum(left))
        limit = min(map(add, loads, lacking)) // LIGHT_FRACTION
        if max(left) <= limit:
            owner = _filled(left, lacking)
            break
        heavy = [unit for unit, weight in enumerate(left) if weight > limit]
        rounds.append(_longest_first(left, heavy, loads))
        for unit in reversed(heavy):
            del left[unit]
    for assigned in reversed(rounds):
        for unit, part in assigned:
            owner.insert(unit, part)
    return owner


def lacking_loads(loads: Sequence[int], amount: int) -> list[int]:
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


def _longest_first(weights: Sequence[int], units: Sequence[int], loads: list[int]) -> list[tuple[int, int]]:
    """Assigns units, heaviest first, to the part with the smallest load. Changes `loads`, and returns (unit,
    part) of each unit, in the order of units."""
    heap = [(load, part) for part, load in enumerate(loads)]
    heapq.heapify(heap)
    assigned: list[tuple[int, int]] = []
    for unit in sorted(units, key=weights.__getitem__, reverse=True):
        load, part = heap[0]
        assigned.append((unit, part))
        heapq.heapreplace(heap, (load + weights[unit], part))
    for load, part in heap:
        loads[part] = load
    return sorted(assigned)


def _filled(weights: Sequence[int], lacking: Sequence[int]) -> list[int]:
    """Returns the part of each light unit: each part receives neighbours of about the weight that it lacks.
    The units around a boundary that is not even enough are then assigned again: heaviest first, a unit goes
    to the part on the left if that part still lacks its weight."""
    sums = list(accumulate(weights, initial=0))
    ends = list(accumulate(lacking))
    even = sums[-1] // (EVEN_FRACTION * len(lacking))
    cuts = [0, *[_nearest(sums, end) for end in ends[:-1]], len(weights)]
    owner: list[int] = []
    for part, (start, stop) in enumerate(pairwise(cuts)):
        owner += [part] * (stop - start)
    for part, (start, cut, stop) in enumerate(zip(cuts, cuts[1:], cuts[2:], strict=False)):
        if abs(sums[cut] - ends[part]) <= even:
            continue
        half = min((cut - start) // 2, (stop - cut) // 2, WINDOW // 2)
        left = ends[part] - sums[cut - half]
        around = range(cut - half, cut + half)
        for unit in sorted(around, key=weights.__getitem__, reverse=True):
            fits = weights[unit] <= left
            owner[unit] = part if fits else part + 1
            left -= weights[unit] if fits else 0
    return owner


def _nearest(sums: Sequence[int], end: int) -> int:
    """Returns the index of the sum that is nearest to `end`, the lower one of two. `sums` are rising."""
    cut = bisect_right(sums, end) - 1
    return cut + (cut + 1 < len(sums) and sums[cut + 1] - end < end - sums[cut])
