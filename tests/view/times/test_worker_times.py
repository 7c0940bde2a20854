"""The sums of a worker's steps: one freak call counts little, and a folded event counts as its steps."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from meshctl.run.event_folding import StepSums
from meshctl.run.events import Event
from meshctl.view.times.worker_times import WorkerTimes


def steps(seconds: Iterable[float]) -> list[dict[str, object]]:
    return [
        {
            "seconds": each + 0.5,
            "stages": {"loss": each},
            "waits": {"loss": 0.25},
            "awaited": {"a -> loss": 0.125},
            **({"sends": {"loss": 0.125}} if number % 2 else {}),
        }
        for number, each in enumerate(seconds)
    ]


def added(values: Iterable[dict[str, object]]) -> WorkerTimes:
    times = WorkerTimes()
    for value in values:
        times.add(value)
    return times


def test_one_call_during_which_the_machine_slept_counts_as_ten() -> None:
    times = added(steps([1.0] * 10 + [500.0] + [1.0] * 9))
    assert (times.steps, times.calls["loss"]) == (20, 20)
    assert times.stages["loss"] == pytest.approx(19 + 10)
    assert times.seconds == pytest.approx(19 + 10 + 20 * 0.5)


def test_long_calls_that_come_again_count() -> None:
    times = added(steps(([1.0] * 9 + [50.0]) * 3))
    assert times.stages["loss"] == pytest.approx(27 + 150)
    assert times.seconds == pytest.approx(27 + 150 + 15)


def test_a_folded_event_counts_as_the_steps_that_it_replaces() -> None:
    values, sums = steps([1.0, 2.0, 3.0, 1.5]), StepSums()
    for number, value in enumerate(values, 1):
        sums.add(Event("step", "train", 0, number, value=value))
    assert added([sums.event().value]) == added(values)


def test_the_difference_of_two_moments() -> None:
    values = steps([1.0, 2.0, 3.0, 1.5, 4.0])
    before, times = added(values[:2]), added(values)
    assert times.since(before) == added(values[2:])
    assert times.since(times).steps == 0
