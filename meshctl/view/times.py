"""The use of time of a run: the work and the waits of each group in a step, and the bound of the run.

    use = time_use(plan, workers)          # group -> rank -> its `WorkerTimes`
    use.groups["rollout"].idle             # 0.61
    use.bound.name, use.bound.gain         # "metrics", 0.71: the part of a step that it costs

A group is busy in its stages. It moves bytes while it sends, receives and syncs, and it waits while it does
nothing: for values that have not arrived, for a free slot (the consumer has not taken earlier values), or for
other ranks of the same group. The rest are checkpoints, events and the loop itself.

Groups work side by side, so a step without a stage is at least as long as the work of any group, and at least
as long as the step now without the time of that stage. The stage, the transfers or the rest without which a
step is shortest bound the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from functools import cached_property, partial
from statistics import fmean, median
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan
from meshctl.view.formatting import milliseconds, precise

SLOW_RANK = 1.3
"""A rank is slow if it takes this many times the median of its group in a stage."""
SLOW_PART = 0.02
"""A slow rank takes longer than the median by at least this part of a step."""
MIN_PART = 0.01
"""The least difference that counts, as a part of a step. Parts that take less bound no run; of parts whose
savings differ by less, the longest one does."""
SUMS = ("in_collectives", "waits", "sends", "awaited", "full", "peers")
NOTHING: Mapping[str, float] = {}


@dataclass
class WorkerTimes:
    """The seconds of a worker in the steps of an attempt. The first one, which takes longer, is left out."""

    steps: int = 0
    """The number of steps that count."""
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds in the called method, or in a sync."""
    calls: dict[str, int] = field(default_factory=dict)
    """Stage -> the number of steps in which it ran."""
    in_collectives: dict[str, float] = field(default_factory=dict)
    """Stage -> the part of its seconds in collectives."""
    waits: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds until its inputs had arrived."""
    sends: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds until its value was sent."""
    awaited: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which the worker only waited for values to arrive."""
    full: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which it only waited for a free slot."""
    peers: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which it only waited for other ranks of its group."""

    def add(self, value: Mapping[str, Any]) -> None:
        """Adds the value of a `step` or a `steps` event."""
        self.steps += value.get("count", 1)
        self.seconds += value.get("seconds", 0.0)
        times = value.get("times", NOTHING)
        for stage, spent in value.get("stages", NOTHING).items():
            self.stages[stage] = self.stages.get(stage, 0.0) + spent
            self.calls[stage] = self.calls.get(stage, 0) + times.get(stage, 1)
        for name in SUMS:
            if found := value.get(name):
                sums: dict[str, float] = self.__dict__[name]
                for key, seconds in found.items():
                    sums[key] = sums.get(key, 0.0) + seconds

    def alone(self, stage: str) -> float:
        """Returns the mean seconds of a step in a stage without those in collectives, where it waits for
        others."""
        return (self.stages.get(stage, 0.0) - self.in_collectives.get(stage, 0.0)) / self.steps


Workers = Mapping[str, Mapping[int, WorkerTimes]]
"""Group -> rank -> its sums."""


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


@dataclass(frozen=True)
class Part:
    """Something that takes time in a step."""

    kind: Literal["stage", "moving", "rest"]
    """`stage`: the calls of its method. `moving`: the transfer of values and weights. `rest`: the work of a
    group outside of its stages, such as checkpoints."""
    name: str
    """The stage; empty for `moving` and `rest`."""
    group: str
    """The group that runs the stage, or that has the rest; empty for `moving`."""
    seconds: Mapping[str, float]
    """Group -> the seconds that the part takes there."""


@dataclass(frozen=True)
class Bound:
    """The bound of the run, and the time of a step without it."""

    kind: Literal["stage", "moving", "rest"]
    name: str
    group: str
    """As in `Part`."""
    seconds: float
    """The mean seconds of a step without the bound."""
    gain: float
    """The part of a step that would be saved, 0 to 1."""


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
    parts: tuple[Part, ...]

    @cached_property
    def bound(self) -> Bound | None:
        """The bound of the run; None if nothing takes time."""
        if (found := shortest_without(self.parts, self.seconds)) is None:
            return None
        part, seconds = found
        return Bound(part.kind, part.name, part.group, seconds, 1 - seconds / self.seconds)

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
        while found and found not in seen:
            seen.add(found)
            use, then = self.groups[found], self._next(found)
            if then in seen or not then or use.waiting <= use.busy + use.moving:
                break
            found = then
        if not found:
            return "", ""
        stages = self.groups[found].stages
        return found, max(stages, key=lambda stage: stages[stage], default="")

    def _next(self, group: str) -> str:
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
            "groups": {
                name: {
                    **asdict(use),
                    "idle": use.idle,
                    "waits_for": dict(zip(("group", "stage"), self.waits_for(name), strict=True)),
                }
                for name, use in self.groups.items()
            },
            "staleness": self.staleness,
            "bound": None if self.bound is None else asdict(self.bound),
        }


def shortest_without(parts: Sequence[Part], seconds: float) -> tuple[Part, float] | None:
    """Returns the part without which a step of `seconds` is shortest, and the seconds of that step."""
    work: dict[str, float] = {}
    for part in parts:
        for group, own in part.seconds.items():
            work[group] = work.get(group, 0.0) + own

    def left(part: Part) -> float:
        others = (work[group] - part.seconds.get(group, 0.0) for group in work)
        return min(seconds, max(seconds - max(part.seconds.values()), *others))

    long = [part for part in parts if max(part.seconds.values()) > MIN_PART * seconds]
    if not long:
        return None
    least = min(map(left, long)) + MIN_PART * seconds
    best = max((part for part in long if left(part) <= least), key=lambda part: max(part.seconds.values()))
    return best, left(best)


def time_use(plan: Plan, workers: Workers) -> TimeUse | None:
    """Returns the use of time of a run; None where no worker has completed two steps, where all groups run
    programs, and for events of 0.1.0, which have no times of sends."""
    known = {
        group.name: ranks
        for group in plan.groups
        if plan.components_of(group.name)
        and (ranks := {rank: one for rank, one in workers.get(group.name, {}).items() if one.steps})
    }
    everyone = [one for ranks in known.values() for one in ranks.values()]
    has_data = any(route.kind == "data" for route in plan.routes)
    if not known or (has_data and not any(one.sends for one in everyone)):
        return None
    uses = {name: _group_use(plan, name, ranks) for name, ranks in known.items()}
    parts = [part for name, ranks in known.items() for part in _stages(plan, name, ranks)]
    parts.append(Part("moving", "", "", {name: use.moving for name, use in uses.items()}))
    parts += [Part("rest", "", name, {name: use.rest}) for name, use in uses.items()]
    seconds = max(use.seconds for use in uses.values())
    return TimeUse(plan, max(one.steps for one in everyone), seconds, uses, tuple(parts))


def _calls(plan: Plan, group: str) -> list[str]:
    """Returns the stages that call the workers of a group."""
    return [stage.name for stage in plan.stages if stage.kind == "call" and plan.group_of(stage) == group]


def _group_use(plan: Plan, name: str, ranks: Mapping[int, WorkerTimes]) -> GroupUse:
    mean, calls = partial(_mean, ranks), _calls(plan, name)
    syncs = {
        stage.name: stage.every
        for stage in plan.stages  # both sides run a sync
        if stage.kind == "sync" and name in (plan.group_of(stage), plan.component(stage.to).group)
    }
    waits = [wait for wait in _waits(plan, name, ranks, (*calls, *syncs)) if wait.seconds > 0]
    data = [route.name for route in plan.routes if route.kind == "data"]
    in_data = sum(mean(kind, *data) for kind in ("awaited", "full", "peers"))
    stages = {stage: mean("stages", stage) for stage in calls}
    seconds, busy = fmean(one.seconds / one.steps for one in ranks.values()), sum(stages.values())
    waiting = sum(wait.seconds for wait in waits)
    for sync in syncs:
        idle = sum(mean(kind, sync) for kind in ("awaited", "full", "peers"))
        stages[sync] = max(0.0, mean("stages", sync) + mean("waits", sync) - idle)
    moving = sum(stages[sync] for sync in syncs)
    moving += max(0.0, mean("waits", *calls) + mean("sends", *calls) - in_data)
    stages = {stage: spent for stage, spent in stages.items() if mean("calls", stage)}
    return GroupUse(
        seconds,
        busy,
        moving,
        waiting,
        max(0.0, seconds - busy - moving - waiting),
        stages,
        {
            stage: spent * syncs[stage] if stage in syncs else spent / mean("calls", stage)
            for stage, spent in stages.items()
        },
        tuple(sorted(waits, key=lambda wait: -wait.seconds)),
        dict(_slow_ranks(calls, ranks)),
    )


def _mean(ranks: Mapping[int, WorkerTimes], kind: str, *keys: str) -> float:
    """Returns the mean over the workers of a group of some of their sums, for a step."""
    return fmean(sum(getattr(one, kind).get(key, 0.0) for key in keys) / one.steps for one in ranks.values())


def _waits(plan: Plan, name: str, ranks: Mapping[int, WorkerTimes], own: Collection[str]) -> Iterator[Wait]:
    """Yields the waits of a group that runs the stages `own`."""
    for route in plan.routes:
        source, target = plan.ends_of(route)
        if name in (source, target):
            yield Wait("input", source, route.source, _mean(ranks, "awaited", route.name))
            yield Wait("slot", target, route.target, _mean(ranks, "full", route.name))
            yield Wait("ranks", name, route.source, _mean(ranks, "peers", route.name))
    for stage in plan.stages:  # a source that may end the run, of which this group has no value
        if stage.name not in own:
            yield Wait("input", plan.group_of(stage), stage.name, _mean(ranks, "waits", stage.name))


def _slow_ranks(calls: Sequence[str], ranks: Mapping[int, WorkerTimes]) -> Iterator[tuple[str, int]]:
    """Yields the stages in which one rank takes much longer than the others, with this rank."""
    for stage in calls:
        alone = {rank: times.alone(stage) for rank, times in ranks.items()}
        slow, usual = max(alone, key=lambda rank: alone[rank]), median(alone.values())
        least = SLOW_PART * ranks[slow].seconds / ranks[slow].steps
        if alone[slow] > SLOW_RANK * usual and alone[slow] - usual > least:
            yield stage, slow


def _stages(plan: Plan, name: str, ranks: Mapping[int, WorkerTimes]) -> Iterator[Part]:
    """Yields the called stages of a group, with the seconds on the slowest rank, until its peers have called
    them as well."""
    for stage in _calls(plan, name):
        routes = [route.name for route in plan.routes if route.source == stage]
        seconds = max(
            (one.stages.get(stage, 0.0) + sum(one.peers.get(route, 0.0) for route in routes)) / one.steps
            for one in ranks.values()
        )
        yield Part("stage", stage, name, {name: seconds})


COLUMNS = 80
"""The greatest length of a line, where it can be kept."""
MIN_SHARE = 0.05
"""A smaller part of a step, or a smaller gain, is not mentioned."""


def extended(line: str, use: TimeUse | None) -> str:
    """Returns a line about a step with as much about its time as fits."""
    parts = list(parts_of(use)) if use else []
    choices = ["  ".join([line, *parts[start:]]) for start in range(len(parts))]
    choices += [choice.partition(" for ")[0] for choice in choices[-1:]]
    return next((choice for choice in choices if len(choice) <= COLUMNS), line)


def parts_of(use: TimeUse) -> Iterator[str]:
    """Yields the seconds of a step, the busiest group, and the group that waits most, in the order of growing
    importance."""
    yield f"{precise(use.seconds)} a step"
    name, group = max(use.groups.items(), key=lambda one: one[1].share(one[1].busy + one[1].moving))
    yield f"{name} busy {percent(group.share(group.busy + group.moving))}"
    name, group = max(use.groups.items(), key=lambda one: one[1].idle)
    if group.idle >= MIN_SHARE:
        yield f"{name} waits {percent(group.idle)} {for_whom(use, name)}".rstrip()


def for_whom(use: TimeUse, name: str) -> str:
    """Returns for which group and stage a group waits; empty if it waits for none."""
    group, stage = use.waits_for(name)
    if not group:
        return ""
    if group == name:
        return "for its own ranks"
    return f"for {group} ({stage})" if stage else f"for {group}"


def rows(use: TimeUse) -> Iterator[tuple[str, ...]]:
    """Yields the rows of a table: the work of each group in a step, and the group for which it waits."""
    yield "group", "stage", "mean ms", "share", ""
    for name, group in use.groups.items():
        for index, row in enumerate(_rows_of(use, name, group)):
            yield (name if index == 0 else "", *row)


def _rows_of(use: TimeUse, name: str, group: GroupUse) -> Iterator[tuple[str, ...]]:
    for stage, seconds in group.stages.items():
        slow = f"rank {group.slow_ranks[stage]} takes longest" if stage in group.slow_ranks else ""
        yield stage, milliseconds(group.calls[stage]), percent(group.share(seconds)), slow
    syncs = sum(group.stages[stage] for stage in use.staleness if stage in group.stages)
    if (moving := group.moving - syncs) >= MIN_SHARE * group.seconds:
        yield "moving", milliseconds(moving), percent(group.share(moving)), ""
    whom = for_whom(use, name) if group.idle >= MIN_SHARE else ""
    yield "waits", milliseconds(group.waiting), percent(group.idle), whom
    if group.rest >= MIN_SHARE * group.seconds:
        yield "other", milliseconds(group.rest), percent(group.share(group.rest)), ""


def conclusions(use: TimeUse) -> Iterator[str]:
    """Yields a sentence about the bound of the run, and one about the staleness of weights."""
    if use.bound:
        yield bound_sentence(use, use.bound)
    if ages := [f"`{sync}` {age:g} step{'s' * (age != 1)}" for sync, age in use.staleness.items()]:
        yield f"mean staleness of weights: {', '.join(ages)}"


def bound_sentence(use: TimeUse, bound: Bound) -> str:
    """Returns a sentence about the bound of the run and the gain without it."""
    would = f"a step would take {precise(bound.seconds, use.seconds)} in place of {precise(use.seconds)}"
    name = {
        "stage": f"`{bound.name}` of {bound.group}",
        "moving": "moving values and weights",
        "rest": f"what {bound.group} does outside of its stages",
    }[bound.kind]
    if bound.gain < MIN_SHARE:
        return f"nothing bounds the run alone: without {name} {would}"
    rank = use.groups[bound.group].slow_ranks.get(bound.name) if bound.group else None
    whose = "" if rank is None else f", most of all on {bound.group}:{rank}"
    return f"{name} bounds the run{whose}: without it {would} ({percent(bound.gain)} less)"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
