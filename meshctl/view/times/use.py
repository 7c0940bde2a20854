"""The use of time of a run: the work and the waits of each group in a step, and the bound of the run.

    use = time_use(plan, workers)          # in `measures`: group -> rank -> its `WorkerTimes`
    use.groups["rollout"].idle             # 0.61
    use.bound.name, use.bound.gain         # "metrics", 0.71: the part of a step that it costs

A group is busy in its stages. It moves bytes while it sends, receives and syncs, and it waits while it does
nothing: for values that have not arrived, for a free slot (the consumer has not taken earlier values), or for
other ranks of the same group. The rest are checkpoints, events and the loop itself.

The bound of the run is found by computing the schedule of all groups (`schedule`) with the measured seconds,
and again without each stage, sync, transfer, and rest. Without the bound, a step is shortest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from functools import cached_property
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan
from meshctl.view.times.bound import Bound, bound_of
from meshctl.view.times.schedule import Costs, Schedule


@dataclass(frozen=True)
class Wait:
    """The seconds of a step in which a group does nothing, for one reason."""

    reason: Literal["input", "slot", "ranks"]
    """`input`: values have not arrived. `slot`: the consumer has not taken earlier ones. `ranks`: other ranks
    of the group are not there."""
    group: str
    """The group for which it waits."""
    stage: str
    """The stage of that group at the other end of the route."""
    seconds: float


@dataclass(frozen=True)
class GroupUse:
    """The time of a group in a step: the mean seconds of its workers."""

    seconds: float
    """The whole step."""
    busy: float
    """In the methods of its stages."""
    moving: float
    """Sending, receiving and syncing."""
    waiting: float
    rest: float
    """Everything else: checkpoints, events, the loop."""
    stages: Mapping[str, float]
    """Stage -> seconds in its method, or, for a sync, in the transfer of bytes."""
    calls: Mapping[str, float]
    """Stage -> the mean seconds of a call or of a sync. They exceed `stages` for a stage that does not run in
    each step."""
    waits: tuple[Wait, ...] = ()
    """The longest first."""
    slow_ranks: Mapping[str, int] = field(default_factory=dict)
    """Stage -> the rank that takes much longer in it than the others."""

    @property
    def idle(self) -> float:
        """The part of a step in which it waits, 0 to 1."""
        return self.share(self.waiting)

    def share(self, seconds: float) -> float:
        """Returns seconds as a part of a step, 0 to 1."""
        return min(1.0, seconds / self.seconds) if self.seconds else 0.0

    @property
    def is_waiting(self) -> bool:
        """True if it waits more than it works."""
        return self.waiting > self.busy + self.moving

    @property
    def longest_stage(self) -> str:
        return max(self.stages, key=lambda stage: self.stages[stage], default="")


@dataclass(frozen=True)
class TimeUse:
    """The use of time of a run, over the steps of an attempt without the first one."""

    plan: Plan
    steps: int
    """The number of steps over which the means are taken."""
    seconds: float
    """The mean seconds of a step."""
    groups: Mapping[str, GroupUse]
    """The groups that run stages."""
    costs: Costs

    @cached_property
    def bound(self) -> Bound | None:
        """The bound of the run; None if nothing takes time. It is computed on first use."""
        return bound_of(Schedule(self.plan), self.costs, self.seconds)

    @property
    def staleness(self) -> dict[str, float]:
        """Sync -> the mean age of its target's weights, in steps behind the newest ones. It follows from
        `every` and `max_staleness`, since a sync is exact."""
        return {
            stage.name: stage.lag + (stage.every - 1) / 2
            for stage in self.plan.stages
            if stage.kind == "sync"
        }

    def waits_for(self, group: str) -> tuple[str, str]:
        """Returns the group for which a group waits most, and the longest stage of that group. If that group
        mostly waits itself, the search continues with the group for which it waits. Both texts are empty if
        the group waits for no other."""
        found, seen = self._next(group), {group}
        while found and found not in seen and self.groups[found].is_waiting and self._next(found):
            seen.add(found)
            if self._next(found) in seen:  # a circle
                break
            found = self._next(found)
        return (found, self.groups[found].longest_stage) if found else ("", "")

    def _next(self, group: str) -> str:
        """Returns the group for which a group waits most; empty for none."""
        sums: dict[str, float] = {}
        for wait in self.groups[group].waits:
            if wait.group in self.groups:
                sums[wait.group] = sums.get(wait.group, 0.0) + wait.seconds
        return max(sums, key=lambda name: sums[name], default="")

    def to_data(self) -> dict[str, Any]:
        """Returns plain data, in seconds, for `--format json` and other programs."""
        return {
            "steps": self.steps,
            "seconds": self.seconds,
            "groups": {name: self._group_data(name) for name in self.groups},
            "staleness": self.staleness,
            "bound": None if self.bound is None else asdict(self.bound),
        }

    def _group_data(self, name: str) -> dict[str, Any]:
        group, stage = self.waits_for(name)
        use = self.groups[name]
        return {**asdict(use), "idle": use.idle, "waits_for": {"group": group, "stage": stage}}
