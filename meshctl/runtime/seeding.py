"""Seeds of the generators that a component may draw from, and what decides the last digits of numbers."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from typing import Any

import torch


def seed_all(*words: Any, device: str) -> None:
    """Seeds the generators of torch, random and, where it is loaded, numpy: equally for equal words, on any
    machine and layout."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "big") >> 1
    random.seed(seed)
    if device == "cpu":
        torch.default_generator.manual_seed(seed)  # torch.manual_seed asks every kind of device: 0.1 ms
    else:
        torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


def arithmetic() -> dict[str, Any]:
    """Returns the version of torch, the instructions of the processor that it uses, and the threads of a
    worker: with the same ones a run on CPU has the same digits."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    return {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(), "threads": threads}
