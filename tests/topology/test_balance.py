"""Balanced assignment against pure longest-first scheduling, which assigns one unit at a time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.topology.balance import LIGHT_FRACTION, WINDOW, equal_counts, equal_loads
from tests.examples import examples


def longest_first(weights: Sequence[int], parts: int) -> int:
    """Returns the largest load after assigning each unit, heaviest first, to the part with the smallest
    load."""
    loads = [0] * parts
    for weight in sorted(weights, reverse=True):
        heapq.heapreplace(loads, loads[0] + weight)
    return max(loads)


def loads_of(owner: Sequence[int], weights: Sequence[int], parts: int) -> list[int]:
    loads = [0] * parts
    for part, weight in zip(owner, weights, strict=True):
        loads[part] += weight
    return loads


def log_normal(units: int, seed: int = 0) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]:
    return (1 + numpy.random.default_rng(seed).lognormal(6, 0.8, units)).astype(numpy.int64)


weights = st.lists(st.integers(1, 50) | st.integers(1, 5000), max_size=400)


@settings(max_examples=examples(40, 400))
@given(weights, st.integers(1, 12))
def test_the_largest_load_is_near_that_of_longest_first(weights: list[int], parts: int) -> None:
    owner = equal_loads(numpy.array(weights, numpy.int64), parts).tolist()
    assert len(owner) == len(weights) and all(0 <= part < parts for part in owner)
    largest, bound = max(loads_of(owner, weights, parts)), longest_first(weights, parts)
    assert largest * LIGHT_FRACTION <= bound * (LIGHT_FRACTION + 1) + LIGHT_FRACTION
    assert len(set(owner)) == min(parts, len(weights))  # no part is empty where there are enough units


@settings(max_examples=examples(25, 200))
@given(weights, st.integers(1, 12))
def test_equal_counts_differ_by_one_at_most(weights: list[int], parts: int) -> None:
    owner = equal_counts(numpy.array(weights, numpy.int64), parts).tolist()
    counts = [owner.count(part) for part in range(parts)]
    assert sum(counts) == len(weights) and max(counts) - min(counts) <= 1


@pytest.mark.parametrize("assign", [equal_loads, equal_counts])
def test_samples_without_tokens_are_spread(assign: object) -> None:
    assert callable(assign)
    owner = assign(numpy.zeros(12, numpy.int64), 4).tolist()
    assert [owner.count(part) for part in range(4)] == [3] * 4


@pytest.mark.parametrize("more", [0, 4])
def test_neighbours_stay_together_where_their_loads_are_nearly_equal(more: int) -> None:
    weights = [10, 11] * 128
    weights[-1] += more
    assert equal_loads(numpy.array(weights, numpy.int64), 2).tolist() == [0] * 128 + [1] * 128


@pytest.mark.parametrize("parts", [2, 8, 64, 1000])
def test_many_units_are_within_a_percent_in_few_runs_of_neighbours(parts: int) -> None:
    weights = log_normal(64 * parts)
    owner = equal_loads(weights, parts)
    loads = numpy.bincount(owner, weights, parts)
    assert loads.max() <= 1.01 * loads.mean()
    assert numpy.count_nonzero(numpy.diff(owner)) <= parts * WINDOW
    if parts <= 64:
        weights = log_normal(100_003)
        owner = equal_counts(weights, parts)
        loads = numpy.bincount(owner, weights, parts) / numpy.bincount(owner, minlength=parts)
        assert loads.max() <= 1.001 * loads.mean()
