"""The computed seconds of a step, for pipelines whose schedule is known, and the laws that hold for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.plan.model import Block, Plan
from meshctl.view.times.bound import bound_of, candidates
from meshctl.view.times.schedule import MAX_INTERVAL, Costs, Schedule
from tests.examples import examples
from tests.runtime.plans import call, plan, sync
from tests.view.times.plans import chain, grpo, with_block

# Known schedules


@pytest.mark.parametrize(
    ("seconds", "groups", "expected"),
    [
        ((0.3, 0.1, 0.2), 3, 0.3),  # groups overlap: the slowest one bounds the run
        ((0.1, 0.1, 0.5), 3, 0.5),
        ((0.2, 0.2), 2, 0.2),
        ((0.3, 0.1, 0.2), 1, 0.6),  # one group does one thing at a time
        ((0.3, 0.1, 0.2), 2, 0.6),  # s0 and s2 in one group: it waits for the other one between them
    ],
)
def test_a_chain_of_stages(seconds: tuple[float, ...], groups: int, expected: float) -> None:
    schedule, costs = chain(*seconds, groups=groups)
    assert schedule.step_seconds(costs) == pytest.approx(expected)


def test_transfers_count_for_the_group_that_sends_or_receives() -> None:
    schedule, costs = chain(0.2, 0.2, groups=2, sends={"s0": 0.05}, receives={"s1": 0.1})
    assert schedule.step_seconds(costs) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("every", "lag", "expected"),
    [
        (1, 0, 0.3 + 0.1 + 0.05),  # strictly on policy: everything one after another
        (1, 1, 0.3 + 0.05),  # one step of staleness: rollouts and training overlap
        (2, 0, (0.3 + 0.3 + 0.1 + 0.05) / 2),
        (2, 2, (0.6 + 0.05) / 2),
    ],
)
def test_a_sync_of_weights(every: int, lag: int, expected: float) -> None:
    schedule = Schedule(grpo(every, lag))
    syncs = {("publish", "rollout"): 0.05, ("publish", "train"): 0.05}
    seconds = schedule.step_seconds(Costs({"rollouts": 0.3, "metrics": 0.1}, syncs=syncs))
    assert seconds == pytest.approx(expected, rel=0.02)


def test_a_stage_that_runs_in_some_steps() -> None:
    stages = [
        call("a", "one.run", samples=8),
        call("b", "two.run", "a"),
        call("exam", "two.exam", "a", every=10),
        call("end", "two.end", "a", when="end"),
    ]
    made = plan({"x": 1, "y": 1}, {"one": ("x", {}), "two": ("y", {})}, stages)
    costs = Costs({"a": 0.01, "b": 0.02, "exam": 1.0, "end": 9.0})
    assert Schedule(made).step_seconds(costs) == pytest.approx(0.02 + 0.1, rel=0.02)
    rare = replace(made, stages=(*stages[:2], replace(stages[2], every=1000), stages[3]))
    assert MAX_INTERVAL < 1000
    assert Schedule(rare).step_seconds(costs) == pytest.approx(0.02 + 0.001, rel=0.02)


def test_passes_of_a_block_overlap_between_groups() -> None:
    stages = [
        call("a", "one.run", samples=32),
        call("b.first", "two.run", "a"),
        call("b.second", "three.run", "b.first"),
        call("after", "one.after", "b.second"),
    ]
    groups = {"one": ("x", dict[str, Any]()), "two": ("y", {}), "three": ("z", {})}
    made = with_block(plan({"x": 1, "y": 1, "z": 1}, groups, stages), Block("b", over="a", size=8, times=2))
    schedule = Schedule(made)
    assert schedule.passes(made.stage("b.first")) == 8
    costs = Costs({"a": 0.0, "b.first": 0.8, "b.second": 0.8})
    assert 0.8 < schedule.step_seconds(costs) < 1.6


# What bounds a run


def test_the_stage_without_which_a_step_is_shortest_bounds_the_run() -> None:
    schedule, costs = chain(0.1, 0.4, 0.3)
    bound = bound_of(schedule, costs, measured=0.44)
    assert bound and (bound.kind, bound.name, bound.group) == ("stage", "s1", "g1")
    assert bound.seconds == pytest.approx(0.3 + 0.04)  # what the schedule does not explain remains
    assert bound.gain == pytest.approx(1 - 0.34 / 0.44)
    assert bound.next and (bound.next.name, bound.next.seconds) == ("s2", pytest.approx(0.1 + 0.04))
    overlapping = bound_of(schedule, costs, measured=0.32)  # the run is faster than its computed schedule
    assert overlapping and overlapping.seconds == pytest.approx(0.3)


def test_without_one_of_two_equal_stages_nothing_is_gained() -> None:
    schedule, costs = chain(0.3, 0.3)
    bound = bound_of(schedule, costs, measured=0.3)
    assert bound and bound.gain == pytest.approx(0) and bound.next
    assert {bound.name, bound.next.name} == {"s0", "s1"} and bound.next.gain == pytest.approx(1)


@pytest.mark.parametrize("difference", [-0.002, 0.0, 0.0003, 0.002])
def test_among_candidates_that_save_nearly_as_much_the_longest_bounds_the_run(difference: float) -> None:
    """The trainer takes a little longer than the rollouts, by its sync or by its stage. Without either of them
    the rollouts would bound the run."""
    schedule = Schedule(grpo(lag=2))
    for train in (0.25, 0.250001, 0.249999):
        syncs = {("publish", "train"): 0.02 + difference}
        bound = bound_of(schedule, Costs({"rollouts": train, "metrics": 0.25}, syncs=syncs), 0.28)
        assert bound and bound.next
        assert {bound.name, bound.next.name} == {"rollouts", "metrics"}, (bound, train)


def test_bytes_and_the_rest_of_a_step_can_bound_a_run() -> None:
    schedule, costs = chain(0.01, 0.02, sends={"s0": 0.3}, receives={"s1": 0.1})
    bound = bound_of(schedule, costs, 0.31)
    assert bound and (bound.kind, bound.name, bound.group) == ("route", "s0 -> s1", "g0")
    assert bound.seconds == pytest.approx(0.02)
    bound = bound_of(schedule, replace(costs, sends={}, rest={"g1": 0.5}), 0.62)
    assert bound and (bound.kind, bound.name, bound.group) == ("rest", "", "g1")
    syncs = {("publish", "rollout"): 0.5, ("publish", "train"): 0.5}
    bound = bound_of(Schedule(grpo()), Costs({"rollouts": 0.1, "metrics": 0.1}, syncs=syncs), 0.7)
    assert bound and (bound.kind, bound.name, bound.seconds) == ("sync", "publish", pytest.approx(0.2))


def test_nothing_bounds_a_run_that_takes_no_time() -> None:
    schedule, costs = chain(0.0, 0.0)
    assert bound_of(schedule, costs, 0.1) is None


# Laws


SECONDS = st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.3])


@st.composite
def runs(draw: st.DrawFn) -> tuple[Plan, Costs]:
    """Returns a pipeline of up to six stages in up to three groups, with a sync, and its costs."""
    groups = draw(st.integers(1, 3))
    count = draw(st.integers(1, 6))
    stages, placed = [], dict[str, tuple[str, dict[str, Any]]]()
    for number in range(count):
        placed[f"c{number}"] = f"g{draw(st.integers(0, groups - 1))}", {}
        inputs = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else ()
        every = draw(st.sampled_from([1, 1, 1, 2, 3, 50]))
        names = [f"s{each}" for each in sorted(inputs)]
        stages.append(call(f"s{number}", f"c{number}.run", *names, every=every, samples=4))
    if draw(st.booleans()):
        ends = [f"c{draw(st.integers(0, count - 1))}" for _ in range(2)]
        more = {"every": draw(st.integers(1, 2)), "lag": draw(st.integers(0, 2))}
        stages.append(sync("publish", *ends, **more))
    made = plan({f"g{number}": 1 for number in range(groups)}, placed, stages)
    calls = [stage.name for stage in stages if stage.kind == "call"]
    syncs = [
        (stage.name, group)
        for stage in stages
        if stage.kind == "sync"
        for group in set(made.ends_of(made.routes[-1]))
    ]
    costs = Costs(
        **{kind: {name: draw(SECONDS) for name in calls} for kind in ("calls", "receives", "sends")},
        syncs={key: draw(SECONDS) for key in syncs},
        rest={f"g{number}": draw(SECONDS) for number in range(groups) if made.components_of(f"g{number}")},
    )
    return made, costs


def work_of(schedule: Schedule, costs: Costs, group: str) -> float:
    """Returns the seconds of a step in which a group does something."""
    seconds = costs.rest.get(group, 0.0)
    for stage in schedule.plan.stages:
        ran = sum(stage.name in schedule.due(step) for step in range(1, schedule.steps + 1)) / schedule.steps
        scale = schedule.every[stage.name] / stage.every * ran
        if stage.kind == "sync":
            seconds += scale * costs.syncs.get((stage.name, group), 0.0)
        elif schedule.plan.group_of(stage) == group:
            seconds += scale * sum(each[stage.name] for each in (costs.calls, costs.receives, costs.sends))
    return seconds


@settings(max_examples=examples(100, 3000))
@given(runs())
def test_a_step_is_as_long_as_the_work_of_any_group_and_no_longer_than_that_of_all(
    run: tuple[Plan, Costs],
) -> None:
    made, costs = run
    schedule = Schedule(made)
    seconds = schedule.step_seconds(costs)
    works = [work_of(schedule, costs, group) for group in schedule.groups]
    assert max(works) - 1e-9 <= seconds <= sum(works) + 1e-9


@settings(max_examples=examples(60, 1000))
@given(runs(), st.data())
def test_a_step_without_something_is_never_longer_and_the_largest_gain_is_found(
    run: tuple[Plan, Costs], data: st.DataObject
) -> None:
    made, costs = run
    schedule = Schedule(made)
    seconds = schedule.step_seconds(costs)
    found = list(candidates(schedule, costs))
    without = {(one.kind, one.name or one.group): schedule.step_seconds(one.without) for one in found}
    for one in found:
        saved = seconds - without[one.kind, one.name or one.group]
        assert -1e-9 <= saved <= one.seconds + seconds * 0.5 / schedule.steps + 1e-9
    bound = bound_of(schedule, costs, seconds)
    if bound:
        assert bound.seconds == pytest.approx(min(without.values()), abs=0.02 * seconds)
        assert 0 <= bound.gain <= 1 and (bound.next is None or bound.next.gain >= bound.gain - 1e-9)
