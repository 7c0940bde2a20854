"""Divides the layers of a model over pipeline stages, which are numbered in the order of the layers.

    10 layers, 4 stages                 3 3 2 2
    the same, a head of two layers      3 3 3 1     by cost

The same stages hold the same layers on every rank and in every picture, because all of them call this.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

SPLITS = ("count", "cost")
"""Values of `split`: the numbers of layers differ by at most one, or the most expensive stage is as cheap as
possible."""


def bubble(pp: int, vpp: int, micro_batches: int) -> float:
    """Returns the part of an update in which a pp rank waits, between 0 and 1, if all stages take equally
    long. It is the same for the schedules GPipe and 1F1B. Each rank has `vpp` stages, which are
    interleaved."""
    return (pp - 1) / (micro_batches * vpp + pp - 1)


def by_count(layers: int, stages: int) -> tuple[range, ...]:
    """Returns the layers of each stage. The first stages have one layer more than the others."""
    least, more = divmod(layers, stages)
    return of_counts([least + (stage < more) for stage in range(stages)])


def of_counts(counts: Sequence[int]) -> tuple[range, ...]:
    """Returns the layers of each stage for stages with these numbers of layers."""
    return tuple(range(start, stop) for start, stop in pairwise(accumulate(counts, initial=0)))


def by_cost(costs: Sequence[float], stages: int, head: float = 0.0) -> tuple[range, ...]:
    """Returns the layers of each stage, at least one each, such that the most expensive stage is as cheap as
    possible, and the squares of all costs are small.

    `costs` are those of the layers, and `head` is that of the head, which the last stage has. There are at
    least as many layers as stages.
    """
    sums = [*accumulate(costs, initial=0.0)]
    layers = len(costs)
    best: list[tuple[tuple[float, float], list[int]] | None] = [((0.0, 0.0), []), *[None] * layers]
    for stage in range(1, stages + 1):
        more = head if stage == stages else 0.0
        following: list[tuple[tuple[float, float], list[int]] | None] = [None] * (layers + 1)
        for stop in range(stage, layers - (stages - stage) + 1):
            options = []
            for start in range(stage - 1, stop):
                if before := best[start]:
                    cost = sums[stop] - sums[start] + more
                    (most, squares), counts = before
                    options.append(((max(most, cost), squares + cost**2), [*counts, stop - start]))
            following[stop] = min(options, key=lambda option: option[0])
        best = following
    found = best[layers]
    assert found, "there are fewer layers than stages"
    return of_counts(found[1])
