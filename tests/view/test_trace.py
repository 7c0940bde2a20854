"""The trace of a run whose workers are on two nodes with other clocks, from files that a test writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.plan.model import Group, Plan, Run
from meshctl.run import clock
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.settings import Trace
from meshctl.run.trace_file import TraceFile
from meshctl.topology.cluster import Cluster
from meshctl.view.trace import TraceWriter
from tests.view.read_trace import Trace as ReadTrace
from tests.view.read_trace import read_back

EPOCH = 1_700_000_000.0
"""The time at which the clocks of the nodes began, in seconds since 1970."""
AHEAD = 5000.0
"""Seconds by which the clock of node 1 is ahead."""
BEGIN = 100.0
"""When the workers begin, by the clock of node 0, in seconds."""
GROUPS = Group("one", "cpu", 1, 0), Group("two", "cpu", 2, 1)
PLAN = Plan("two", 0, Cluster(nodes=2), GROUPS, (), (), (), Run(trace=Trace((3, 4))))


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two clocks of the head stand still, so that they are read at the same time."""
    monkeypatch.setattr(clock, "now", lambda: EPOCH)
    monkeypatch.setattr("meshctl.view.trace.perf_counter", lambda: 0.0)


def span(name: str, begin: float, end: float, *, thread: str = "", category: str = "stage") -> list[object]:
    return [thread, category, name, begin, end, None]


def write(
    run: RunDir,
    group: str,
    rank: int,
    attempt: int,
    steps: dict[int, list[list[object]]],
    at: float,
    node: int = 0,
) -> None:
    """Writes what a worker has recorded in some steps of an attempt, which began at `at`."""
    file = TraceFile(run.traced(group, rank))
    file.begin(attempt, node, min(steps) - 1, at)
    for step, spans in steps.items():
        file.add(attempt, step, spans, 0)
    file.close()


def write_run(run: RunDir, attempt: int = 0, begin: float = BEGIN, steps: range = range(3, 5)) -> None:
    """Writes what one:0, two:0 and two:1 have recorded, of which the last one is on node 1."""
    for group, rank, node in (("one", 0, 0), ("two", 0, 0), ("two", 1, 1)):
        recorded = {}
        for step in steps:
            at = begin + AHEAD * node + step
            frame = ["", "frame", "send a -> b", at + 0.1, at + 0.2, {"to": "two:1", "bytes": 64}]
            recorded[step] = [frame, span(f"attempt {attempt}", at + 0.5, at + 0.6), span("step", at, at + 1)]
        write(run, group, rank, attempt, recorded, begin + AHEAD * node + steps[0], node)


def merged(run: RunDir, *events: Event, error: float = 0.0002) -> ReadTrace:
    writer = TraceWriter(PLAN, run)
    for node, offset in ((0, error / 2), (1, AHEAD + error / 2)):
        for worse in (1, 0, 3):
            value = {
                "node": node,
                "offset": offset + worse * error,
                "error": error * (1 + worse),
                "at": BEGIN,
            }
            writer.on_event(Event("clock", value=value))
    for event in events:
        writer.on_event(event)
    writer.on_end(0, "")
    return read_back(run.trace)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_clocks_are_aligned_by_their_best_measurement(run: RunDir) -> None:
    write_run(run)
    trace = merged(run)
    assert trace.processes == ["launcher of two", "one on node 0", "two on node 0", "two on node 1"]
    begins = {thread: [one.begin for one in slices] for thread, slices in trace.threads.items()}
    for thread, error in (("one:0", 100), ("two:0", 100), ("two:1", 0)):  # microseconds
        assert begins[thread] == pytest.approx([error, 1e6 + error], abs=0.01)
    frames = [one for _, one in trace.slices() if one.category == "frame"]
    assert len(frames) == 6 and {(one.name, one.args["to"]) for one in frames} == {("send a -> b", "two:1")}


def test_a_worker_on_a_clock_that_was_not_measured_keeps_its_times(run: RunDir) -> None:
    TraceWriter(PLAN, run).on_end(0, "")
    assert not run.trace.exists(), "nothing was recorded"
    write_run(run)
    TraceWriter(PLAN, run).on_end(0, "")
    trace = read_back(run.trace)
    assert trace.threads["two:1"][0].begin == pytest.approx(AHEAD * 1e6)


def test_the_last_attempt_of_each_step_counts_on_all_workers(run: RunDir) -> None:
    write_run(run)
    write_run(run, attempt=1, begin=BEGIN + 60, steps=range(4, 5))
    with run.traced("two", 0).open("ab") as file:
        file.write(b'{"attempt":1,"step":4,"dropped":0,"spans":[["","sta')  # killed while it wrote
    trace = merged(run)
    for slices in trace.threads.values():
        assert [one.children[-1].name for one in slices] == ["attempt 0", "attempt 1"]
    write(run, "one", 0, 2, {4: [span("attempt 2", BEGIN + 200, BEGIN + 201)]}, BEGIN + 200)
    run.trace.unlink()
    trace = merged(run)
    assert [len(slices) for slices in trace.threads.values()] == [2, 1, 1]


def test_what_happened_is_where_it_belongs(run: RunDir) -> None:
    write_run(run)
    fault = Event("fault", "two", 1, 4, value={"error": "boom"}, time=EPOCH + BEGIN + 90)
    inside = Event("checkpoint", step=3, value={"path": "x"}, time=EPOCH + BEGIN + 3.5)
    before = Event("stall", value={"text": ["a", "b"]}, time=EPOCH + BEGIN)
    trace = merged(run, fault, inside, before)
    found = {one["name"]: one for one in trace.instants}
    assert found.keys() == {"fault", "checkpoint"}
    assert found["fault"]["ts"] == trace.threads["two:1"][-1].end and found["fault"]["args"] == {
        "text": "boom"
    }
    assert found["checkpoint"]["ts"] == pytest.approx(0.5e6, abs=1000) and found["checkpoint"]["s"] == "g"


def test_a_worker_of_a_smaller_attempt_has_the_clock_of_its_node(run: RunDir) -> None:
    at = BEGIN + AHEAD
    write(run, "two", 0, 1, {3: [span("step", at, at + 1)]}, at, node=1)
    write(run, "one", 0, 1, {3: [span("step", BEGIN, BEGIN + 1)]}, BEGIN)
    value = {"cause": "two:1 failed", "sizes": {"two": [2, 1]}}
    trace = merged(run, Event("restarted", step=3, value=value, time=EPOCH + BEGIN + 0.5))
    assert [slices[0].begin for slices in trace.threads.values()] == pytest.approx([0, 0], abs=200)
    [restart] = trace.instants
    assert restart["args"]["text"] == "restarted after step 3, two with 1 of 2 workers: two:1 failed"


def test_a_file_of_an_earlier_format_is_merged(run: RunDir) -> None:
    facts = {"tag": 7, "of": 3, "to": [[1, 1]], "bytes": 64, "sent": BEGIN}
    lines = (
        {"format": 1, "attempt": 0, "start": 2, "begin": BEGIN, "boot": "b", "mark": None},
        {"attempt": 0, "step": 3, "dropped": 0, "spans": [["", "frame", "a -> b", BEGIN, BEGIN + 1, facts]]},
    )
    path = run.traced("one", 0)
    path.parent.mkdir()
    path.write_text("".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines))
    assert [one.name for one in merged(run).threads["one:0"]] == ["a -> b"]
