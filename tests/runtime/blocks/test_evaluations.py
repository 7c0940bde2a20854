"""Blocks that repeat until the data of a source end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshctl.plan.model import Stage
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.blocks.components import (
    SHARED,
    Exam,
    Held,
    HeldStream,
    evaluation,
    execute,
    ids,
    inside,
    mean,
    values,
)
from tests.runtime.pipelines import Echo, Source
from tests.runtime.plans import Checkpoint, Input, call


@pytest.mark.parametrize("held", [Held, HeldStream])
@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3}, {"a": 2, "b": 3}])
@pytest.mark.parametrize("length", [1, 4, 9, 10])
def test_a_block_goes_through_the_whole_data_set_in_each_of_its_steps(
    held: type[Held], workers: dict[str, int], length: int
) -> None:
    job = evaluation(
        inside("answers", "exam.answer", "eval.questions", every=2),
        inside("exam", "exam.score", "eval.answers", collect="mean", every=2),
        workers=workers,
        every=2,
        steps=4,
    )
    outcome, seen = execute(job, held, length)
    assert not outcome.faults and set(outcome.last.values()) == {4}
    for step in (2, 4):
        got = sorted(id for at, _, some in seen if at == step for id in some)
        assert got == sorted([*range(length)] * 2)
        assert mean(values(outcome, "eval.exam", "x")[step]) == pytest.approx((length - 1) / 2)
        assert mean(values(outcome, "eval.exam", "logged")[step]) == 1.0
    assert {step for step, *_ in seen} == {2, 4}


def test_an_empty_share_takes_part_in_every_pass() -> None:
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        workers={"a": 2, "b": 3},
        steps=1,
    )
    _, seen = execute(job, length=5)
    assert sorted(seen) == [(1, 0, [0, 1]), (1, 0, [4]), (1, 1, []), (1, 1, [2]), (1, 2, []), (1, 2, [3])]


def test_a_source_starts_at_its_first_sample_and_is_not_called_for_an_empty_share() -> None:
    calls: list[Any] = []
    job = evaluation(inside("exam", "exam.score", "eval.questions", collect="mean"), workers={"a": 2, "b": 1})

    def make(name: str, rank: int) -> Component:
        if name == "held":
            return Held(5, calls)
        return Source() if name == "data" else Exam([]) if name == "exam" else Echo([])

    in_process.run(job, make)
    expected = [(0, range(2)), (0, range(4, 5)), (1, range(2, 4))]
    assert sorted(calls, key=str) == [(step, *rest) for step in (1, 2) for rest in expected]


def test_numbers_of_all_passes_are_added_under_sum() -> None:
    job = evaluation(
        inside("count", "exam.count", "eval.questions", collect="sum"), workers={"a": 1, "b": 2}, steps=1
    )
    outcome, _ = execute(job)
    parts = values(outcome, "eval.count", "n")[1]
    assert sum(value for value, _ in parts) == 10.0
    assert {event.value["collect"] for event in outcome.events if event.stage == "eval.count"} == {"sum"}


def outside(name: str, what: str, *inputs: str | Input, **more: Any) -> Stage:
    return call(name, what, *inputs, **more)


@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 3}])
def test_a_stage_outside_receives_the_samples_of_all_passes_in_order(workers: dict[str, int]) -> None:
    job = evaluation(
        inside("answers", "exam.answer", "eval.questions"),
        outside("note", "exam.note", Input(("eval.answers",), dispatch=Dispatch("all"))),
        workers=workers,
    )
    outcome, seen = execute(job)
    assert not outcome.faults
    whole = [(at, rank, [*range(10)]) for at in (1, 2) for rank in range(workers["b"])]
    assert all(one in seen for one in whole)


@pytest.mark.parametrize("held", [Held, HeldStream])
def test_a_stage_outside_receives_the_samples_of_a_source_with_fewer_samples_than_ranks(
    held: type[Held],
) -> None:
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        outside("note", "exam.note", Input(("eval.questions",), dispatch=Dispatch("all"))),
        workers={"a": 4, "b": 1},
    )
    outcome, seen = execute(job, held, length=2)
    assert not outcome.faults
    assert seen.count((1, 0, [0, 1])) == 2  # in the exam and in the note


@pytest.mark.parametrize("workers", [{"a": 1, "b": 1}, {"a": 2, "b": 3}])
def test_a_stage_outside_receives_the_mean_of_all_passes(workers: dict[str, int]) -> None:
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        outside("note", "exam.note", Input(("eval.exam",), dispatch=Dispatch("all"))),
        workers=workers,
    )
    outcome, seen = execute(job)
    assert not outcome.faults
    noted = [value for _, _, value in seen if isinstance(value, dict)]
    assert noted == [{"x": pytest.approx(4.5)}] * 2 * workers["b"]


def test_a_value_from_outside_is_received_once_and_used_in_every_pass() -> None:
    scale = Input(("train",), "scale", Dispatch("all", allow_empty=True))
    job = evaluation(
        inside("exam", "exam.against", Input(("eval.questions",), "batch", SHARED), scale, collect="mean"),
        workers={"a": 1, "b": 1},
        steps=2,
    )
    outcome, seen = execute(job)
    assert not outcome.faults
    got = [(step, some, ids(batch)) for step, _, some, batch in seen]
    passes = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert got == [(step, some, [*range(6 * step - 6, 6 * step)]) for step in (1, 2) for some in passes]


def test_a_block_whose_input_does_not_run_is_skipped_whole() -> None:
    scale = Input(("rare",), "scale", Dispatch("all", allow_empty=True))
    rare = call("rare", "echo.take", "batch", every=2)
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        inside("scaled", "exam.against", Input(("eval.questions",), "batch", SHARED), scale, collect="mean"),
        workers={"a": 1, "b": 1},
        before=(rare,),
    )
    _, seen = execute(job)
    assert {step for step, *_ in seen} == {2}


def test_a_source_of_a_block_is_no_part_of_the_position_and_does_not_end_the_run() -> None:
    saved: list[tuple[int, dict[str, int]]] = []
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        workers={"a": 1, "b": 1},
        steps=3,
        checkpoint=Checkpoint(1),
    )
    outcome, _ = execute(job, length=2, save=lambda step, given: saved.append((step, dict(given))))
    assert set(outcome.last.values()) == {3}
    assert all((step, {"batch": 6 * step}) in saved for step in (1, 2, 3))
    assert {name for _, given in saved for name in given} == {"batch"}


def test_a_source_without_samples_is_an_error() -> None:
    job = evaluation(inside("exam", "exam.score", "eval.questions", collect="mean"), workers={"a": 1, "b": 1})
    for held in (Held, HeldStream):
        outcome, _ = execute(job, held, length=0)
        [fault] = [fault for fault in outcome.faults.values() if isinstance(fault, StageError)]
        assert str(fault) == "`held.next` returned no samples, but `eval` runs until its data end"


class Ends(Source):
    """A source that ends in step 3 without announcing it."""

    @endpoint
    def next(self, samples: range) -> Batch | None:
        return super().next(samples) if samples.start < 12 else None


def test_an_unannounced_end_in_a_step_with_a_block_drops_it() -> None:
    scale = Input(("train",), "scale", Dispatch("all", allow_empty=True))
    job = evaluation(
        inside("exam", "exam.against", Input(("eval.questions",), "batch", SHARED), scale, collect="mean"),
        workers={"a": 2, "b": 2},
        steps=0,
    )
    outcome, seen = execute(job, data=Ends)
    assert not outcome.faults and set(outcome.last.values()) == {2}
    assert {step for step, *_ in seen} == {1, 2}


def test_an_unannounced_end_does_not_disturb_a_block_of_its_own_data() -> None:
    last = call("last", "exam.note", "train", when="end")
    job = evaluation(
        inside("exam", "exam.score", "eval.questions", collect="mean"),
        last,
        workers={"a": 2, "b": 2},
        steps=0,
    )
    outcome, seen = execute(job, data=Ends)
    assert not outcome.faults and set(outcome.last.values()) == {2}
    assert [step for step, *_ in seen if step == 2]
    assert all(mean(parts) == pytest.approx(4.5) for parts in values(outcome, "eval.exam", "x").values())


@pytest.mark.parametrize("data", [Source, Ends])
def test_a_block_at_the_end_of_a_run(data: type[Source]) -> None:
    stages = [inside("exam", "exam.score", "eval.questions", collect="mean", when="end")]
    job = evaluation(*stages, workers={"a": 1, "b": 2}, steps=2 if data is Source else 0)
    job = replace(
        job,
        stages=tuple(replace(stage, when="end") if stage.block else stage for stage in job.stages),
    )
    outcome, seen = execute(job, data=data)
    assert not outcome.faults and set(outcome.last.values()) == {2}
    assert sorted(id for step, _, some in seen for id in some if step == 2) == [*range(10)]
    assert {step for step, *_ in seen} == {2}


def test_an_error_in_a_pass_names_the_stage() -> None:
    class Broken(Exam):
        @endpoint(collect="mean")
        def score(self, batch: Batch) -> dict[str, float]:
            raise ZeroDivisionError

    job = evaluation(inside("exam", "exam.score", "eval.questions", collect="mean"), workers={"a": 1, "b": 1})
    made = {"held": lambda: Held(3), "data": Source, "echo": lambda: Echo([]), "exam": lambda: Broken([])}
    outcome = in_process.run(job, lambda name, rank: made[name]())
    assert any(isinstance(fault, ZeroDivisionError) for fault in outcome.faults.values())
