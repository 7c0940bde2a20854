"""Whole pipelines in threads: every sample once, in order, whatever the meshes, and every run ends."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from meshctl.runtime.batch.batch import Batch, BatchError
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes import weights
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.pipelines import Echo, Source, made, pipelines
from tests.runtime.plans import Checkpoint, Input, call, plan, sync


class Sized(Source):
    length = 10

    def __len__(self) -> int:
        return self.length


class Stream(Source):
    @endpoint
    def next(self, samples: range) -> Batch | None:
        rest = [n for n in samples if n < 10]
        return Batch({"x": torch.tensor(rest)}) if rest else None


def ids(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(id) for id in batch.ids.tolist()]


MESHES: list[dict[str, int]] = [
    {},
    {"dp_size": 2},
    {"tp_size": 2},
    {"dp_size": 2, "fsdp_size": 2},
    {"pp_size": 2, "tp_size": 2},
    {"fsdp_size": 3},
    {"fsdp_size": 4, "ulysses_size": 2},
]


def world(sizes: dict[str, int]) -> int:
    total = 1
    for name, size in sizes.items():
        total *= size if name != "ulysses_size" else 1
    return total


@pytest.mark.parametrize("ours", MESHES, ids=str)
@pytest.mark.parametrize("theirs", MESHES, ids=str)
def test_every_sample_arrives_once_on_each_data_rank_and_comes_back_in_order(
    ours: dict[str, int], theirs: dict[str, int]
) -> None:
    seen: list[Any] = []
    back: list[Any] = []
    job = plan(
        {"a": world(ours), "b": world(theirs)},
        {"source": ("a", ours), "echo": ("b", theirs), "sink": ("a", ours)},
        [call("batch", "source.next", samples=13), call("there", "echo.take", "batch"),
         call("back", "sink.take", Input(("there",), dispatch=Dispatch("all")))],
        steps=2,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name == "source" else Echo(seen if name == "echo" else back)
    )
    assert not outcome.faults
    mesh = job.component("echo").mesh
    for step in (1, 2):
        expected = [(number,) for number in range((step - 1) * 13, step * 13)]
        for rank in range(mesh.world_size):
            [batch] = [batch for at, who, batch in seen if (at, who) == (step, rank)]
            assert ids(batch) == [expected[i] for i in mesh.sample_range(13, rank)]
            assert batch["text"] == [str(id) for (id,) in ids(batch)]
            assert [len(row) for row in batch["rows"].rows()] == [id % 5 for (id,) in ids(batch)]
        for rank in range(world(ours)):
            [batch] = [batch for at, who, batch in back if (at, who) == (step, rank)]
            assert ids(batch) == expected


def test_metrics_are_weighted_by_samples_and_logged_by_representatives_only() -> None:
    job = plan(
        {"a": 1, "b": 4}, {"source": ("a", {}), "echo": ("b", {"tp_size": 2})},
        [call("batch", "source.next", samples=5), call("loss", "echo.loss", "batch", collect="mean")], steps=1,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo([]))
    reported = sorted(
        (event.rank, event.value["weight"], event.value["values"])
        for event in outcome.events
        if event.name == "metric"
    )
    assert reported == [(0, 3.0, {"x": 1.0, "n": 3.0}), (2, 2.0, {"x": 3.5, "n": 2.0})]


def test_a_reduced_value_that_a_stage_receives_is_the_same_on_every_rank() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 2}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=5), call("loss", "echo.loss", "batch", collect="mean"),
         call("pairs", "echo.pair", Input(("batch",), "first"), Input(("loss",), "second", Dispatch("all")))], steps=1,
    )  # fmt: skip
    in_process.run(job, lambda name, rank: Source() if name == "source" else Echo(seen))
    assert [second for _, _, _, second in seen] == [{"x": 2.0, "n": 2.6}] * 2


def test_a_list_of_every_workers_value() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 4, "c": 2}, {"source": ("a", {}), "echo": ("b", {"pp_size": 2, "tp_size": 2}), "sink": ("c", {})},
        [call("batch", "source.next", samples=5), call("taken", "echo.take", "batch", collect="last_pp"),
         call("copies", "sink.pair", Input(("batch",), "first"), Input(("taken",), "second"))], steps=1,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name == "source" else Echo(seen if name == "sink" else [])
    )
    assert not outcome.faults
    assert [[ids(batch) for batch in second] for _, _, _, second in seen] == [
        [[(n,) for n in range(5)]] * 2
    ] * 2


def test_numbers_are_reduced_and_batches_are_not() -> None:
    job = plan(
        {"a": 1, "b": 2}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=5, collect="mean"), call("taken", "echo.take", "batch")], steps=1,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo([]))
    assert "`batch` returned a Batch, but collect: mean is for numbers and tensors" in str(outcome.faults[0])


class Careless(Echo):
    @endpoint
    def nothing(self, batch: Batch) -> None: ...

    @endpoint
    def numbers(self, batch: Batch) -> dict[str, float]:
        return {"x": 1.0}

    @endpoint
    def column(self, batch: Batch) -> Batch:
        return batch.with_columns(y=batch["nope"])

    @endpoint
    def words(self, batch: Batch) -> Batch:
        self.log({"said": "hello"})  # type: ignore[dict-item]
        return batch


@pytest.mark.parametrize(
    ("method", "kind", "message"),
    [
        ("nothing", StageError, "`made` returned None; is its `return` missing?"),
        (
            "numbers",
            StageError,
            "`made` returned a dict; flatten joins batches, lists and tensors: use mean, sum or first",
        ),
        ("column", BatchError, "the batch has no column 'nope'; its columns are x, rows, text"),
        ("words", TypeError, "self.log takes numbers: 'said' is a str"),
    ],
)
def test_the_result_of_an_endpoint_is_checked_on_its_producer(
    method: str, kind: type[Exception], message: str
) -> None:
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "gen": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", f"gen.{method}", "batch"), call("taken", "echo.take", "made")], steps=1,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: {"source": Source(), "gen": Careless([]), "echo": Echo([])}[name]
    )
    assert type(outcome.faults[0]) is kind and message in str(outcome.faults[0])


def published_to(sampler: Weights, loader: str = "load_weights") -> in_process.Outcome:
    """Runs a plan in which `sampler` loads the weights of an actor in another group."""
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", to_method=loader)],
    )  # fmt: skip
    made = {"source": Source(), "sampler": sampler, "actor": Weights([])}
    return in_process.run(job, lambda name, rank: made[name])


def test_weights_that_are_left_unread_are_an_error() -> None:
    class Lazy(Weights):
        def load_weights(self, stream: Any) -> None:
            next(iter(stream))

    outcome = published_to(Lazy([]))
    assert "`sampler.load_weights` left `b` of its stream unread" in str(outcome.faults[0])


def test_the_method_that_loads_weights_may_have_any_name() -> None:
    class Other(Weights):
        def update(self, stream: Any) -> None:
            self.load_weights(stream)

    sampler = Other([])
    outcome = published_to(sampler, "update")
    assert not outcome.faults and sampler.seen


def test_inputs_are_aligned_by_id_even_when_the_first_was_balanced() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 2, "b": 3}, {"source": ("a", {}), "other": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=11), call("copy", "other.take", "batch"),
         call("pairs", "echo.pair", Input(("batch",), "first", Dispatch(balance="tokens")), Input(("copy",), "second"))], steps=2,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name == "source" else Echo(seen if name == "echo" else [])
    )
    assert not outcome.faults
    assert len(seen) == 6
    for _, _, first, second in seen:
        assert ids(first) == ids(second)
        assert first["text"] == second["text"]
    assert sorted(id for step, _, first, _ in seen if step == 1 for id in ids(first)) == [
        (n,) for n in range(11)
    ]


def test_a_list_joins_columns_by_id_and_a_column_given_twice_is_an_error() -> None:
    job = plan(
        {"a": 2}, {"source": ("a", {}), "echo": ("a", {})},
        [call("batch", "source.next", samples=4), call("copy", "echo.take", "batch"), call("both", "echo.take", Input(("batch", "copy")))],
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo([]))
    fault = next(error for error in outcome.faults.values() if isinstance(error, StageError))
    assert "column 'x' is given twice" in str(fault)


def test_samples_go_home_to_the_rank_that_made_them() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 3, "b": 1}, {"source": ("b", {}), "echo": ("a", {}), "judge": ("b", {}), "again": ("a", {})},
        [call("batch", "source.next", samples=9), call("made", "echo.take", Input(("batch",), dispatch=Dispatch(balance="tokens"))),
         call("judged", "judge.take", "made"), call("home", "again.take", Input(("judged",), dispatch=Dispatch(home="made")))], steps=1,
    )  # fmt: skip
    outcome = in_process.run(
        job,
        lambda name, rank: Source() if name == "source" else Echo(seen if name in ("echo", "again") else []),
    )
    assert not outcome.faults
    first = {rank: ids(batch) for _, rank, batch in seen[:3]}
    assert {rank: ids(batch) for _, rank, batch in seen[3:]} == first


def test_groups_stay_together() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 2}, {"source": ("a", {}), "echo": ("a", {}), "sink": ("b", {})},
        [call("batch", "source.next", samples=5), call("many", "echo.thrice", "batch"), call("taken", "sink.take", "many")], steps=1,
    )  # fmt: skip
    in_process.run(job, lambda name, rank: Source() if name == "source" else Echo(seen))
    assert [(rank, [id[0] for id in ids(batch)]) for _, rank, batch in sorted(seen, key=lambda s: s[1])] == [
        (0, [0] * 3 + [1] * 3 + [2] * 3), (1, [3] * 3 + [4] * 3)]  # fmt: skip
    assert seen[0][2].group_ids is not None


def test_too_few_samples_name_the_stage_and_both_numbers() -> None:
    job = plan(
        {"a": 1, "b": 4}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=3), call("taken", "echo.take", "batch")],
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo([]))
    fault = next(error for error in outcome.faults.values() if isinstance(error, StageError))
    assert "3 samples for 4 shares" in str(fault) and "`taken`" in str(fault)


def test_allow_empty_delivers_an_empty_batch_with_the_same_columns() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 1, "b": 4}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=3), call("taken", "echo.take", Input(("batch",), dispatch=Dispatch(allow_empty=True)))],
        steps=1,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Echo(seen))
    assert not outcome.faults
    [empty] = [batch for _, rank, batch in seen if rank == 3]
    assert len(empty) == 0 and empty.names == ("x", "rows", "text") and empty["x"].dtype == torch.int64


@pytest.mark.parametrize("execute", ["first", "peer"])
def test_execute_modes(execute: str) -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 2, "b": 4}, {"source": ("a", {}), "echo": ("b", {}), "sink": ("a", {})},
        [call("batch", "source.next", samples=6), call("taken", "echo.take", Input(("batch",), dispatch=Dispatch("all")), execute=execute),
         call("back", "sink.take", "taken")], steps=1,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name == "source" else Echo(seen if name == "echo" else [])
    )
    assert bool(outcome.faults) == (
        execute == "peer"
    )  # two peers of one producer give each sample twice: flatten says so
    got = {rank: [id for (id,) in ids(batch)] for _, rank, batch in seen}
    assert got == (
        {0: list(range(6))}
        if execute == "first"
        else {0: [0, 1, 2], 1: [0, 1, 2], 2: [3, 4, 5], 3: [3, 4, 5]}
    )


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


def test_data_end_the_run_and_the_tail_is_given() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 2, "b": 1}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=4), call("taken", "echo.take", "batch")], steps=0,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Sized() if name == "source" else Echo(seen))
    assert set(outcome.last.values()) == {3}
    assert [len(batch) for _, _, batch in seen] == [4, 4, 2]


class Endless(Source):
    """Has a `stop`, after which it returns None."""

    def __init__(self, stop: int) -> None:
        self.stop = stop

    @endpoint
    def next(self, samples: range) -> Batch | None:
        return super().next(samples) if samples.start < self.stop else None


def exam_and_training(**exam: Any) -> list[Any]:
    return [
        call("batch", "source-a.next", samples=4),
        call("loss", "echo-b.loss", "batch", collect="mean"),
        call("questions", "exam-a.next", samples=3, **exam),
        call("answers", "echo-b.take", "questions"),
    ]


EXAM = {"source-a": ("a", {}), "exam-a": ("a", {}), "echo-b": ("b", {})}


def run_with_exam(make: Any, steps: int = 0, **exam: Any) -> tuple[in_process.Outcome, list[list[int]]]:
    """Returns the outcome, and the sample numbers of each exam."""
    seen: list[Any] = []
    job = plan({"a": 1, "b": 1}, EXAM, exam_and_training(**exam), steps=steps)
    outcome = in_process.run(job, lambda name, rank: Echo(seen) if name == "echo-b" else make(name))
    return outcome, [batch.ids[:, 0].tolist() for _, _, batch in seen]


def sized(length: int) -> Sized:
    made = Sized()
    made.length = length
    return made


def test_the_data_of_an_exam_do_not_end_a_training() -> None:
    outcome, exams = run_with_exam(lambda name: sized(24 if name == "source-a" else 5), every=2)
    assert not outcome.faults and set(outcome.last.values()) == {6}
    assert exams == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]  # past the 5 that it has, and none is short
    [ready, *_] = [event for event in outcome.events if event.name == "ready"]
    assert ready.value == {"last": 6, "source": "batch"}


def test_steps_that_end_a_run_before_its_data_are_no_source() -> None:
    outcome, _ = run_with_exam(lambda name: sized(24), steps=3, every=2)
    assert {event.value["source"] for event in outcome.events if event.name == "ready"} == {""}


@pytest.mark.parametrize(("every", "ends_run", "last"), [(2, True, 4), (1, None, 2), (1, False, 6)])
def test_a_stage_states_whether_its_data_end_the_run(every: int, ends_run: bool | None, last: int) -> None:
    def make(name: str) -> Sized:
        return sized(24 if name == "source-a" else 6)

    outcome, _ = run_with_exam(make, every=every, ends_run=ends_run)
    assert not outcome.faults and set(outcome.last.values()) == {last}


def test_an_exam_without_a_length_may_not_end_in_silence() -> None:
    outcome, _ = run_with_exam(lambda name: Endless(9) if name == "exam-a" else sized(400), every=2)
    messages = [str(error) for error in outcome.faults.values() if isinstance(error, StageError)]
    assert messages == [
        "`exam-a` returned no samples from number 9 on (step 8), but the run does not end with the data of `questions`: "
        "return samples again, from the first one, or set `ends_run: true` there"
    ]


def test_the_numbers_of_a_stage_are_metrics_whether_or_not_another_takes_them() -> None:
    stages = [
        call("s", "source-a.next", samples=4),
        call("loss", "echo-a.loss", "s", collect="mean"),
        call("taken", "echo-a.pair", Input(("s",), "first"), Input(("loss",), "second")),
    ]
    job = plan({"a": 2}, {"source-a": ("a", {}), "echo-a": ("a", {})}, stages, steps=2)
    outcome = in_process.run(job, lambda name, rank: made(name))
    found = [event.value["values"] for event in outcome.events if event.stage == "loss" and event.step == 1]
    assert not outcome.faults and sorted(values["x"] for values in found) == [0.5, 2.5]


def test_epochs_start_the_data_again_without_a_short_batch_between() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 2, "b": 1}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=4), call("taken", "echo.take", "batch")], steps=0, epochs=2,
    )  # fmt: skip
    in_process.run(job, lambda name, rank: Sized() if name == "source" else Echo(seen))
    assert [len(batch) for _, _, batch in seen] == [4] * 5


def test_epochs_need_one_source_that_knows_its_length() -> None:
    stages = [call("s", "source.next", samples=4), call("t", "other.next", samples=3)]
    job = plan({"a": 1}, {"source": ("a", {}), "other": ("a", {})}, stages, steps=0, epochs=2)
    outcome = in_process.run(job, lambda name, rank: Sized() if name == "source" else Source())
    assert not outcome.faults and outcome.last[0] == 5
    [fault] = in_process.run(job, lambda name, rank: Source()).faults.values()
    assert "none of s, t has a __len__" in str(fault)


def test_a_stream_that_ends_unannounced_ends_the_run_before_that_step() -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 2, "b": 2, "c": 1}, {"source": ("a", {}), "echo": ("b", {}), "other": ("c", {}), "late": ("b", {})},
        [call("batch", "source.next", samples=4), call("taken", "echo.take", "batch"),
         call("side", "other.next", samples=2), call("sides", "late.take", "side"),
         call("end", "other.next", samples=2, when="end"), call("ends", "late.take", "end")],
        steps=50, checkpoint=Checkpoint(),
    )  # fmt: skip
    saved: list[int] = []
    outcome = in_process.run(
        job, lambda name, rank: {"source": Stream(), "other": Source(), "echo": Echo(seen), "late": Echo([])}[name],
        save=lambda step, given: saved.append(step),
    )  # fmt: skip
    assert not outcome.faults
    assert set(outcome.last.values()) == {3}
    assert saved == [3] * 5
    assert sorted({step for step, _, _ in seen}) == [1, 2, 3]


class Exporter(Echo):
    @endpoint
    def export(self, batch: Batch, loss: Any = None) -> dict[str, float]:
        self.seen.append((self.step, self.rank, ids(batch), loss))
        return {"samples": len(batch)}


def run_to_the_end(stages: list[Any], source: type[Component] = Stream, **run: Any) -> tuple[Any, list[Any]]:
    """Runs stages on two groups whose source has 10 samples, and returns what `export` received."""
    seen: list[Any] = []
    components: dict[str, Any] = {"source": ("a", {}), "echo": ("b", {}), "exporter": ("b", {})}
    job = plan({"a": 2, "b": 2}, components, stages, steps=0, **run)

    def make(name: str, rank: int) -> Component:
        return {"source": source, "echo": lambda: Echo([]), "exporter": lambda: Exporter(seen)}[name]()

    outcome = in_process.run(job, make)
    assert not outcome.faults
    return outcome, seen


@pytest.mark.parametrize("source", [Stream, Sized])
def test_a_stage_of_the_end_takes_the_values_of_the_last_step(source: type[Component]) -> None:
    stages = [
        call("batch", "source.next", samples=4),
        call("loss", "echo.loss", "batch", collect="mean"),
        call("export", "exporter.export", Input(("batch",), "batch"), Input(("loss",), "loss"), when="end"),
        call("report", "exporter.export", "batch", when="end", collect="sum"),
    ]
    outcome, seen = run_to_the_end(stages, source)
    assert set(outcome.last.values()) == {3}
    exports = [(step, rank, numbers, loss) for step, rank, numbers, loss in seen if loss is not None]
    assert sorted(exports) == [(3, 0, [(8,)], {"x": 8.5, "n": 1.0}), (3, 1, [(9,)], {"x": 8.5, "n": 1.0})]
    assert len(seen) == 4
    metrics = [event for event in outcome.events if event.name == "metric" and event.stage == "report"]
    assert [(event.step, event.value["values"]) for event in metrics] == [(3, {"samples": 1.0})] * 2


@pytest.mark.parametrize("every", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("source", [Stream, Sized])
def test_a_stage_of_checkpoints_runs_at_the_last_one_too(source: type[Component], every: int) -> None:
    """This includes a cancelled step in which a checkpoint was due. Its values are not used as the last
    ones."""
    stages = [
        call("batch", "source.next", samples=4),
        call("snap", "exporter.export", "batch", when="checkpoint"),
    ]
    _, seen = run_to_the_end(stages, source, checkpoint=Checkpoint(every=every))
    steps = [step for step in (1, 2, 3) if step == 3 or (every and step % every == 0)]
    samples = {1: [(0,), (1,), (2,), (3,)], 2: [(4,), (5,), (6,), (7,)], 3: [(8,), (9,)]}
    received: dict[int, list[tuple[int, ...]]] = {}
    for step, _, numbers, _ in sorted(seen):
        received.setdefault(step, []).extend(numbers)
    assert received == {step: samples[step] for step in steps}


def test_a_stage_of_the_end_that_takes_a_rarer_stage_runs_where_that_runs_in_the_last_step() -> None:
    stages = [
        call("batch", "source.next", samples=4),
        call("rare", "echo.take", "batch", every=2),
        call("export", "exporter.export", "rare", when="end"),
    ]
    assert [run_to_the_end(stages, source)[1] for source in (Stream, Sized)] == [[], []]


def test_a_source_that_has_less_than_it_announced_is_an_error() -> None:
    class Short(Sized):
        @endpoint
        def next(self, samples: range) -> Batch | None:
            return Source.next(self, samples) if samples.start < 4 else None

    job = plan({"a": 1}, {"source": ("a", {})}, [call("batch", "source.next", samples=4)], steps=0)
    [fault] = in_process.run(job, lambda name, rank: Short()).faults.values()
    assert "returned no samples from number 4 on, but its __len__ promises 10" in str(fault)


@pytest.mark.parametrize("workers", [2, 4])
def test_ranks_with_sources_of_different_lengths_are_an_error(workers: int) -> None:
    class OfRank(Sized):
        def __len__(self) -> int:
            return 10 - self.rank

    job = plan({"a": workers}, {"source": ("a", {})}, [call("batch", "source.next", samples=4)], steps=0)
    faults = in_process.run(job, lambda name, rank: OfRank()).faults
    messages = {str(fault) for fault in faults.values() if isinstance(fault, StageError)}
    start = "the length of `source` is 10 on its first rank and"
    assert messages and all(message.startswith(start) for message in messages)


@pytest.mark.parametrize("collect", ["flatten", "first"])
@pytest.mark.parametrize("execute", ["all", "first"])
def test_a_source_delivers_every_sample_whichever_rank_is_its_producer(collect: str, execute: str) -> None:
    seen: list[Any] = []
    job = plan(
        {"a": 2, "b": 1}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=4, collect=collect, execute=execute), call("taken", "echo.take", "batch")], steps=2,
    )  # fmt: skip
    assert not in_process.run(job, lambda name, rank: Source() if name == "source" else Echo(seen)).faults
    assert [id for _, _, batch in seen for id in ids(batch)] == [(n,) for n in range(8)]


def test_weights_of_another_shape_are_refused() -> None:
    class Wide(Weights):
        def __init__(self) -> None:
            super().__init__([])
            self.value = torch.zeros(4, 2)

    outcome = published_to(Wide())
    message = "`w` has the shape [4, 2] where it is loaded and [3, 2] where it comes from"
    assert any(message in str(fault) for fault in outcome.faults.values())


@pytest.mark.parametrize(("length", "is_refused"), [(9, True), (5, False)])
def test_a_short_last_batch_is_refused_only_where_the_run_comes_to_it(length: int, is_refused: bool) -> None:
    """The source has 9 samples, the last of which is alone in step 3; the other one ends the run with `length`."""
    stages = [
        call("batch", "source.next", samples=4),
        call("taken", "echo.take", "batch"),
        call("other", "second.next", samples=4),
    ]
    job = plan({"a": 2}, {"source": ("a", {}), "echo": ("a", {}), "second": ("a", {})}, stages, steps=0)
    lengths = {"source": 9, "second": length}
    outcome = in_process.run(job, lambda name, rank: Echo([]) if name == "echo" else sized(lengths[name]))
    assert any("end with a batch of 1" in str(error) for error in outcome.faults.values()) == is_refused
    assert is_refused or set(outcome.last.values()) == {2}


def test_a_short_last_batch_of_a_stage_that_does_not_run_then_is_no_fault() -> None:
    """`pairs` runs in even steps only, as its second input does, and the sample that is alone comes in step 3."""
    stages = [
        call("batch", "source.next", samples=4),
        call("loss", "echo.loss", "batch", collect="mean", every=2),
        call("pairs", "echo.pair", Input(("batch",), "first"), Input(("loss",), "second")),
    ]
    stages[1] = replace(stages[1], inputs=(Input(("batch",), dispatch=Dispatch(allow_empty=True)),))
    job = plan({"a": 2}, {"source": ("a", {}), "echo": ("a", {})}, stages, steps=0)
    outcome = in_process.run(job, lambda name, rank: Echo([]) if name == "echo" else sized(9))
    assert not outcome.faults and set(outcome.last.values()) == {3}


def test_a_stop_is_a_last_step_that_all_agree_on() -> None:
    class Stopper(Echo):
        @endpoint
        def take(self, batch: Batch) -> Batch:
            if self.step == 4:
                self.stop("enough")
            return batch

    job = plan(
        {"a": 1, "b": 2}, {"source": ("a", {}), "echo": ("b", {})},
        [call("batch", "source.next", samples=4), call("taken", "echo.take", "batch")], steps=100_000,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Stopper([]))
    assert not outcome.faults
    [last] = set(outcome.last.values())
    assert 4 <= last < 100_000


def test_a_stop_from_outside() -> None:
    stop = threading.Event()
    job = plan({"a": 1}, {"source": ("a", {})}, [call("batch", "source.next", samples=4)], steps=0)
    threading.Timer(0.2, stop.set).start()
    outcome = in_process.run(job, lambda name, rank: Source(), stop=stop)
    assert not outcome.faults and outcome.last[0] > 0


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


@pytest.mark.parametrize(("lag", "every"), [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)])
def test_a_sync_is_exact(lag: int, every: int) -> None:
    seen: list[tuple[int, int]] = []
    job = plan(
        {"a": 2, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", lag=lag, every=every)], steps=7,
    )  # fmt: skip
    outcome = in_process.run(
        job,
        lambda name, rank: (
            Source() if name == "source" else Weights(seen if (name, rank) == ("sampler", 0) else [])
        ),
    )
    assert not outcome.faults
    assert [value for _, value in seen] == [0, *(step for step in range(every, 8 - lag) if step % every == 0)]
    versions = [event.value["values"]["version"] for event in outcome.events if event.name == "metric"]
    assert versions == [max(0, (step - 1 - lag) // every * every) for step in range(1, 8)]


@pytest.mark.parametrize("asked", [True, False])
def test_a_sync_compares_checksums_where_the_recipe_states_it(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = itertools.count()
    monkeypatch.setattr(weights, "checksum", lambda tensor: next(sums))
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", checksum=asked)],
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Weights([]))
    assert bool(outcome.faults) == asked
    assert not asked or "`publish`: `w` from " in str(outcome.faults[0])


def test_a_checkpoint_lets_weights_catch_up() -> None:
    seen: list[tuple[int, int]] = []
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", lag=2)],
        steps=6, checkpoint=Checkpoint(every=3),
    )  # fmt: skip
    in_process.run(
        job, lambda name, rank: Source() if name == "source" else Weights(seen if name == "sampler" else [])
    )
    assert [value for _, value in seen] == [0, 1, 2, 3, 4, 5, 6]


def test_a_checkpoint_sends_weights_again_that_changed_after_their_sync() -> None:
    seen: list[tuple[int, int]] = []
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [sync("publish", "actor", "sampler", every=2), call("batch", "source.next", samples=4),
         call("learnt", "actor.learn", "batch", collect="mean"), call("made", "sampler.use", "batch")],
        steps=2, checkpoint=Checkpoint(every=2),
    )  # fmt: skip
    in_process.run(
        job,
        lambda name, rank: Source() if name == "source" else Unversioned(seen if name == "sampler" else []),
    )
    assert [value for _, value in seen] == [0, 1, 2]  # at the start, by the sync of step 2, at the cut


class Unversioned(Weights):
    @endpoint
    def learn(self, batch: Batch) -> dict[str, float]:
        self.value = torch.full((3, 2), float(self.step))
        return {}


class Grown(Weights):
    @endpoint
    def learn(self, batch: Batch) -> None:
        self.value = torch.zeros(2 + self.step, 2)


def test_changed_weights_are_reported_in_one_line_also_at_a_cut() -> None:
    job = plan(
        {"a": 1, "b": 1}, {"source": ("a", {}), "sampler": ("a", {}), "actor": ("b", {})},
        [call("batch", "source.next", samples=4), call("made", "sampler.use", "batch"),
         call("learnt", "actor.learn", "made", collect="mean"), sync("publish", "actor", "sampler", every=5)],
        steps=6, checkpoint=Checkpoint(every=3),
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Grown([]))
    [fault] = [error for error in outcome.faults.values() if isinstance(error, StageError)]
    assert str(fault).endswith("returns other weights or shards than in the first sync")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(pipelines())
def test_random_pipelines_never_deadlock_and_always_end(job: Any) -> None:
    outcome = in_process.run(job, lambda name, rank: made(name), timeout=20)
    assert not outcome.faults
    assert set(outcome.last.values()) == {4}


def test_groups_that_send_to_each_other_in_opposite_orders() -> None:
    job = plan(
        {"a": 2, "b": 2}, {"left": ("a", {}), "right": ("b", {}), "a": ("a", {}), "b": ("b", {})},
        [call("l", "left.next", samples=4), call("r", "right.next", samples=4), call("rl", "b.take", "l"), call("lr", "a.take", "r"),
         call("back", "a.take", "rl"), call("forth", "b.take", "lr")], steps=20,
    )  # fmt: skip
    outcome = in_process.run(
        job, lambda name, rank: Source() if name in ("left", "right") else Echo([]), timeout=20
    )
    assert not outcome.faults
