from __future__ import annotations

import json
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Journal
from meshctl.run.launcher import Launcher
from meshctl.run.metrics import Fold
from meshctl.view.live.run_state import RunState
from meshctl.view.live.state_file import (
    StateFile,
    as_text,
    data_of,
    folded_state,
    read_data,
    read_state,
    state_of,
)
from tests.examples import examples
from tests.view.live.folds import comparable, save
from tests.view.recorded import BEGAN, Recorded, whole_run


def test_another_process_reads_the_state_of_a_run(recorded: Recorded, run: RunDir) -> None:
    view = StateFile(recorded.plan, run)
    data = read_data(run)
    assert (data["state"], data["step"], data["launcher"]["pid"]) == ("running", 0, Launcher.present().pid)
    view.on_attempt(0, None)
    recorded.feed(view)
    view.on_end(0, "")
    recorded.write(run)
    state, launcher = read_state(recorded.plan, run)
    assert launcher == Launcher.present() and state.condition == "done" and state.step == 12
    there = folded_state(recorded.plan, run)
    there.times = state.times  # the recorded events have other times than those that are written now
    assert comparable(state) == comparable(there)


@given(seed=st.integers(0, 2**32), polls=st.integers(1, 30))
@settings(max_examples=examples(12, 500))
def test_a_fold_does_not_depend_on_when_events_are_read(seed: int, polls: int) -> None:
    """A launcher reads the files one after another; afterwards all events are read by their times."""
    recorded, draw = whole_run(), random.Random(seed)
    failed = Event("fault", "train", 1, 9, "metrics", {"lost": False}, BEGAN + 5)
    value = {"workers": ["train:1"], "text": ["stalled"], "seconds": 10.0}
    stalled = Event("stall", value=value, time=BEGAN + 3)
    warned = Event("warning", value={"text": "a warning"}, time=BEGAN + 3.5)
    events = sorted([*recorded.events, failed, stalled, warned], key=lambda event: event.time)
    afterwards, live = RunState(recorded.plan), RunState(recorded.plan)
    bounds = sorted(draw.sample(range(1, len(events)), polls - 1))
    fold = Fold({"rollout": 2, "train": 2}, since=BEGAN)
    for first, last in zip([0, *bounds], [*bounds, len(events)], strict=True):
        files: dict[tuple[str, int | None], list[Event]] = {}
        for event in events[first:last]:
            files.setdefault((event.group, event.rank), []).append(event)
        order = list(files)
        draw.shuffle(order)
        for event in (event for name in order for event in files[name]):
            live.on_event(event)
            for row in fold.add(event):
                live.on_row(row)
    fold, rows = Fold({"rollout": 2, "train": 2}, since=BEGAN), []
    for event in events:
        afterwards.on_event(event)
        rows += fold.add(event)
    for row in rows:
        afterwards.on_row(row)
    one, other = comparable(live), comparable(afterwards)
    for data in (one, other):
        # These depend on the order in a poll: the time of a row, and whether a worker advanced after a report.
        data["last"] = data["first"] = data["stalled"] = None
    assert one == other
    saved = json.loads(as_text(data_of(live, None)))
    assert comparable(state_of(recorded.plan, saved)) == comparable(live)


def test_steps_that_run_again_leave_the_histories(recorded: Recorded) -> None:
    state = RunState(recorded.plan)
    recorded.feed(state, steps=9)
    state.on_event(Event("restarted", step=4, value={"attempt": 1, "cause": "train:1 failed", "left": 2}))
    state.on_attempt(1, 4)
    loss = state.histories["metrics.loss"]
    assert loss.steps == [1, 2, 3, 4] and loss.last == 0.5 and state.step == 4
    assert state.histories["exam.reward"].steps == [3]
    state.on_attempt(2, None)
    assert state.histories == {}


def test_a_run_that_goes_on_keeps_its_histories_and_times(recorded: Recorded, run: RunDir) -> None:
    view = StateFile(recorded.plan, run)
    view.on_attempt(0, None)
    recorded.feed(view)
    view.on_end(143, "")
    view = StateFile(recorded.plan, run)
    assert read_data(run)["state"] == "running"
    view.on_event(Event("launched", value={"attempt": 1}, time=BEGAN + 100))
    view.on_event(Event("resumed", step=6, time=BEGAN + 100))
    view.on_attempt(1, 6)
    view.on_event(Event("warning", value={"text": "again"}, time=BEGAN + 102))
    view.on_end(0, "")
    state, _ = read_state(recorded.plan, run)
    assert state.histories["metrics.loss"].steps == [1, 2, 3, 4, 5, 6]
    assert (state.times.began, state.times.launched) == (BEGAN, BEGAN + 100)
    assert state.times.before == pytest.approx(6.5) and state.attempt == 1


def test_a_stalled_worker_advances_again(recorded: Recorded) -> None:
    state = RunState(recorded.plan)
    stall = Event("stall", value={"workers": ["train:0", "train:1"], "text": ["stalled for 10 s"]})
    state.on_event(stall)
    assert state.condition == "stalled"
    state.on_event(Event("step", "train", 0, 3))
    assert state.condition == "stalled"
    value = {"workers": [], "advanced": ["train:1"], "text": ["train:1 advances"]}
    state.on_event(Event("stall", value=value))
    assert state.condition == "running" and state.stall == ["stalled for 10 s"]


def test_an_end_that_only_the_events_have(recorded: Recorded, run: RunDir) -> None:
    """A full disk may take the last event and not the file."""
    begun = RunState(recorded.plan)
    begun.on_event(Event("launched", time=BEGAN))
    save(run, begun, replace(Launcher.present(), start=1))
    assert read_state(recorded.plan, run)[0].code is None
    journal = Journal(run.journal("launcher"))
    journal.write("over", code=5, reason="train:1 failed")
    journal.close()
    state, _ = read_state(recorded.plan, run)
    assert (state.condition, state.reason) == ("failed", "train:1 failed")


def test_a_deleted_run_directory_is_not_made_again(recorded: Recorded, run: RunDir) -> None:
    view = StateFile(recorded.plan, run)
    run.state.unlink()
    run.path.rmdir()
    view.on_end(5, "the run directory was deleted")
    assert not run.path.exists()


def test_that_the_run_stops_is_written_at_once(
    recorded: Recorded, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second `meshctl stop` would else send a second signal, which ends the run at once."""
    monkeypatch.setattr("meshctl.view.live.state_file.INTERVAL_S", 1e6)
    file = StateFile(recorded.plan, run)
    file.on_attempt(0, None)
    file.on_event(Event("warning", value={"text": "a warning"}))
    while not read_data(run)["warnings"]:
        time.sleep(0.001)
    file.on_event(Event("stopping", value={"reason": "SIGINT"}))
    while read_data(run)["state"] != "stopping":
        time.sleep(0.001)
    file.on_end(130, "interrupted")
