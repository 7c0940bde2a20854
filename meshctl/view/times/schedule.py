"""Computes how long a step takes if each stage, transfer and sync takes a known time.

    Schedule(plan).step_seconds(costs)

Each group runs its stages one after another, in the order of the plan, as `runtime/loop.py` does: a stage
waits for its inputs, and a send waits while all slots of its route are taken. So a group is as far ahead of
another one as the slots allow. The ranks of a group count as one, which takes as long as the slowest of them.
No time becomes shorter if a cost becomes longer, because only sums and maxima are computed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import field
from itertools import groupby

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan, Stage
from meshctl.topology.modes import Route

MAX_INTERVAL = 64
"""The largest `every` that is computed as it is. A stage that runs less often counts as a shorter one that
runs more often."""
MIN_STEPS = 12
"""The least number of steps over which a step is averaged, and of steps before these."""
PASSES = 8
"""The assumed number of passes of a block that runs until its source ends."""


@dataclass(frozen=True)
class Costs:
    """Seconds for each call, transfer or sync, for a group as a whole."""

    calls: Mapping[str, float] = field(default_factory=dict)
    """Stage -> seconds in the called method, in all passes of a step."""
    receives: Mapping[str, float] = field(default_factory=dict)
    """Stage -> seconds to receive its inputs, once they have been sent."""
    sends: Mapping[str, float] = field(default_factory=dict)
    """Stage -> seconds to send its value, while slots are free."""
    syncs: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(sync, group) -> seconds to send weights, to load them, or both."""
    rest: Mapping[str, float] = field(default_factory=dict)
    """Group -> the seconds outside of its stages, in each step."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Route -> the bytes that it carries."""


class Schedule:
    """The stages of a plan in the order in which its groups run them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.every = _intervals(plan)
        """Stage -> its `every` here; without stages that run at the start, at checkpoints or at the end."""
        cycle = math.lcm(*self.every.values())
        self.steps = cycle * -(-MIN_STEPS // cycle)
        """The number of steps over which a step is averaged."""
        self.groups = [group.name for group in plan.groups if plan.components_of(group.name)]
        data = [route for route in plan.routes if route.kind == "data"]
        self.into, self.out_of = defaultdict[str, list[Route]](list), defaultdict[str, list[Route]](list)
        for route in data:
            if route.source in self.every and route.target in self.every:
                self.into[route.target].append(route)
                self.out_of[route.source].append(route)
        self.ends = {route.name: plan.ends_of(route) for route in plan.routes}
        running = [stage for stage in plan.stages if stage.name in self.every]
        self.units = [tuple(unit) for _, unit in groupby(running, lambda stage: stage.block or stage.name)]
        """Stages, and the stages of a block together."""

    def rate(self, stage: str) -> float:
        """Returns how often a stage runs in a step; 0 for one that does not run regularly."""
        return 1 / self.plan.stage(stage).every if stage in self.every else 0.0

    def due(self, step: int) -> frozenset[str]:
        """Returns the stages that run in a step."""
        found: set[str] = set()
        for name, every in self.every.items():
            if step % every == 0 and found.issuperset(self.plan.inputs_of[name] & self.every.keys()):
                found.add(name)
        return frozenset(found)

    def passes(self, stage: Stage) -> int:
        """Returns the number of times that a stage is called in a step, where it is known."""
        if not stage.block:
            return 1
        block = self.plan.block(stage.block)
        samples = self.plan.stage(block.over).samples if block.over in self.every else 0
        if not block.size:
            return PASSES * block.times
        return max(1, math.ceil(samples / block.size)) * block.times

    def step_seconds(self, costs: Costs) -> float:
        """Returns the seconds of a step, on average, once all slots are in use."""
        run = _Run(self, costs)
        for step in range(1, self.steps + 1):
            run.step(step)
        before = dict(run.now)
        for step in range(self.steps + 1, 2 * self.steps + 1):
            run.step(step)
        return max((run.now[group] - before[group] for group in self.groups), default=0.0) / self.steps


def _intervals(plan: Plan) -> dict[str, int]:
    """Returns stage -> `every`, for stages that run regularly. Where no common multiple is small, they are
    rounded down to powers of two."""
    found: dict[str, int] = {}
    known = {stage.name for stage in plan.stages}
    for stage in plan.stages:
        if not stage.when and plan.inputs_of[stage.name] & known <= found.keys():
            found[stage.name] = stage.every
    if math.lcm(*found.values()) <= MAX_INTERVAL:
        return found
    return {name: 1 << (min(every, MAX_INTERVAL).bit_length() - 1) for name, every in found.items()}


class _Run:
    """The groups at a moment of the computation."""

    def __init__(self, schedule: Schedule, costs: Costs) -> None:
        self._schedule, self._plan, self._costs = schedule, schedule.plan, costs
        self.now: dict[str, float] = dict.fromkeys(schedule.groups, 0.0)
        self._sent = defaultdict[str, list[float]](list)
        """Route -> when each value had been sent."""
        self._taken = defaultdict[str, list[float]](list)
        """Route -> when each value was taken by its consumer, whose slot is free from then on."""
        self._versions = defaultdict[str, list[int]](list)
        """Sync -> the step of each version of the weights."""

    def step(self, step: int) -> None:
        due = self._schedule.due(step)
        for unit in self._schedule.units:
            if unit[0].kind == "sync":
                self._sync(unit[0], step, unit[0].name in due)
            elif unit[0].name in due:
                self._run(unit, due)
        for group, seconds in self._costs.rest.items():
            self.now[group] += seconds

    def _run(self, unit: Sequence[Stage], due: Set[str]) -> None:
        """Runs a stage, or all passes of a block."""
        passes, inside = self._schedule.passes(unit[0]), {stage.name for stage in unit}
        for number in range(1, passes + 1):
            for stage in unit:
                group = self._plan.group_of(stage)
                for route in self._schedule.into[stage.name]:
                    if number == 1 or route.source in inside:
                        self._take(route, group)
                seconds = self._seconds(self._costs.receives, stage) + self._seconds(self._costs.calls, stage)
                self.now[group] += seconds / passes
                for route in self._schedule.out_of[stage.name]:
                    if route.target in inside or (number == passes and route.target in due):
                        self._take_slot(route, group)
                self.now[group] += self._seconds(self._costs.sends, stage) / passes
                for route in self._schedule.out_of[stage.name]:
                    if route.target in inside or (number == passes and route.target in due):
                        self._sent[route.name].append(self.now[group])

    def _seconds(self, costs: Mapping[str, float], stage: Stage) -> float:
        return costs.get(stage.name, 0.0) * self._schedule.every[stage.name] / stage.every

    def _take_slot(self, route: Route, group: str) -> None:
        """Waits until a slot of a route is free. A group that feeds itself never waits."""
        sent = len(self._sent[route.name])
        if sent >= route.slots and self._schedule.ends[route.name][1] != group:
            self.now[group] = max(self.now[group], self._taken[route.name][sent - route.slots])

    def _take(self, route: Route, group: str) -> None:
        """Waits until the next value of a route has been sent."""
        taken = self._taken[route.name]
        self.now[group] = max(self.now[group], self._sent[route.name][len(taken)])
        taken.append(self.now[group])

    def _sync(self, stage: Stage, step: int, is_due: bool) -> None:
        """Runs a sync. Without a lag both groups run it together; with one the producers go on, and the
        consumers load weights of earlier steps."""
        source, target = self._schedule.ends[stage.name]
        send, load = (self._sync_seconds(stage, group) for group in (source, target))
        if not stage.lag or source == target:
            if is_due:
                end = max(self.now[source], self.now[target]) + max(send, load)
                self.now[source] = self.now[target] = end
            return
        sent, taken = self._sent[stage.name], self._taken[stage.name]
        if is_due:
            if len(sent) > stage.lag:
                self.now[source] = max(self.now[source], taken[len(sent) - stage.lag - 1])
            self.now[source] += send
            sent.append(self.now[source])
            self._versions[stage.name].append(step)
        while len(taken) < len(sent) and self._versions[stage.name][len(taken)] <= step - stage.lag:
            self.now[target] = max(self.now[target], sent[len(taken)]) + load
            taken.append(self.now[target])

    def _sync_seconds(self, stage: Stage, group: str) -> float:
        return (
            self._costs.syncs.get((stage.name, group), 0.0) * self._schedule.every[stage.name] / stage.every
        )
