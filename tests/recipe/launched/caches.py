"""The components of the generated recipes in `test_home.py`. A worker keeps the samples that it produced, and
expects them again."""

from __future__ import annotations

import torch

from meshctl import Batch, Component, endpoint

HELD: dict[int, set[int]] = {}
"""Rank in the only group -> the samples that it produced."""


class Source(Component):
    @endpoint
    def next(self, samples: range) -> Batch | None:
        return Batch({"x": torch.tensor(list(samples))})


class Cache(Component):
    @endpoint
    def fill(self, batch: Batch) -> Batch:
        HELD.setdefault(self.rank, set()).update(batch["x"].tolist())
        return Batch({"x": batch["x"]})

    @endpoint
    def change(self, batch: Batch) -> Batch:
        return Batch({"x": batch["x"]})

    @endpoint(collect="mean")
    def loss(self, batch: Batch) -> dict[str, float]:
        return {"x": float(len(batch))}

    @endpoint
    def look(self, batch: Batch, loss: float | None = None) -> Batch:
        if lost := set(batch["x"].tolist()) - HELD.get(self.rank, set()):
            raise LookupError(f"rank {self.rank} did not make {min(lost)}")
        return Batch({"x": batch["x"]})
