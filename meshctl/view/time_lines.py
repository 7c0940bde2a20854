"""The use of time as text: a line for a step, a table, and a sentence about the bound of the run.

0.412 s a step  train busy 93 %  rollout waits 61 % for train (metrics)

`metrics` of train bounds the run: without it a step would take 0.12 s in place of 0.41 s (71 % less).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from meshctl.plan.model import Plan
from meshctl.view.formatting import milliseconds, precise
from meshctl.view.times import Bound, GroupUse, TimeUse, Workers, WorkerTimes, time_use

COLUMNS = 80
"""The greatest length of a line, where it can be kept."""
MIN_SHARE = 0.05
"""A smaller part of a step, or a smaller gain, is not mentioned."""
MAX_RANKS = 4
"""The number of ranks of a group, evenly spread, that a line for a step takes into account."""


class Interval:
    """Computes where the time went since the last look at a run, from some ranks of each group."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], WorkerTimes] = {}

    def next(self, plan: Plan, workers: Workers) -> TimeUse | None:
        """Returns where the time went since the last call; None where no group has completed a step."""
        found: dict[str, dict[int, WorkerTimes]] = {}
        for group, ranks in workers.items():
            for rank in sorted(ranks)[:: -(-len(ranks) // MAX_RANKS)] if ranks else ():
                now, before = ranks[rank], self._before.get((group, rank))
                if before and before.steps <= now.steps:  # there are less where the run was launched again
                    found.setdefault(group, {})[rank] = now.since(before)
                else:
                    found.setdefault(group, {})[rank] = now
                self._before[group, rank] = now.since(WorkerTimes())
        return time_use(plan, found)


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


def sentences(use: TimeUse) -> list[str]:
    """Returns the conclusions as lines of at most `COLUMNS` characters."""
    return [
        line for text in conclusions(use) for line in textwrap.wrap(text, COLUMNS - 2, break_on_hyphens=False)
    ]


def conclusions(use: TimeUse) -> Iterator[str]:
    """Yields a sentence about the bound of the run, and one about the staleness of weights."""
    if use.bound:
        yield bound_sentence(use, use.bound)
    if use.staleness:
        ages = ", ".join(
            f"`{sync}` {age:g} {'step' if age == 1 else 'steps'}" for sync, age in use.staleness.items()
        )
        yield f"mean staleness of weights: {ages}"


def bound_sentence(use: TimeUse, bound: Bound) -> str:
    """Returns a sentence about the bound of the run and the gain without it."""
    would = f"a step would take {precise(bound.seconds, use.seconds)} in place of {precise(use.seconds)}"
    if bound.gain < MIN_SHARE:
        other = f", because of {_named(bound.next)}" if bound.next else ""
        return f"nothing bounds the run alone: without {_named(bound)} {would}{other}"
    rank = use.groups[bound.group].slow_ranks.get(bound.name)
    whose = "" if rank is None else f", most of all on {bound.group}:{rank}"
    text = f"{_named(bound)} bounds the run{whose}: without it {would} ({percent(bound.gain)} less)"
    return f"{text}; then {_named(bound.next)} would bound it" if bound.next else text


def _named(bound: Bound) -> str:
    match bound.kind:
        case "stage":
            return f"`{bound.name}` of {bound.group}"
        case "sync":
            return f"moving the weights of `{bound.name}`"
        case "route":
            return f"moving `{bound.name}`"
    return f"what {bound.group} does outside of its stages"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
