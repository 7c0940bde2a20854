"""Generators are seeded from words: the numbers are those of every earlier version, so that a run resumes."""

from __future__ import annotations

import random

import numpy
import torch

from meshctl.runtime.seeding import seed_all


def drawn() -> tuple[float, float, int]:
    return random.random(), float(numpy.random.rand()), int(torch.randint(1 << 40, ()))


def test_the_numbers_of_a_step_are_those_of_version_14c7d3c() -> None:
    seed_all(0, "actor", "metrics", 1, 17, device="cpu")
    assert drawn() == (0.19081633218560023, 0.6376165736466765, 982903272515)


def test_each_word_counts() -> None:
    seed_all(3, "a'b", "s", 0, 10, device="cpu")
    found = drawn()
    seed_all(3, "a'b", "s", 1, 10, device="cpu")
    assert drawn() != found
