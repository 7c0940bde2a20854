"""Seeds of the generators that a component may draw from."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


class Seeds:
    """The seeds of one stage. Those of a step are equal for equal `words`, on any machine and layout."""

    def __init__(self, *words: Any, device: str) -> None:
        self._is_cpu = device == "cpu"
        self._hash = hashlib.blake2b(repr(words)[:-1].encode() + b", ", digest_size=8)

    def seed_all(self, step: int, pass_number: int = 0) -> None:
        """Seeds the generators of torch, random and, where it is loaded, numpy, for a step, and in a block
        for a pass of it; passes count from 1."""
        hashed = self._hash.copy()
        hashed.update(b"%d, %d)" % (step, pass_number) if pass_number else b"%d)" % step)
        _seed_all(hashed.digest(), self._is_cpu)


def seed_all(*words: Any, device: str) -> None:
    """Seeds the generators of torch, random and, where it is loaded, numpy: equally for equal words, on any
    machine and layout."""
    _seed_all(hashlib.blake2b(repr(words).encode(), digest_size=8).digest(), device == "cpu")


def _seed_all(digest: bytes, is_cpu: bool) -> None:
    seed = int.from_bytes(digest, "big") >> 1
    random.seed(seed)
    if is_cpu:
        torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every kind of device: 0.1 ms
    else:
        torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
