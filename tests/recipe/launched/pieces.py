"""The components of the generated recipes in `test_validate_is_launch.py`. Their values have the annotated
types."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshctl import Batch, Component, endpoint


class Source(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None:
        return Batch({"x": torch.tensor(list(samples))})


class Limited(Source):
    """A source that knows its length."""

    def __init__(self, length: int = 100) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


class Worker(Component):
    def __init__(self, width: int = 2) -> None:
        self.width = width

    @endpoint
    def take(self, batch: Batch) -> Batch:
        return Batch({"x": batch["x"]})

    @endpoint
    def thrice(self, batch: Batch) -> Batch:
        return batch.repeat(3)

    @endpoint
    def pair(self, one: Batch, other: Batch) -> Batch:
        return Batch({"x": one["x"]})

    @endpoint
    def also(self, one: Batch, other: Any) -> Batch:
        return Batch({"x": one["x"]})

    @endpoint(collect="mean")
    def loss(self, batch: Batch) -> dict[str, float]:
        return {"x": float(batch["x"].float().mean()) if len(batch) else 0.0}

    def weights(self) -> dict[str, Tensor]:
        return {"w": torch.zeros(4)}

    def load_weights(self, stream: Any) -> None:
        for _ in stream:
            pass
