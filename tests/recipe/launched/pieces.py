"""A source, and a worker that changes no values."""

from __future__ import annotations

import torch

from meshctl import Batch, Component, endpoint


class Source(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None:
        return Batch({"x": torch.tensor(list(samples))})


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
