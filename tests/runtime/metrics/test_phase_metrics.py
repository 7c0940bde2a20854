"""Numbers that a component logs outside of stages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from meshctl.plan.model import Component as Placed
from meshctl.run.events import Event
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.metrics.stage_metrics import PhaseMetrics
from meshctl.topology.mesh import DeviceMesh
from tests.runtime.in_process import KeptEvents, run
from tests.runtime.plans import call, plan, sync


def logged(rank: int) -> list[Event]:
    events: list[Event] = []
    placed = Placed("actor", "parts.Actor", "train", DeviceMesh.from_sizes(dp_size=1, tp_size=2))
    metrics = PhaseMetrics(placed, "setup", rank, 0, KeptEvents(events, "train", rank), Path())
    for number in (1.0, 2.0):
        metrics.log({"parameters": number}, 1.0)
    return events


def test_each_number_is_an_event_of_the_step_before_the_first() -> None:
    found = [(event.name, event.step, event.stage, event.value["values"]) for event in logged(0)]
    assert found == [("metric", 0, "actor.setup", {"parameters": number}) for number in (1.0, 2.0)]


class Model(Component):
    @endpoint
    def next(self, samples: range) -> Batch:
        return Batch({"x": torch.ones(len(samples))})

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        self.log({"sent": self.rank})
        yield "w", torch.ones(2)

    def load_weights(self, stream: Iterator[tuple[str, Tensor]]) -> None:
        self.log({"received": len(list(stream))})


def test_numbers_that_the_methods_of_a_sync_log_are_metrics_of_the_sync() -> None:
    stages = [call("batch", "one.next", samples=2), sync("publish", "one", "two")]
    outcome = run(plan({"a": 1, "b": 1}, {"one": ("a", {}), "two": ("b", {})}, stages), lambda *_: Model())
    assert not outcome.faults
    for name in ("sent", "received"):
        steps = [
            event.step
            for event in outcome.events
            if event.name == "metric" and event.stage == "publish" and name in event.value["values"]
        ]
        assert steps == [0, 1, 2, 3]
