from __future__ import annotations

import json

import pytest

from meshctl.run.events import Event, restart_line
from meshctl.view.live.run_state import RunState
from meshctl.view.live.state_file import as_text, data_of, state_of
from tests.view.recorded import make_plan


def test_the_state_of_a_group_follows_its_workers() -> None:
    state = RunState(make_plan())
    group = state.groups["train"]
    seen = [group.state]
    for name in ("started", "ready", "done", "exited"):
        for rank in (0, 1):
            value = {"code": (0, -9)[rank]} if name == "exited" else {}
            state.on_event(Event(name, "train", rank, value=value))
            seen.append(group.state)
    assert seen == [
        "waiting",
        "starting",
        "starting",
        "starting",
        "running",
        "running",
        "done",
        "done",
        "failed",
    ]
    assert state.groups["rollout"].state == "waiting"


def test_who_failed_and_who_was_only_stopped() -> None:
    state = RunState(make_plan())
    state.on_event(Event("fault", "train", 1, 3, value={"lost": False}))
    state.on_event(Event("fault", "train", 0, 3, value={"lost": True}))
    state.on_event(Event("stopping", value={"reason": "train:1 failed"}))
    for group, rank in (("rollout", 0), ("rollout", 1), ("train", 0), ("train", 1)):
        state.on_event(Event("exited", group, rank, value={"code": -15}))
    assert state.groups["train"].states == {0: "stopped", 1: "failed"}
    assert state.groups["train"].state == "failed" and state.groups["rollout"].state == "stopped"


def test_a_new_attempt_begins_with_started() -> None:
    state = RunState(make_plan())
    seen = []
    died = Event("exited", "train", 0, value={"code": -9})
    for event in (Event("stopping"), died, Event("launched"), died, Event("started", "train", 0), died):
        state.on_event(event)
        seen.append(state.groups["train"].states.get(0))
    assert seen == [None, "stopped", "stopped", "stopped", "starting", "failed"]


def test_phases_take_as_long_as_on_the_slowest_worker() -> None:
    state = RunState(make_plan())
    group = state.groups["train"]
    for rank, phase, time in ((0, "connection", 10.0), (1, "connection", 10.0), (0, "setup", 10.05),
                              (1, "setup", 10.04), (0, "first sync", 12.0)):  # fmt: skip
        state.on_event(Event("phase", "train", rank, value={"phase": phase}, time=time))
    assert group.phase == "setup" and group.slow_phases == [("setup", pytest.approx(1.95))]
    for rank in (0, 1):
        state.on_event(Event("ready", "train", rank, time=14.0))
    assert group.phase == ""
    assert group.phases == pytest.approx({"connection": 0.05, "setup": 3.96, "first sync": 2.0})
    state.on_event(Event("launched"))
    assert group.phases == {}, "phases are those of the last attempt"


def test_the_row_before_step_1_does_not_count_for_the_rate() -> None:
    state = RunState(make_plan())
    for step, time in ((0, 0.0), (1, 60.0), (3, 61.0)):
        state.on_row({"step": step, "time": time})
    assert state.steps_per_second == 2.0
    state.on_event(Event("resumed", step=7))
    assert state.step == 7


def test_a_line_that_comes_again_counts_once() -> None:
    state = RunState(make_plan(show=()))
    state.on_row({"step": 1, "time": 1.0, "a": 1.0})
    state.on_row({"step": 1, "time": 1.5, "a": 2.0, "b": 3.0})
    shown = [(name, history.points, history.last) for name, history in state.shown()]
    assert shown == [("a", [1.0], 2.0), ("b", [3.0], 3.0)]


def test_a_smaller_attempt_has_fewer_workers() -> None:
    state = RunState(make_plan())
    group = state.groups["train"]
    for rank in (0, 1):
        state.on_event(Event("ready", "train", rank, time=1.0))
    state.on_event(Event("launched", value={"attempt": 1, "workers": {"train": 1, "other": 3}}, time=2.0))
    assert group.workers == 1 and list(group.states) == [0]
    saved = json.loads(as_text(data_of(state, None)))
    assert state_of(state.plan, saved).groups["train"].workers == 1 == saved["groups"]["train"]["workers"]
    value = {"cause": "train:1 failed: killed by SIGKILL", "sizes": {"train": [2, 1]}}
    line = "restarted after step 40, train with 1 of 2 workers: train:1 failed: killed by SIGKILL"
    assert restart_line(Event("restarted", step=40, value=value)) == line
    state.on_event(Event("launched", value={"attempt": 2, "workers": {"train": 2}}, time=3.0))
    assert group.workers == 2


def test_a_group_that_restarts_no_longer_holds_up_the_run() -> None:
    state = RunState(make_plan())
    state.on_event(Event("stall", value={"workers": ["rollout:0", "train:1"], "text": ["stalled"]}, time=1.0))
    value = {"group": "rollout", "cause": "rollout:0 failed: it is stopped", "generation": 1}
    state.on_event(Event("restarted", step=4, value=value, time=2.0))
    assert state.stalled == ["train:1"]
    assert state.restarts == ["rollout restarts alone: rollout:0 failed: it is stopped"]
