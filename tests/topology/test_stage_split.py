"""The layers of pipeline stages, compared with all ways to divide them."""

from __future__ import annotations

from itertools import combinations, pairwise
from random import Random

import pytest

from meshctl.topology.stage_split import bubble, by_cost, by_count, of_counts


def test_the_first_stages_have_one_layer_more() -> None:
    assert [len(own) for own in by_count(10, 4)] == [3, 3, 2, 2]
    assert by_count(4, 2) == (range(0, 2), range(2, 4)) == of_counts([2, 2])


@pytest.mark.parametrize("seed", range(6))
def test_no_other_division_has_a_cheaper_most_expensive_stage(seed: int) -> None:
    random = Random(seed)
    layers, stages, head = random.randint(3, 9), random.randint(1, 3), random.choice([0.0, 1.5, 4.0])
    costs = [random.choice([1.0, 2.0, 3.0]) for _ in range(layers)]

    def most(ranges: tuple[range, ...]) -> float:
        sums = [sum(costs[layer] for layer in own) for own in ranges]
        return max([*sums[:-1], sums[-1] + head])

    found = by_cost(costs, stages, head)
    assert [layer for own in found for layer in own] == [*range(layers)] and all(found)
    every = [(0, *cuts, layers) for cuts in combinations(range(1, layers), stages - 1)]
    divisions = [of_counts([stop - start for start, stop in pairwise(cuts)]) for cuts in every]
    assert most(found) == min(map(most, divisions))


def test_more_micro_batches_and_interleaved_stages_have_a_smaller_bubble() -> None:
    assert bubble(1, 1, 1) == 0
    assert bubble(2, 1, 2) == pytest.approx(1 / 3)
    assert bubble(4, 1, 8) == pytest.approx(3 / 11)
    assert bubble(4, 2, 8) == pytest.approx(3 / 19)
