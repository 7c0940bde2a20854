"""Old step events are folded into their sums, and nothing is lost or counted twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from meshctl.run import event_folding
from meshctl.run import events as events_module
from meshctl.run.directory import RunDir
from meshctl.run.event_folding import MAX_MEMORY, MAX_SUMS, EventFolding, StepSums, folded
from meshctl.run.events import Event, Follower, Journal, StepReport, event_files
from meshctl.run.metrics import as_json

STEPS = 40


class Run:
    """A run whose segments have four steps."""

    def __init__(self, folder: Path) -> None:
        self.dir = RunDir(folder)
        self.follower, self.folding = Follower(self.dir.events), EventFolding(self.dir)
        self.journal = Journal(self.dir.journal("train-0"), "train", 0)
        self.now = 0.0

    def steps(self, first: int, last: int, has_rows: bool = True) -> None:
        for step in range(first, last + 1):
            report = StepReport(
                step, seconds=0.5, stages={"loss": 0.25} if step % 2 else {}, routes={"a -> b": 10}
            )
            report.add_metric("loss", {"value": 1.0}, 1.0, "mean")
            self.journal.write_step(report)
        if has_rows:
            self.rows(last)

    def rows(self, last: int) -> None:
        with self.dir.metrics.open("a") as file:
            file.write(as_json({"step": last, "time": 1.0}))

    def fold(self) -> None:
        list(self.follower.new())
        for _ in range(500):
            self.now += 2.0
            self.folding.poll(self.now, self.follower)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.dir.events.iterdir())


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(events_module, "SEGMENT_BYTES", 1000)
    return Run(tmp_path)


def sums_of(folder: Path) -> tuple[dict[str, object], list[Event]]:
    """Returns the sums over all step events, folded or not, and the other events."""
    sums, others = StepSums(), list[Event]()
    for event in Follower(folder).in_order():
        if event.name in ("step", "steps"):
            sums.add(event)
        elif event.name != "metric":
            others.append(event)
    return sums.event().value, others


def test_old_steps_become_their_sums_and_other_events_stay(run: Run) -> None:
    run.journal.write("phase", phase="connection")
    run.steps(1, STEPS // 2)
    run.journal.write("retried", step=STEPS // 2, error="ValueError", times=1)
    run.journal.write("saved", step=STEPS // 2, files={})
    run.steps(STEPS // 2 + 1, STEPS)
    before = sums_of(run.dir.events)
    segments = len(run.names)
    run.fold()
    assert len(run.names) == 1 + event_folding.KEPT_SEGMENTS + 1 < segments
    sums, others = sums_of(run.dir.events)
    assert sums == before[0]
    assert (sums["first"], sums["count"], sums["seconds"]) == (1, STEPS, 0.5 * STEPS)
    assert (sums["times"], sums["routes"]) == ({"loss": STEPS // 2}, {"a -> b": 10 * STEPS})
    assert [event.name for event in others] == ["phase", "retried"]
    run.steps(STEPS + 1, 3 * STEPS)
    run.fold()
    assert len(run.names) == 1 + event_folding.KEPT_SEGMENTS + 1
    assert sums_of(run.dir.events)[0]["count"] == 3 * STEPS


def test_the_first_step_of_each_attempt_is_kept(run: Run) -> None:
    """It takes longer than the others, and does not count where the time of a run is shown."""
    for first in (1, STEPS + 1):
        run.journal.write("ready", step=first - 1)
        run.steps(first, first + STEPS - 1)
        run.fold()
    run.steps(2 * STEPS + 1, 3 * STEPS)
    run.fold()
    found = [event for event in Follower(run.dir.events).in_order() if event.name in ("step", "steps")]
    folded = [event for event in found if event.name == "steps"]
    kept = [
        event.step for event in found if event.name == "step" and (event.step or 0) < (folded[-1].step or 0)
    ]
    assert kept == [1, STEPS + 1]
    assert sum(event.value["count"] for event in folded) == (folded[-1].step or 0) - len(kept)
    assert sums_of(run.dir.events)[0]["count"] == 3 * STEPS


def test_steps_without_a_row_or_not_read_by_the_supervisor_are_not_folded(run: Run) -> None:
    run.steps(1, STEPS, has_rows=False)
    names = run.names
    run.fold()
    assert run.names == names
    run.rows(STEPS)
    run.follower = Follower(run.dir.events)
    for _ in range(100):
        run.now += 2.0
        run.folding.poll(run.now, run.follower)
    assert run.names == names
    run.fold()
    assert len(run.names) < len(names)


def test_the_reader_and_the_writer_go_on_while_events_are_folded(run: Run) -> None:
    found = list[Event]()
    for begin in range(1, 200, 20):
        run.steps(begin, begin + 19)
        found += run.follower.in_order()
        run.fold()
        if begin % 3 == 1:
            run.journal.close()
            run.journal = Journal(run.dir.journal("train-0"), "train", 0)
    assert [event.step for event in found if event.name == "step"] == list(range(1, 201))
    assert sums_of(run.dir.events)[0]["count"] == 200


class Killed(BaseException):
    pass


@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_a_kill_while_events_are_folded_loses_nothing(
    run: Run, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.steps(1, STEPS)
    real: Callable[..., None] = getattr(Path, call)

    def kill(self: Path, *words: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, kill)
        with pytest.raises(Killed):
            run.fold()
    assert getattr(Path, call) is real
    assert sums_of(run.dir.events)[0]["count"] == STEPS
    after = Run(run.dir.path)
    after.fold()
    assert sums_of(run.dir.events)[0]["count"] == STEPS
    [files] = event_files(run.dir.events).values()
    assert {name for name in run.names if not name.startswith(".")} == {file.name for file in files}


def events_in(steps: range) -> list[Event]:
    value = {"seconds": 0.5, "stages": {"loss": 0.25}, "waits": {}, "routes": {"a -> b": 10}}
    return [Event("step", "train", 0, step, value=value, time=float(step)) for step in steps]


def test_sums_of_a_long_run_are_a_bounded_history() -> None:
    events, steps = list[Event](), 30_000
    for begin in range(1, steps, 10_000):
        events, last = folded(events, events_in(range(begin, begin + 10_000)))
        assert last == begin + 9999
    assert MAX_SUMS / 4 < len(events) <= MAX_SUMS
    assert [event.value["first"] for event in events[1:]] == [(event.step or 0) + 1 for event in events[:-1]]
    whole = StepSums()
    for event in events:
        whole.add(event)
    assert (whole.first, whole.count, whole.seconds) == (1, steps, steps / 2)
    assert whole.totals["routes"] == {"a -> b": 10 * steps} and whole.totals["times"] == {"loss": steps}


def test_events_about_memory_are_thinned_and_others_stay() -> None:
    events = [Event("phase", time=0.5)]
    for begin in range(0, 5000, 100):
        events, _ = folded(events, [Event("memory", time=time) for time in range(begin, begin + 100)])
    assert (
        len(events) <= MAX_MEMORY + 1 and events[-1].time == 4999 and "phase" in {one.name for one in events}
    )
