"""The end of a run: data that end, streams, exams, and stages of the end."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from meshctl.run.shutdown import StopRequest
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component, endpoint
from meshctl.runtime.errors import StageError
from meshctl.topology.modes import Dispatch
from tests.runtime import in_process
from tests.runtime.loop.sources import Weights, ids, published_to
from tests.runtime.pipelines import Echo, Source, made
from tests.runtime.plans import Checkpoint, Input, call, plan


class Sized(Source):
    length = 10

    def __len__(self) -> int:
        return self.length


class Stream(Source):
    @endpoint
    def next(self, samples: range) -> Batch | None:
        rest = [n for n in samples if n < 10]
        return Batch({"x": torch.tensor(rest)}) if rest else None


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
    """This includes the step of the end, in which a checkpoint was due. Its values are not used as the last
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


def listeners() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "ending"}


@pytest.mark.parametrize("workers", [2, 4])
def test_ranks_with_sources_of_different_lengths_are_an_error(workers: int) -> None:
    class OfRank(Sized):
        def __len__(self) -> int:
            return 10 - self.rank

    job = plan({"a": workers}, {"source": ("a", {})}, [call("batch", "source.next", samples=4)], steps=0)
    before = listeners()
    faults = in_process.run(job, lambda name, rank: OfRank()).faults
    assert listeners() <= before  # none outlives a failed run
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
        [call("batch", "source.next", samples=4), call("taken", "echo.take", "batch")], steps=0,
    )  # fmt: skip
    outcome = in_process.run(job, lambda name, rank: Source() if name == "source" else Stopper([]))
    assert not outcome.faults
    [last] = set(outcome.last.values())
    assert last >= 4


def test_a_stop_from_outside() -> None:
    job = plan({"a": 1}, {"source": ("a", {})}, [call("batch", "source.next", samples=4)], steps=0)

    def ask(so_far: in_process.Outcome) -> StopRequest | None:
        return StopRequest("stop") if any(event.name == "step" for event in so_far.events) else None

    outcome = in_process.run(job, lambda name, rank: Source(), ask=ask)
    assert not outcome.faults and outcome.last[0] > 0
