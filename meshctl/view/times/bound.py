"""Finds the bound of a run: the stage, sync, transfer, or rest of a group, without which a step is
shortest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.topology.modes import Route
from meshctl.view.times.schedule import Costs, Schedule

MIN_PART = 0.01
"""The least difference that counts, as a part of a step. Candidates that take less are not tried, and those
whose savings differ by less are equal: measured times, or mere rounding, would decide between them."""


@dataclass(frozen=True)
class Bound:
    """The bound of a run, and the time of a step without it."""

    kind: Literal["stage", "sync", "route", "rest"]
    """`stage`: the calls of its method. `route`, `sync`: the transfer of values or weights. `rest`: the work
    of a group outside of its stages, such as checkpoints."""
    name: str
    """The stage, the sync or the route; empty for `rest`."""
    group: str
    """The group that runs the stage, or sends the values or weights."""
    seconds: float
    """The mean seconds of a step without the bound; in `next`, without both bounds."""
    gain: float
    """The part of a step that would be saved, 0 to 1."""
    next: Bound | None = None
    """The bound of the run without this one."""


class _Candidate(NamedTuple):
    kind: Literal["stage", "sync", "route", "rest"]
    name: str
    group: str
    seconds: float
    """Its seconds in a step: the upper limit of the gain."""
    without: Costs


def bound_of(schedule: Schedule, costs: Costs, measured: float) -> Bound | None:
    """Returns the bound of a run whose steps take `measured` seconds; its `next` is the bound after it. The
    difference between these seconds and the computed schedule is assumed to remain."""
    whole = schedule.step_seconds(costs)
    first = _best(schedule, costs, whole)
    if first is None:
        return None
    candidate, seconds = first
    second = _best(schedule, candidate.without, seconds)
    after = None if second is None else _bound(*second, whole, measured)
    return _bound(candidate, seconds, whole, measured, after)


def _bound(
    one: _Candidate, seconds: float, whole: float, measured: float, after: Bound | None = None
) -> Bound:
    left = min(measured, seconds + max(0.0, measured - whole))
    return Bound(one.kind, one.name, one.group, left, 1 - left / measured, after)


def _best(schedule: Schedule, costs: Costs, whole: float) -> tuple[_Candidate, float] | None:
    """Returns the candidate without which a step is shortest, and the seconds of that step. Among equal
    candidates, the one with the longest time is returned. A candidate that cannot save more than the best so
    far is not tried."""
    least = MIN_PART * whole
    best: tuple[_Candidate, float] | None = None
    found = [one for one in candidates(schedule, costs) if one.seconds > least]
    for one in sorted(found, key=lambda one: -one.seconds):
        if best and one.seconds <= whole - best[1] + least:
            break
        seconds = schedule.step_seconds(one.without)
        if best is None or seconds < best[1] - least:
            best = one, seconds
    return best


def candidates(schedule: Schedule, costs: Costs) -> Iterator[_Candidate]:
    """Yields each stage, sync, route and rest, with the costs of a run without it."""
    plan = schedule.plan
    for name, seconds in costs.calls.items():
        group = plan.group_of(plan.stage(name))
        without = replace(costs, calls={**costs.calls, name: 0.0})
        yield _Candidate("stage", name, group, schedule.rate(name) * seconds, without)
    for name in {sync: None for sync, _ in costs.syncs}:
        left = {key: seconds for key, seconds in costs.syncs.items() if key[0] != name}
        both = sum(seconds for key, seconds in costs.syncs.items() if key[0] == name)
        group = plan.group_of(plan.stage(name))
        yield _Candidate("sync", name, group, schedule.rate(name) * both, replace(costs, syncs=left))
    for routes in schedule.into.values():
        for route in routes:
            yield _without_route(schedule, costs, route)
    for group, seconds in costs.rest.items():
        yield _Candidate("rest", "", group, seconds, replace(costs, rest={**costs.rest, group: 0.0}))


def _without_route(schedule: Schedule, costs: Costs, route: Route) -> _Candidate:
    sends = _left(costs.sends, route.source, _share(costs, route, schedule.out_of[route.source]))
    receives = _left(costs.receives, route.target, _share(costs, route, schedule.into[route.target]))
    saved = schedule.rate(route.source) * (costs.sends.get(route.source, 0.0) - sends[route.source])
    saved += schedule.rate(route.target) * (costs.receives.get(route.target, 0.0) - receives[route.target])
    group = schedule.plan.group_of(schedule.plan.stage(route.source))
    return _Candidate("route", route.name, group, saved, replace(costs, sends=sends, receives=receives))


def _left(costs: Mapping[str, float], stage: str, share: float) -> dict[str, float]:
    return {**costs, stage: costs.get(stage, 0.0) * (1 - share)}


def _share(costs: Costs, route: Route, routes: list[Route]) -> float:
    """Returns the share of `route` in the bytes of `routes`, 0 to 1."""
    total = sum(costs.sizes.get(one.name, 0.0) for one in routes)
    return costs.sizes.get(route.name, 0.0) / total if total else 1 / len(routes)
