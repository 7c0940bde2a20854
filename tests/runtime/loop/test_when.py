"""Stages without data, and when stages run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from tests.runtime import in_process
from tests.runtime.pipelines import Echo, Source
from tests.runtime.plans import Checkpoint, call, plan


class Sleeper(Component):
    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    @endpoint(collect="sum")
    def wake(self) -> dict[str, float]:
        self.calls.append(("wake", self.step, self.rank))
        return {"woken": 1}

    @endpoint
    def samples(self) -> Batch:
        return Batch({"x": torch.ones(2)})


def run_sleeper(*stages: Any, **run: Any) -> tuple[in_process.Outcome, list[Any]]:
    calls: list[Any] = []
    components: dict[str, Any] = {"source": ("a", {}), "echo": ("b", {}), "sleeper": ("b", {})}
    job = plan({"a": 1, "b": 2}, components, stages, **run)

    def make(name: str, rank: int) -> Component:
        return {"source": Source, "echo": lambda: Echo([]), "sleeper": lambda: Sleeper(calls)}[name]()

    return in_process.run(job, make), sorted(calls)


def test_a_stage_without_data_is_called_on_every_rank_when_its_step_comes() -> None:
    outcome, calls = run_sleeper(
        call("wake", "sleeper.wake", is_without_data=True, every=2, collect="sum"),
        call("batch", "source.next", samples=4),
        call("loss", "echo.loss", "batch", collect="mean"),
        steps=5,
    )
    assert not outcome.faults
    assert calls == [("wake", 2, 0), ("wake", 2, 1), ("wake", 4, 0), ("wake", 4, 1)]
    woken = [event for event in outcome.events if event.stage == "wake"]
    assert [(event.value["values"], event.value["collect"]) for event in woken] == [
        ({"woken": 1.0}, "sum")
    ] * 4


@pytest.mark.parametrize(("when", "steps"), [("start", [1]), ("end", [3]), ("checkpoint", [2, 3])])
def test_a_stage_without_data_runs_at_its_time(when: str, steps: list[int]) -> None:
    stages = [
        call("batch", "source.next", samples=4),
        call("wake", "sleeper.wake", is_without_data=True, when=when, collect="sum"),
    ]
    _, calls = run_sleeper(*stages, steps=3, checkpoint=Checkpoint(every=2))
    assert calls == [("wake", step, rank) for step in steps for rank in (0, 1)]


def test_a_stage_without_data_returns_no_batch() -> None:
    outcome, _ = run_sleeper(call("wake", "sleeper.samples", is_without_data=True))
    messages = {str(error) for error in outcome.faults.values() if isinstance(error, StageError)}
    assert messages == {"`sleeper.samples` returned a Batch, but `wake` is a stage without data"}


def test_every_and_when_and_what_depends_on_them() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "echo": ("b", {}), "other": ("b", {})},
        [call("start", "source.next", samples=1, when="start"), call("begun", "other.take", "start"),
         call("batch", "source.next", samples=1, every=2), call("taken", "echo.take", "batch"),
         call("end", "source.next", samples=1, when="end"), call("finished", "other.take", "end")], steps=5,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo(seen))
    assert not outcome.faults
    assert [step for step, _, _ in seen] == [1, 2, 4, 5]
