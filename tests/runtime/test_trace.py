"""The tracer of one worker: when it records, what it keeps, and what it leaves behind."""

from __future__ import annotations

import threading
from pathlib import Path
from time import perf_counter

import pytest
import torch

from meshctl.plan.model import Component, Group, Plan, Run, Stage
from meshctl.run.progress import Activity
from meshctl.run.settings import Trace
from meshctl.run.trace_file import WorkerTrace
from meshctl.runtime import trace as module
from meshctl.runtime.progress import Progress
from meshctl.runtime.trace import Tracer
from meshctl.topology.cluster import Cluster
from meshctl.topology.mesh import DeviceMesh
from tests.runtime.memory import MemoryDataPlane

COMPONENT = Component("actor", "parts.Actor", "train", DeviceMesh.from_sizes(dp_size=1))
STAGES = Stage("loss", "call", "actor", "update"), Stage("eval.exam", "call", "actor", "exam", block="eval")
PLAN = Plan("p", 0, Cluster(), (Group("train", "cpu", 1, 0),), (COMPONENT,), STAGES, (), Run())


class Worker:
    """The objects of a worker that is traced, without its loop."""

    def __init__(self, path: Path, first: int, last: int, attempt: int = 0) -> None:
        self.progress, self.data_plane = Progress(), MemoryDataPlane(0, {}, {})
        self.path, profile = path, path.with_suffix(".profile.json")
        self.tracer = Tracer(STAGES, Trace((first, last)), path, profile, 0, attempt)
        self.progress.trace = self.data_plane.trace = self.tracer

    def step(self, number: int, passes: int = 0) -> None:
        self.progress.begin_step(number)
        self.progress.enter(Activity.CALLING, 0, perf_counter())
        self.progress.take_collective_seconds()
        for _ in range(passes):
            self.progress.next_pass("eval")
            self.progress.enter(Activity.CALLING, 1, perf_counter())
        self.progress.end_step()

    def names(self, step: int) -> list[str]:
        found = WorkerTrace(self.path, range(1000))
        return [span[2] for span in found.read(step)] if step in found.attempts else []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace" / "train-0.jsonl"


def test_spans_are_recorded_in_the_window_only(path: Path) -> None:
    worker = Worker(path, 3, 4)
    for number in range(1, 7):
        worker.step(number, passes=2)
    whole = ["loss", "eval.exam", "eval pass 1", "eval.exam", "eval pass 2"]
    assert [worker.names(number) for number in (2, 3, 4, 5)] == [
        [],
        [*whole, "step 3"],
        [*whole, "step 4"],
        [],
    ]


def test_a_run_may_begin_and_end_within_the_window(path: Path) -> None:
    worker = Worker(path, 3, 10)
    worker.step(5)
    worker.progress.begin_step(6)
    worker.progress.enter(Activity.RECEIVING, 0, perf_counter())
    worker.tracer.end()  # as at a fault
    assert not worker.tracer.is_on
    assert (worker.names(5), worker.names(6)) == (["loss", "step 5"], ["inputs of loss", "step 6"])


def test_a_step_that_is_not_part_of_the_run_is_dropped(path: Path) -> None:
    worker = Worker(path, 3, 10)
    worker.step(3)
    worker.progress.begin_step(4)
    worker.progress.enter(Activity.RECEIVING, 0, perf_counter())
    worker.progress.begin_end(3, visit=1)  # the data have ended in step 4
    worker.progress.begin_step(3)
    worker.progress.enter(Activity.CALLING, 1, perf_counter())
    worker.progress.end_step()
    worker.tracer.end()
    assert worker.names(3) == ["loss", "step 3", "eval.exam", "step 3"] and worker.names(4) == []
    other = Worker(path.with_name("train-1.jsonl"), 4, 10)
    other.progress.begin_step(4)
    other.progress.begin_end(3, visit=1)
    assert not other.tracer.is_on and other.names(4) == other.names(3) == []


def test_spans_beyond_the_limits_are_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SPANS_PER_STEP_MAX", 4)
    monkeypatch.setattr(module, "SPANS_MAX", 6)
    worker = Worker(path, 1, 3)
    for number in (1, 2, 3):
        worker.step(number, passes=2)
    trace = WorkerTrace(path, range(1000))
    assert [len(trace.read(number)) for number in (1, 2, 3)] == [4, 4, 0]
    counts = [(1, 2), (2, 2), (3, 6)]
    lines = [f"meshctl: the trace of step {step} lacks {count} spans" for step, count in counts]
    assert capsys.readouterr().err.splitlines() == lines


@pytest.mark.parametrize("problem", ["Not a directory", "No space left on device"])
def test_a_file_that_cannot_be_written_ends_the_trace_and_not_the_run(
    problem: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if problem == "Not a directory":
        path.parent.write_text("in the way")
    else:
        path.parent.mkdir()
        path.symlink_to("/dev/full")
    worker = Worker(path, 1, 3)
    for number in (1, 2, 3, 4):
        worker.step(number)
    assert not worker.tracer.is_on
    assert capsys.readouterr().err.count("the trace is not written: ") == 1


def test_frames_are_spans_that_never_overlap(path: Path) -> None:
    worker = Worker(path, 1, 1)
    plane = worker.data_plane
    worker.progress.begin_step(1)
    worker.progress.enter(Activity.SENDING, 0, perf_counter())
    first, second = plane.lease([0], 5, 16), plane.lease([0], 6, 32)
    plane.deliver(first)
    plane.deliver(second)
    for tag in (5, 6):
        plane.receive(0, tag)
    worker.progress.end_step()
    spans = WorkerTrace(path, range(9)).read(1)
    frames = [(name, facts) for _, category, name, _, _, facts in spans if category == "frame"]
    assert frames == [
        (f"{verb} comparison of peers", {side: "job rank 0", "bytes": nbytes})
        for verb, side in (("send", "to"), ("receive", "from"))
        for nbytes in (16, 32)
    ]
    times = [(begin, end) for _, _, _, begin, end, _ in spans]
    for begin, end in times:
        for other, last in times:
            is_apart, is_within = end <= other or last <= begin, other <= begin and end <= last
            assert is_apart or is_within or (begin <= other and last <= end)


def test_waits_and_what_other_threads_do_are_spans(path: Path) -> None:
    worker = Worker(path, 1, 1)
    worker.progress.begin_step(1)
    worker.progress.enter(Activity.CALLING, 0, perf_counter())
    with worker.progress.calls_of("actor:dp").call(("all_reduce", "sum", torch.float32, 3)):
        pass

    def write_checkpoint() -> None:
        with worker.tracer.span("checkpoint", "write actor"):
            pass

    thread = threading.Thread(target=write_checkpoint, name="checkpoint_0")
    thread.start()
    thread.join()
    worker.progress.end_step()
    spans = WorkerTrace(path, range(9)).read(1)
    assert [(span[0], span[2]) for span in spans] == [
        ("", "all_reduce sum float32 3"),
        ("checkpoint", "write actor"),
        ("", "loss"),
        ("", "step 1"),
    ]
