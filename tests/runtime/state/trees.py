"""Random states, and whether two states are exactly equal."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAVES: dict[str, Callable[[Random], Any]] = {
    "int": lambda chance: chance.getrandbits(80),
    "float": lambda chance: chance.uniform(-1e300, 1e300),
    "text": lambda chance: f"text {chance.getrandbits(64)}",
    "bytes": lambda chance: chance.randbytes(9),
    "tuple": lambda chance: (chance.getrandbits(64), (None, True)),
    "list": lambda chance: [chance.getrandbits(64) for _ in range(chance.randrange(1, 4))],
    "set": lambda chance: {chance.getrandbits(64), "a"},
    "counter": lambda chance: Counter({"a": chance.getrandbits(64)}),
    "deque": lambda chance: deque([chance.getrandbits(64)], maxlen=2),
    "rng": lambda chance: Random(chance.getrandbits(32)).getstate(),
    "generator": lambda chance: torch.Generator().manual_seed(chance.getrandbits(60)).get_state(),
    "nan": lambda chance: [math.nan, -0.0, chance.getrandbits(64)],
    "tensor": lambda chance: torch.tensor([chance.uniform(-9, 9) for _ in range(chance.randrange(1, 5))]),
    "scalar": lambda chance: torch.tensor(chance.getrandbits(60)),
    "nan tensor": lambda chance: torch.tensor([math.nan, chance.uniform(-9, 9)]),
    "half": lambda chance: torch.tensor([[chance.getrandbits(15)]]).to(torch.int16).view(torch.bfloat16),
    "array": lambda chance: np.array([[chance.getrandbits(60)]], dtype=np.uint64),
    "tensors": lambda chance: [torch.tensor(chance.getrandbits(60)), {"n": 1}, (torch.zeros(0),)],
}
"""Name -> a function that returns a value. Values of different seeds differ."""


def same(one: object, other: object) -> bool:
    """Whether two states are equal in every type, key, order of keys and bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(
            same(key, other_key) and same(value, other_value)
            for (key, value), (other_key, other_value) in pairs
        )
    if isinstance(one, (list, tuple, deque)) and isinstance(other, (list, tuple, deque)):
        items = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(item, other_item) for item, other_item in items)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (one, math.copysign(1, one)) == (
            other,
            math.copysign(1, other),
        )
    return bool(one == other)


def nested(seed: int, leaves: dict[int, Any]) -> dict[Any, Any]:
    """Returns a dict with the numbered leaves, some of them in inner dicts and lists. The place of a leaf
    depends on the seed and its number only."""
    state: dict[Any, Any] = {}
    for number, value in leaves.items():
        place = Random(f"{seed} {number}").randrange(5)
        if place == 0:
            state[number] = value
        elif place == 1:
            state.setdefault("inner", OrderedDict())[f"leaf {number}"] = value
        elif place == 2:
            state[f"list.{number}"] = [value, {"last": number}]
        elif place == 3:
            state.setdefault("deep", {}).setdefault("deeper", {})[("key", number)] = value
        else:
            state[f"leaf@{number}"] = value
    return state
