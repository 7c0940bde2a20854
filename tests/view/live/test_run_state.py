from __future__ import annotations

from meshctl.run.events import Event
from meshctl.view.live.run_state import KEPT, Course, Tally
from tests.view.recorded import Recorded, make_plan


def test_the_state_of_a_group_follows_its_workers() -> None:
    tally = Tally(make_plan())
    group = tally.groups["train"]
    seen = [group.state]
    for name, rank, value in (
        ("started", 0, {}),
        ("started", 1, {}),
        ("ready", 0, {}),
        ("ready", 1, {}),
        ("done", 0, {}),
        ("done", 1, {}),
        ("exited", 0, {"code": 0}),
        ("exited", 1, {"code": -9}),
    ):
        tally.on_event(Event(name, "train", rank, value=value))
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
    assert tally.groups["rollout"].state == "waiting"


def test_who_failed_and_who_was_only_stopped() -> None:
    tally = Tally(make_plan())
    for event in (
        Event("fault", "train", 1, 3, value={"lost": False}),
        Event("fault", "train", 0, 3, value={"lost": True}),
        Event("stopping", value={"reason": "train:1 failed"}),
        *(
            Event("exited", group, rank, value={"code": -15})
            for group in ("rollout", "train")
            for rank in (0, 1)
        ),
    ):
        tally.on_event(event)
    assert tally.groups["train"].states == {0: "stopped", 1: "failed"}
    assert tally.groups["train"].state == "failed" and tally.groups["rollout"].state == "stopped"


def test_a_new_attempt_begins_with_started() -> None:
    tally = Tally(make_plan())
    seen = []
    died = Event("exited", "train", 0, value={"code": -9})
    for event in (Event("stopping"), died, Event("launched"), died, Event("started", "train", 0), died):
        tally.on_event(event)
        seen.append(tally.groups["train"].states.get(0))
    assert seen == [None, "stopped", "stopped", "stopped", "starting", "failed"]


def test_a_run_that_continues_begins_at_its_step() -> None:
    tally = Tally(make_plan())
    tally.on_event(Event("resumed", step=7))
    assert tally.step == 7


def test_time_and_bytes_of_a_run(recorded: Recorded) -> None:
    tally = Tally(recorded.plan)
    recorded.feed(tally)
    assert tally.groups["rollout"].stages["exam"].times == 8
    assert round(tally.groups["rollout"].waits_mean, 6) == round(0.25 - 0.06 - 0.004 / 3, 6)
    assert tally.routes == {"rollouts -> metrics": 12 * 2 * 1500}
    assert tally.steps_per_second == 4.0
    assert [(name, course.first, course.last) for name, course in tally.shown()] == [
        ("exam.reward", 0.3, 1.0),
        ("metrics.loss", 2.0, 2 / 12),
    ]


def test_a_line_that_comes_again_counts_once() -> None:
    tally = Tally(make_plan(show=()))
    tally.on_row({"step": 1, "time": 1.0, "a": 1.0})
    tally.on_row({"step": 1, "time": 1.5, "a": 2.0, "b": 3.0})
    assert [(name, course.points, course.last) for name, course in tally.shown()] == [
        ("a", [1.0], 2.0),
        ("b", [3.0], 3.0),
    ]


def test_a_long_course_is_thinned_evenly() -> None:
    course = Course()
    for value in range(10 * KEPT):
        course.add(float(value))
    gaps = {second - first for first, second in zip(course.points, course.points[1:], strict=False)}
    assert (
        len(course.points) <= KEPT and len(gaps) == 1 and course.first == 0 and course.last == 10 * KEPT - 1
    )


def test_what_is_not_finite_leaves_a_gap_in_the_course() -> None:
    course = Course()
    for value in (None, 1.0, None):
        course.add(value)
    assert (course.first, course.last, course.points) == (1.0, None, [1.0])
