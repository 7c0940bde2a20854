"""Computes from the sums of all workers the time of each group in a step, and the cost of each call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean, median

from meshctl.plan.model import Plan, Stage
from meshctl.topology.modes import Route
from meshctl.view.times.schedule import Costs
from meshctl.view.times.use import GroupUse, TimeUse, Wait
from meshctl.view.times.worker_times import WorkerTimes

SLOW_RANK = 1.3
"""A rank is slow if it takes this many times the median of its group in a stage."""
SLOW_PART = 0.02
"""A slow rank takes longer than the median by at least this part of a step."""
NO_SIZES: Mapping[str, float] = {}
Ranks = Mapping[int, WorkerTimes]
Workers = Mapping[str, Ranks]
"""Group -> rank -> its sums."""


def time_use(plan: Plan, workers: Workers, sizes: Mapping[str, float] = NO_SIZES) -> TimeUse | None:
    """Returns the use of time of a run; None where no worker has completed two steps, where all groups run
    programs, and for a run of an earlier version, whose events have too few times. `sizes` is route -> its
    bytes. The time of a stage with several routes is divided in proportion to them."""
    known = {
        group.name: {rank: times for rank, times in workers.get(group.name, {}).items() if times.steps}
        for group in plan.groups
        if plan.components_of(group.name)
    }
    groups = [_Group(plan, name, ranks) for name, ranks in known.items() if ranks]
    has_data = any(route.kind == "data" for route in plan.routes)
    if not groups or (has_data and not any(times.sends for group in groups for times in group.all)):
        return None
    uses = {group.name: group.use() for group in groups}
    steps = max(times.steps for group in groups for times in group.all)
    return TimeUse(plan, steps, max(use.seconds for use in uses.values()), uses, _costs(groups, sizes))


def _costs(groups: Iterable[_Group], sizes: Mapping[str, float]) -> Costs:
    costs = [group.costs() for group in groups]
    return Costs(
        calls={stage: seconds for one in costs for stage, seconds in one.calls.items()},
        receives={stage: seconds for one in costs for stage, seconds in one.receives.items()},
        sends={stage: seconds for one in costs for stage, seconds in one.sends.items()},
        syncs={sync: seconds for one in costs for sync, seconds in one.syncs.items()},
        rest={group: seconds for one in costs for group, seconds in one.rest.items()},
        sizes=sizes,
    )


class _Group:
    """The workers of one group, and the stages and routes that they know."""

    def __init__(self, plan: Plan, name: str, ranks: Ranks) -> None:
        self.name, self.all = name, list(ranks.values())
        self._plan, self._ranks = plan, ranks
        self._hosted = [stage for stage in plan.stages if name in self._groups_of(stage)]
        self._ends = {route.name: plan.ends_of(route) for route in plan.routes}
        self._routes = {route.name: route for route in plan.routes if name in self._ends[route.name]}

    def _groups_of(self, stage: Stage) -> tuple[str, ...]:
        """The groups that run a stage: both sides of a sync."""
        own = self._plan.group_of(stage)
        return (own, self._plan.component(stage.to).group) if stage.kind == "sync" else (own,)

    # The time of a group in a step

    def use(self) -> GroupUse:
        calls = {
            stage.name: self._mean("stages", stage.name) for stage in self._hosted if stage.kind == "call"
        }
        syncs = {stage.name: self._moved(stage) for stage in self._hosted if stage.kind == "sync"}
        seconds = fmean(times.seconds / times.steps for times in self.all)
        waits = self._waits()
        busy, waiting = sum(calls.values()), sum(wait.seconds for wait in waits)
        moving = sum(syncs.values()) + sum(
            self._transfer(stage) for stage in self._hosted if stage.kind == "call"
        )
        stages = {name: seconds for name, seconds in (calls | syncs).items() if self._runs(name)}
        rest = max(0.0, seconds - busy - moving - waiting)
        means = {name: seconds / self._rate(name) for name, seconds in stages.items()}
        means |= {
            stage.name: syncs[stage.name] * stage.every for stage in self._hosted if stage.name in syncs
        }
        slow_ranks = self._slow_ranks(calls)
        return GroupUse(seconds, busy, moving, waiting, rest, stages, means, waits, slow_ranks)

    def _runs(self, stage: str) -> bool:
        return self._rate(stage) > 0

    def _rate(self, stage: str) -> float:
        """Returns how often a stage has run in a step."""
        return self._mean("calls", stage)

    def _mean(self, name: str, key: str) -> float:
        """Returns the mean over all workers of a sum, for a step."""
        return fmean(getattr(times, name).get(key, 0.0) / times.steps for times in self.all)

    def _idle(self, name: str) -> float:
        """Returns the seconds of a step in which the workers do nothing because of a route."""
        return sum(self._mean(kind, name) for kind in ("awaited", "full", "peers"))

    def _moved(self, stage: Stage) -> float:
        """Returns the seconds of a step in which a sync moves bytes."""
        whole = self._mean("stages", stage.name) + self._mean("waits", stage.name)
        return max(0.0, whole - self._idle(stage.name))

    def _transfer(self, stage: Stage) -> float:
        """Returns the seconds of a step in which a stage receives and sends."""
        return self._received(stage) + self._sent(stage)

    def _received(self, stage: Stage) -> float:
        idle = sum(self._mean("awaited", route.name) for route in self._into(stage))
        idle += sum(self._mean("peers", route.name) for route in self._into(stage) if not self._sends(route))
        return max(0.0, self._mean("waits", stage.name) - idle)

    def _sent(self, stage: Stage) -> float:
        routes = [route for route in self._routes.values() if route.source == stage.name]
        idle = sum(self._mean("full", route.name) + self._mean("peers", route.name) for route in routes)
        return max(0.0, self._mean("sends", stage.name) - idle)

    def _into(self, stage: Stage) -> list[Route]:
        return [route for route in self._routes.values() if route.target == stage.name]

    def _sends(self, route: Route) -> bool:
        return self._ends[route.name][0] == self.name

    def _waits(self) -> tuple[Wait, ...]:
        found: list[Wait] = []
        for name, route in self._routes.items():
            source, target = self._ends[name]
            found.append(Wait("input", source, route.source, self._mean("awaited", name)))
            found.append(Wait("slot", target, route.target, self._mean("full", name)))
            found.append(Wait("ranks", self.name, route.source, self._mean("peers", name)))
        own = {stage.name for stage in self._hosted}
        for stage in self._plan.stages:  # a source that may end the run, of which this group has no value
            if stage.name not in own:
                asked = self._mean("waits", stage.name)
                found.append(Wait("input", self._plan.group_of(stage), stage.name, asked))
        return tuple(sorted((wait for wait in found if wait.seconds > 0), key=lambda wait: -wait.seconds))

    def _slow_ranks(self, calls: Mapping[str, float]) -> dict[str, int]:
        found: dict[str, int] = {}
        for stage in calls if len(self._ranks) > 1 else ():
            own = {rank: _alone(times, stage) / times.steps for rank, times in self._ranks.items()}
            slow, usual = max(own, key=lambda rank: own[rank]), median(own.values())
            least = SLOW_PART * self._ranks[slow].seconds / self._ranks[slow].steps
            if own[slow] > SLOW_RANK * usual and own[slow] - usual > least:
                found[stage] = slow
        return found

    # The cost of each call

    def costs(self) -> Costs:
        called = [stage for stage in self._hosted if stage.kind == "call" and self._runs(stage.name)]
        synced = [stage for stage in self._hosted if stage.kind == "sync" and self._runs(stage.name)]
        return Costs(
            calls={stage.name: max(self._call(times, stage) for times in self.all) for stage in called},
            receives={stage.name: self._received(stage) * stage.every for stage in called},
            sends={stage.name: self._sent(stage) * stage.every for stage in called},
            syncs={(stage.name, self.name): self._moved(stage) * stage.every for stage in synced},
            rest={self.name: self.use().rest},
        )

    def _call(self, times: WorkerTimes, stage: Stage) -> float:
        """Returns the seconds of a call of a stage on one rank, until its peers have called it as well."""
        if not times.calls.get(stage.name):
            return 0.0
        peers = sum(
            times.peers.get(route.name, 0.0) for route in self._routes.values() if route.source == stage.name
        )
        return (times.stages[stage.name] + peers) / times.calls[stage.name]


def _alone(times: WorkerTimes, stage: str) -> float:
    """Returns the seconds of a worker in a stage without those in collectives, where it waits for others."""
    return times.stages.get(stage, 0.0) - times.in_collectives.get(stage, 0.0)
