"""Metrics of stages and of the phases around them, times of waiting, and memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from meshctl.plan.model import Component as Placed
from meshctl.run.events import Event, StepReport
from meshctl.runtime import progress
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.runtime.loop_context import StepState
from meshctl.runtime.metrics.stage_metrics import StageMetrics, memory, phase_log
from meshctl.runtime.progress import Progress, WaitTimes
from meshctl.runtime.routes.end import FORWARD, SHARED_WRITE, TABLES, TAGS_PER_ROUTE, VALUES
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import COLLECT, EXECUTE
from tests.runtime.in_process import KeptEvents, run
from tests.runtime.plans import call, plan, sync

# Stages


Metric = tuple[dict[str, float], float, str]


class Metrics:
    """The metrics of the stage `eval` on one rank, with what it has reported."""

    def __init__(self, rank: int = 0, collect: str = "mean", execute: str = "all", **sizes: int) -> None:
        self.events: list[Event] = []
        self.state = StepState(report=StepReport(1))
        mesh = DeviceMesh.from_sizes(**(sizes or {"dp_size": 2}))
        kept = KeptEvents(self.events, "train", rank)
        stage = call("eval", "judge.loss", "batch")
        self.of = StageMetrics(
            stage, mesh, rank, self.state, kept, Path(), COLLECT[collect], EXECUTE[execute]
        )
        self.of.begin_call()

    @property
    def reported(self) -> list[Metric]:
        return [
            (dict(one["values"]), one["weight"], one["collect"])
            for one in self.state.report.metrics
            if one["values"]
        ]

    @property
    def uncounted(self) -> list[tuple[list[str], int]]:
        return [(one.value["names"], one.value["counted"]) for one in self.events if one.name == "uncounted"]


@pytest.mark.parametrize(
    "number", [1, True, 1.0, np.float32(1), np.int64(1), torch.ones(1, 1), torch.tensor(True)]
)
def test_every_kind_of_number_is_a_metric(number: Any) -> None:
    logging, returning = Metrics(), Metrics()
    logging.of.log({"x": number, "a": {"b": number}}, 3)
    returning.of.add_returned({"x": number, "a": {"b": number}}, 3)
    assert logging.reported == returning.reported == [({"x": 1.0, "a/b": 1.0}, 3, "mean")]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("high", "'x' is a str"),
        (None, "'x' is a NoneType"),
        ([1.0], "'x' is a list"),
        (torch.ones(2, 3), "'x' is a Tensor of shape [2, 3]"),
        (torch.tensor(1j), "'x' is a Tensor of shape []"),
        ({"y": {"z": "high"}}, "'x/y/z' is a str"),
    ],
)
def test_what_is_logged_and_is_no_number_is_an_error_on_every_rank(value: Any, message: str) -> None:
    for rank in (0, 1):
        with pytest.raises(TypeError) as error:
            Metrics(rank, tp_size=2).of.log({"x": value}, 1)
        takes = "self.log takes numbers, and meshctl.Image, Histogram and Table"
        assert str(error.value) == f"{takes}: {message}"


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf])
def test_a_weight_is_a_finite_number_from_0(weight: float) -> None:
    with pytest.raises(ValueError, match="must be a finite number from 0"):
        Metrics().of.log({"x": 1.0}, weight)


@pytest.mark.parametrize("values", [{"a/b": 1.0, "a": {"b": 2.0}}, {1: 1.0, "1": 2.0}])
def test_two_numbers_of_one_name_are_an_error(values: dict[Any, Any]) -> None:
    for call_ in (lambda: Metrics().of.log(values, 1), lambda: Metrics().of.add_returned(values, 1)):
        with pytest.raises(ValueError, match="two metrics have the name"):
            call_()


# A number that is returned and logged


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_a_number_that_is_returned_and_logged_counts_once_with_its_samples(value: float) -> None:
    metrics = Metrics()
    metrics.of.log({"loss": value, "norm": 2.0}, 1)
    metrics.of.add_returned({"loss": value}, 8)
    (logged, returned) = metrics.reported
    assert logged == ({"norm": 2.0}, 1.0, "mean")
    assert returned[1:] == (8, "mean") and [*returned[0]] == ["loss"]


def test_a_number_that_is_returned_and_logged_with_another_value_is_an_error() -> None:
    metrics = Metrics()
    metrics.of.log({"loss": 0.25}, 1)
    with pytest.raises(StageError) as error:
        metrics.of.add_returned({"loss": 0.5}, 8)
    assert str(error.value) == (
        "`judge.loss` returns 0.5 for metric `eval.loss` and logs 0.25 for it; one of them needs another name"
    )


# The rank that counts


def test_a_rank_that_does_not_count_reports_each_name_once() -> None:
    metrics = Metrics(1, tp_size=2)
    for _ in range(2):
        metrics.of.log({"loss": 1.0, "norm": 2.0}, 1)
    metrics.of.log({"norm": 2.0, "lr": 0.1}, 1)
    assert metrics.reported == []
    assert metrics.uncounted == [(["loss", "norm"], 0), (["lr"], 0)]


def test_the_only_rank_that_is_called_counts() -> None:
    """The last pipeline stage represents a data rank, and `execute: first` does not call it."""
    metrics = Metrics(0, execute="first", pp_size=2)
    metrics.of.log({"loss": 1.0}, 1)
    assert metrics.reported == [({"loss": 1.0}, 1.0, "mean")]
    silent = Metrics(0, pp_size=2)
    silent.of.log({"loss": 1.0}, 1)
    assert (silent.reported, silent.uncounted) == ([], [(["loss"], 1)])


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ({"loss": torch.ones(4)}, "a tensor of shape [4] as `loss`"),
        ({"loss": 1.0, "mood": {"of": "low"}}, "a str as `mood/of`"),
        (torch.ones(2, 3), "a tensor of shape [2, 3]"),
    ],
)
def test_a_value_that_is_neither_a_metric_nor_taken_is_one_warning(
    value: Any, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.of.begin_call()
        metrics.of.warn_of_others(value)
    text = f"`judge.loss` returned {other}, which is not a metric: a metric is a single number"
    assert caplog.messages == [text]


def test_numbers_and_logged_numbers_cause_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.of.warn_of_others({"loss": np.float32(1), "norm": torch.ones(1, 1)})
    metrics.of.log({"loss": 1.0}, 1)
    metrics.of.warn_of_others(None)
    Metrics(collect="flatten").of.warn_of_others({"path": "x"})
    assert not caplog.messages


# Phases and syncs


def test_each_number_of_a_phase_is_an_event_of_the_step_before_the_first() -> None:
    events: list[Event] = []
    placed = Placed("actor", "parts.Actor", "train", DeviceMesh.from_sizes(dp_size=1, tp_size=2))
    log = phase_log(placed, "setup", 0, 0, KeptEvents(events, "train", 0), Path())
    for number in (1.0, 2.0):
        log({"parameters": number}, 1.0)
    found = [(event.name, event.step, event.stage, event.value["values"]) for event in events]
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
    of_sync = [one for one in outcome.events if (one.name, one.stage) == ("metric", "publish")]
    for name in ("sent", "received"):
        assert [one.step for one in of_sync if name in one.value["values"]] == [0, 1, 2, 3]


# Waits


PLAN = plan(
    {"rollout": 2, "train": 2},
    {"sampler": ("rollout", {}), "actor": ("train", {})},
    [
        call("rollouts", "sampler.sample"),
        call("logprobs", "actor.score", "rollouts"),
        call("metrics", "actor.update", "logprobs"),
        sync("publish", "actor", "sampler"),
    ],
)
INTO, WITHIN, WEIGHTS = (number * TAGS_PER_ROUTE for number in range(3))
CLOSING = len(PLAN.routes) * TAGS_PER_ROUTE


@pytest.mark.parametrize(
    ("group", "tag", "kind", "route"),
    [
        ("rollout", INTO + VALUES, "full", "rollouts -> logprobs"),
        ("train", INTO + VALUES, "awaited", "rollouts -> logprobs"),
        ("train", INTO + FORWARD, "awaited", "rollouts -> logprobs"),
        ("rollout", INTO + TABLES, "peers", "rollouts -> logprobs"),
        ("rollout", INTO + SHARED_WRITE, "peers", "rollouts -> logprobs"),
        ("train", WITHIN + VALUES, "peers", "logprobs -> metrics"),
        ("train", WEIGHTS + VALUES, "full", "publish"),
        ("rollout", WEIGHTS + VALUES, "awaited", "publish"),
        ("train", CLOSING + INTO + VALUES, "awaited", "rollouts -> logprobs"),
        ("train", 3 * CLOSING, "", ""),
        ("train", -1, "", ""),
    ],
)
def test_a_wait_belongs_to_a_route(
    group: str, tag: int, kind: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([1.0, 1.5, 10.0, 12.0])
    monkeypatch.setattr(progress, "perf_counter", lambda: next(now))
    waits, report, empty = WaitTimes(PLAN, group, Progress()), StepReport(1), StepReport(2)
    for _ in range(2):
        waits.note(1, tag)
        waits.note(-1, 0)
    waits.move_to(report)
    waits.move_to(empty)
    found = {"awaited": report.awaited, "full": report.full, "peers": report.peers}
    assert found == {"awaited": {}, "full": {}, "peers": {}, **({kind: {route: 2.5}} if kind else {})}
    assert not (empty.awaited or empty.full or empty.peers)


# Memory


def test_memory_is_that_of_this_process() -> None:
    found = memory()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert 0.5 < found["resident"] / (int(status["VmRSS"].split()[0]) * 1024) < 2
    assert found["peak"] >= found["resident"]
