"""Components that several tests of the loop share."""

from __future__ import annotations

from typing import Any

import torch

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from tests.runtime import in_process
from tests.runtime.pipelines import Source
from tests.runtime.plans import call, plan, sync


def ids(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(id) for id in batch.ids.tolist()]


def published_to(sampler: Weights, loader: str = "load_weights") -> in_process.Outcome:
    """Runs a plan in which `sampler` loads the weights of an actor in another group."""
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", to_method=loader)],
    )  # fmt: skip
    made = {"source": Source(), "sampler": sampler, "actor": Weights([])}
    return in_process.run(job, lambda name, rank: made[name])


class Weights(Component):
    def __init__(self, seen: list[tuple[int, int]]) -> None:
        self.seen, self.value = seen, torch.zeros(3, 2)

    def weights(self) -> Any:
        yield "w", self.value
        yield "b", self.value[0]

    def load_weights(self, stream: Any) -> None:
        for _, tensor in stream:
            value = tensor.clone()
        self.seen.append((self.step, int(value[0])))

    @endpoint
    def use(self, batch: Batch) -> Batch:
        return batch

    @endpoint
    def learn(self, batch: Batch) -> dict[str, float]:
        self.value = torch.full((3, 2), float(self.step))
        return {"version": float(batch["@version"].max())}
