"""Generators are seeded from words: the numbers are those of every earlier version, so that a run resumes."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from meshctl.runtime.seeding import Seeds, seed_all


def drawn() -> tuple[float, float, int]:
    return random.random(), float(numpy.random.rand()), int(torch.randint(1 << 40, ()))


def test_the_numbers_of_a_step_are_those_of_version_14c7d3c() -> None:
    Seeds(0, "actor", "metrics", 1, device="cpu").seed_all(17)
    assert drawn() == (0.19081633218560023, 0.6376165736466765, 982903272515)


@pytest.mark.parametrize("step", [0, 1, 10, 123_456_789])
def test_a_stages_seeds_are_those_of_all_its_words(step: int) -> None:
    Seeds(3, "a'b", "s", 0, device="cpu").seed_all(step)
    found = drawn()
    seed_all(3, "a'b", "s", 0, step, device="cpu")
    assert drawn() == found
    seed_all(3, "a'b", "s", 1, step, device="cpu")
    assert drawn() != found
