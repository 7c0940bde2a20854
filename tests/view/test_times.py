"""The time of each group in a step, from the sums of its workers, and what bounds the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from meshctl.plan.model import Group, Program
from meshctl.run.event_folding import StepSums
from meshctl.run.events import Event
from meshctl.view.times import (
    COLUMNS,
    Part,
    TimeUse,
    WorkerTimes,
    conclusions,
    extended,
    for_whom,
    parts_of,
    rows,
    shortest_without,
    time_use,
)
from tests.runtime.plans import call, plan, sync

STEPS = 10
PLAN = plan(
    {"rollout": 2, "train": 2},
    {"sampler": ("rollout", {}), "actor": ("train", {})},
    [
        call("rollouts", "sampler.sample", samples=8),
        call("metrics", "actor.update", "rollouts", collect="mean"),
        call("exam", "actor.exam", "rollouts", collect="mean", every=5),
        sync("publish", "actor", "sampler", every=2, lag=1),
    ],
)
ROUTE = "rollouts -> metrics"
Sums = Mapping[str, Mapping[str, float]]


def worker(
    seconds: float, stages: Mapping[str, float], calls: Mapping[str, int] = {}, **sums: object
) -> WorkerTimes:
    """Returns the sums of ten steps, from seconds of one step."""
    scaled = {
        name: {key: STEPS * number for key, number in values.items()}
        for name, values in sums.items()
        if isinstance(values, Mapping)
    }
    ran = {stage: calls.get(stage, STEPS) for stage in stages}
    return WorkerTimes(
        STEPS, STEPS * seconds, {key: STEPS * one for key, one in stages.items()}, ran, **scaled
    )


def used(**changes: Mapping[int, WorkerTimes]) -> TimeUse:
    rollout = worker(
        0.4,
        {"rollouts": 0.1, "publish": 0.02},
        {"publish": 5},
        waits={"rollouts": 0.0, "publish": 0.01},
        sends={"rollouts": 0.25},
        full={ROUTE: 0.2},
        peers={ROUTE: 0.01},
        awaited={"publish": 0.01},
    )
    train = worker(
        0.4,
        {"metrics": 0.3, "exam": 0.04, "publish": 0.01},
        {"publish": 5, "exam": 2},
        waits={"metrics": 0.03, "exam": 0.0},
        awaited={ROUTE: 0.02},
    )
    groups = {"rollout": {0: rollout, 1: rollout}, "train": {0: train, 1: train}, **changes}
    use = time_use(PLAN, groups)
    assert use
    return use


def test_busy_moving_waiting_and_the_rest_are_a_whole_step() -> None:
    use = used()
    rollout, train = use.groups["rollout"], use.groups["train"]
    assert (use.steps, use.seconds) == (STEPS, pytest.approx(0.4))
    assert (rollout.busy, rollout.waiting) == (pytest.approx(0.1), pytest.approx(0.22))
    assert rollout.moving == pytest.approx(0.04 + 0.02)  # of what it sends, and of the sync
    assert rollout.rest == pytest.approx(0.02) and rollout.idle == pytest.approx(0.55)
    reasons = [(wait.reason, wait.group, wait.stage) for wait in rollout.waits]
    assert reasons[0] == ("slot", "train", "metrics")
    assert set(reasons[1:]) == {("ranks", "rollout", "rollouts"), ("input", "train", "publish")}
    assert train.busy == pytest.approx(0.34) and train.moving == pytest.approx(0.01 + 0.01)
    assert train.calls["exam"] == pytest.approx(0.2) and train.stages["exam"] == pytest.approx(0.04)
    assert use.staleness == {"publish": 1.5}
    assert use.waits_for("rollout") == ("train", "metrics")
    parts = {part.name or part.group or part.kind: part.seconds for part in use.parts}
    assert parts["rollouts"] == pytest.approx({"rollout": 0.11}) and parts["metrics"] == {"train": 0.3}
    assert parts["moving"] == pytest.approx({"rollout": 0.06, "train": 0.02})


def test_the_slowest_rank_bounds_a_group_and_is_named() -> None:
    slow = worker(0.4, {"metrics": 0.39}, awaited={ROUTE: 0.0})
    fast = worker(0.4, {"metrics": 0.1}, awaited={ROUTE: 0.3})
    use = used(train={0: fast, 1: slow})
    assert {part.name: part.seconds for part in use.parts}["metrics"] == pytest.approx({"train": 0.39})
    assert use.groups["train"].slow_ranks == {"metrics": 1}
    assert "`metrics` of train bounds the run, most of all on train:1: without it" in " ".join(
        conclusions(use)
    )
    assert ("train", "metrics", "245.00", "61 %", "rank 1 takes longest") in list(rows(use))


def test_a_fast_rank_waits_in_collectives_and_is_not_slow() -> None:
    ranks = {
        rank: replace(
            worker(0.4, {"metrics": 0.39}, awaited={ROUTE: 0.0}), in_collectives={"metrics": 10 * waits}
        )
        for rank, waits in enumerate((0.3, 0.01))
    }
    assert used(train=ranks).groups["train"].slow_ranks == {"metrics": 1}


def test_runs_of_which_too_little_is_known_have_no_times() -> None:
    assert time_use(PLAN, {}) is None and time_use(PLAN, {"rollout": {0: WorkerTimes()}}) is None
    program = Group("ddp", "cpu", 2, 0, program=Program(("train.py",)))
    made = replace(PLAN, groups=(program,), components=(), stages=(), routes=())
    assert time_use(made, {"ddp": {}}) is None


def test_a_run_of_one_group() -> None:
    made = plan({"train": 1}, {"actor": ("train", {})}, [call("metrics", "actor.update", samples=8)])
    use = time_use(made, {"train": {0: worker(0.5, {"metrics": 0.45}, waits={"metrics": 0.0})}})
    assert use and use.bound and (use.bound.name, use.bound.gain) == ("metrics", pytest.approx(0.9))
    assert list(parts_of(use)) == ["0.5 s a step", "train busy 90 %"]
    assert use.waits_for("train") == ("", "") and for_whom(use, "train") == ""
    assert list(conclusions(use)) == [
        "`metrics` of train bounds the run: without it a step would take 0.05 s in place of 0.5 s (90 % less)"
    ]


def test_a_line_about_a_step_has_as_much_as_fits() -> None:
    use = used()
    whole = "0.4 s a step  train busy 90 %  rollout waits 55 % for train (metrics)"
    assert "  ".join(parts_of(use)) == whole
    assert extended("step 1", use) == f"step 1  {whole}"
    for length in range(1, COLUMNS + 10):
        line = extended("x" * length, use)
        assert line.startswith("x" * length) and len(line) <= max(length, COLUMNS)
        assert ("rollout waits 55 %" in line) == (length + 2 + 18 <= COLUMNS)
    assert extended("step 1", None) == "step 1"


def part(name: str, group: str, seconds: float) -> Part:
    return Part("stage", name, group, {group: seconds})


@pytest.mark.parametrize(
    ("seconds", "parts", "bound", "left"),
    [
        (0.3, [("a", "x", 0.3), ("b", "y", 0.1)], "a", 0.1),  # groups overlap
        (0.4, [("a", "x", 0.3), ("b", "y", 0.1)], "a", 0.1),  # one waits for the other
        (0.6, [("a", "x", 0.3), ("b", "x", 0.1), ("c", "x", 0.2)], "a", 0.3),
        (0.3, [("a", "x", 0.3), ("b", "y", 0.3)], "a", 0.3),  # of two equal ones none does
        (0.3, [("a", "x", 0.3), ("b", "y", 0.302)], "b", 0.3),
        (0.5, [("a", "x", 0.2), ("b", "x", 0.1), ("c", "y", 0.25)], "c", 0.3),
        (0.5, [("a", "x", 0.0), ("b", "y", 0.001)], "", 0.0),
    ],
)
def test_without_the_bound_a_step_is_shortest(
    seconds: float, parts: list[tuple[str, str, float]], bound: str, left: float
) -> None:
    found = shortest_without([part(*one) for one in parts], seconds)
    assert (found[0].name if found else "") == bound
    assert (found[1] if found else 0.0) == pytest.approx(left)


def test_a_folded_event_counts_as_the_steps_that_it_replaces() -> None:
    sums, one_by_one, folded = StepSums(), WorkerTimes(), WorkerTimes()
    for number, seconds in enumerate((1.0, 2.0, 3.0, 1.5), 1):
        value = {"seconds": seconds + 0.5, "stages": {"loss": seconds}, "waits": {"loss": 0.25}}
        one_by_one.add(value)
        sums.add(Event("step", "train", 0, number, value=value))
    folded.add(sums.event().value)
    assert folded == one_by_one
