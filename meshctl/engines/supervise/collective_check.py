"""Finds process groups whose ranks have called different collectives.

    check = CollectiveCheck(plan, resumed_step)
    check.add(event)                  # `step` and `fault` events
    check.stand(group, rank, record)  # progress records of workers that stand
    check.found                       # the first disagreement, or None; `poll` reports it

Each rank reports in its `step` event how many collectives it has called in each process group since its last
one, with a digest of them. The ranks of a process group are compared when all ranks of the device group have
reported.

A rank that waits in a collective for a peer reports no `step`. Its progress record is compared with the
reports and records of its peers: a peer that has left the stage or the step with fewer calls will never join.
Only facts about the past are compared, so a rank that is slow is never reported. A record counts from the
last `step` event of its rank. Two records are compared only if both ranks are in the same step; a peer in a
later one has written an event, which may arrive after its record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.watches import Fault, Watch
from meshctl.network.connection import Message
from meshctl.plan.model import Plan
from meshctl.run.events import Event
from meshctl.run.progress import Activity, Calls, Record
from meshctl.run.shutdown import ENDLESS
from meshctl.text.english import in_words, listed

SITES_MAX = 3
"""Number of call sites that a message lists."""


class Visit(NamedTuple):
    """The activity of a worker between two of its `step` events."""

    step: int
    number: int
    """The number of earlier `step` events for `step`."""


class Place(NamedTuple):
    """The position of a worker in its program, to compare workers."""

    visit: Visit
    position: float
    """The index of the stage in the plan; in a `repeat` block that of the first stage of the block."""
    repeat_pass: int
    stage: int


@dataclass(frozen=True)
class Report:
    """The collectives that one rank has called in one process group between two `step` events."""

    calls: Calls
    sites: Mapping[str, int]
    """Call site -> number of calls."""
    operations: Sequence[str] = ()
    """All operations in order, where `run.checks` is `all`."""


NONE = Report(Calls(), {})
SETUP = Visit(0, 0)


@dataclass
class _Group:
    """The known state of the ranks of one device group."""

    workers: int
    visits: dict[int, Visit] = field(default_factory=dict)
    """Rank -> its visit after its last `step` event."""
    reports: dict[Visit, dict[int, dict[str, Report]]] = field(default_factory=dict)
    """Visit -> rank -> key of a process group -> report, until all ranks have reported."""
    sites: dict[tuple[int, str], Mapping[str, int]] = field(default_factory=dict)
    """Rank and key -> the call sites of its last event that had them."""
    standing: dict[int, Record] = field(default_factory=dict)
    """Rank -> its record, while it stands."""

    @property
    def callers(self) -> list[int]:
        """The ranks that stand and have called a collective since their last `step` event."""
        return [rank for rank, record in self.standing.items() if record.calls]


class CollectiveCheck(Watch):
    def __init__(self, plan: Plan, resumed_step: int = 0) -> None:
        """`resumed_step` is the last step before the attempt."""
        super().__init__()
        self._plan, self._first = plan, Visit(resumed_step + 1, 0)
        self._groups = {group.name: _Group(group.workers) for group in plan.groups if group.program is None}
        self._first_rank = cache(lambda name, key, rank: min(ranks_of(plan, name, key, rank)))
        """Returns the first rank of the process group that a rank of a group has under a key."""
        self.found: Fault | None = None
        """The step in which ranks of a process group have called different collectives, and what differs."""
        self._wrong_step = ENDLESS

    def allows(self, step: int) -> bool:
        """Returns whether the metrics of a step may be written: all ranks have agreed in it and in earlier
        steps."""
        return step < self._wrong_step

    def forget(self, group: str) -> None:
        self._groups[group] = _Group(self._groups[group].workers)

    def is_inside(self, name: str, rank: int) -> bool:
        """Returns whether the last known record of a rank stands in a collective."""
        group = self._groups.get(name)
        record = group.standing.get(rank) if group else None
        return record is not None and bool(record.collective)

    def add(self, event: Event, now: float = 0.0) -> None:
        """Processes an event of a worker. Other events are ignored."""
        if event.group not in self._groups or event.rank is None or self.found:
            return
        if event.name == "step":
            self._report(event.group, event.rank, event.step or 0, event.value.get("collectives", {}))
        elif event.name == "fault" and "progress" in event.value:
            self.stand(event.group, event.rank, Record.of_message(event.value["progress"]))

    def receive(self, message: Message, now: float) -> None:
        if message["type"] == "progress":
            for group, rank, record, _ in message["workers"]:
                self.stand(group, rank, Record.of_message(record))

    def stand(self, name: str, rank: int, record: Record) -> None:
        """Processes the progress record of a worker that stands."""
        group = self._groups.get(name)
        if group is None or self.found or group.visits.get(rank, _visit(record)) > _visit(record):
            return
        group.standing[rank] = record
        for other in group.visits.keys() | group.standing.keys() if record.calls else group.callers:
            if other != rank:
                self._compare_standing(name, rank, other)

    # Reports

    def _report(self, name: str, rank: int, step: int, collectives: Mapping[str, Any]) -> None:
        group = self._groups[name]
        before = group.visits.get(rank, Visit(-1, 0))
        visit = before if before.step == step else Visit(step, 0)
        group.visits[rank] = Visit(step, visit.number + 1)
        if rank in group.standing and _visit(group.standing[rank]) <= visit:
            del group.standing[rank]
        reports = group.reports.setdefault(visit, {})
        reports[rank] = {key: _report(group, rank, key, value) for key, value in collectives.items()}
        for other in group.callers:
            self._compare_standing(name, other, rank)
        if len(reports) == group.workers:
            self._compare_reports(name, visit, group.reports.pop(visit))

    def _compare_reports(self, name: str, visit: Visit, reports: Mapping[int, Mapping[str, Report]]) -> None:
        for key in sorted({key for found in reports.values() for key in found}):
            process_groups: dict[int, dict[int, Report]] = {}
            for rank in sorted(reports):
                members = process_groups.setdefault(self._first_rank(name, key, rank), {})
                members[rank] = reports[rank].get(key, NONE)
            for members in process_groups.values():
                if len({report.calls for report in members.values()}) > 1:
                    self._find(name, key, visit, members, _difference(members))

    # Workers that stand

    def _compare_standing(self, name: str, rank: int, other: int) -> None:
        """Compares a rank that stands with another one, which has reported or stands as well."""
        group = self._groups[name]
        record, peer = group.standing[rank], group.standing.get(other)
        reported = _reported(group, rank, other)
        if reported is not None:
            self._compare_passed(name, rank, record, other, reported, f"rank {other} has ended the step")
        elif peer is None or peer.calls == record.calls:
            return  # as nearly always: they have called the same
        elif self._counted_in(record) == self._counted_in(peer):
            behind, ahead = sorted(
                ((record, rank), (peer, other)), key=lambda one: place_of(self._plan, one[0])
            )
            is_ahead = place_of(self._plan, behind[0]) < place_of(self._plan, ahead[0])
            calls = {key: Report(calls, {}) for key, calls in ahead[0].calls.items()}
            self._compare_passed(
                name, behind[1], behind[0], ahead[1], calls, self._doing(*ahead), is_passed=is_ahead
            )

    def _counted_in(self, record: Record) -> Visit:
        """Returns the visit at whose end the rank reports the calls of a record. The calls of `setup` are
        reported with those of the first step."""
        visit = _visit(record)
        return self._first if visit == SETUP else visit

    def _compare_passed(
        self,
        name: str,
        rank: int,
        record: Record,
        other: int,
        theirs: Mapping[str, Report],
        doing: str,
        is_passed: bool = True,
    ) -> None:
        """Compares the calls of a rank that stands with those of a rank that is at least as far. `is_passed`:
        the other rank has left the stage in which this one stands."""
        for key, own in record.calls.items():
            if self._first_rank(name, key, rank) != self._first_rank(name, key, other):
                continue
            calls = theirs.get(key, NONE).calls
            members = {rank: Report(own, {}), other: Report(calls, {})}
            doings = f"{self._doing(record, rank)}, and {doing}"
            if number := own.first_difference(calls):
                self._find(name, key, _visit(record), members, f"call number {number} differs: {doings}")
            elif is_passed and calls.count < own.count:
                self._find(name, key, _visit(record), members, doings)

    def _doing(self, record: Record, rank: int) -> str:
        stage = self._plan.stages[record.stage].name if record.stage >= 0 else ""
        where = f" in stage `{stage}`" if stage else ""
        if record.collective:
            site = f" at {record.site}" if record.site else ""
            return f"rank {rank} is in `{record.operation}`{site}{where}"
        last = f" (its last collective was `{record.operation}` at {record.site})" if record.site else ""
        return f"rank {rank} is{where or ' between two stages'}{last}"

    # Disagreements

    def _find(self, name: str, key: str, visit: Visit, members: Mapping[int, Report], detail: str) -> None:
        if self.found:
            return
        component, dims, is_of_torch = _parts(key)
        ranks = ranks_of(self._plan, name, key, min(members))
        kind = "torch's collectives" if is_of_torch else "the collectives"
        what = f"{kind} of {listed(dims)} of `{component}` ({_ranks_text(ranks)}) differ"
        text = f"{name}: {what} in step {visit.step}: {_counts_text(members)}; {detail}"
        self._wrong_step = visit.step
        self.found = Fault(Cause(Priority.OWN, text), visit.step, is_wrong=True)
        self._findings.append(self.found)


def place_of(plan: Plan, record: Record) -> Place:
    """Returns the position of a worker, by its progress record."""
    if record.activity == Activity.SAVING:
        return Place(_visit(record), math.inf, 0, 0)
    if record.stage < 0:
        return Place(_visit(record), -1, 0, 0)
    block = plan.stages[record.stage].block
    if not block:
        return Place(_visit(record), record.stage, 0, 0)
    first = next(number for number, stage in enumerate(plan.stages) if stage.block == block)
    return Place(_visit(record), first, record.repeat_pass, record.stage)


def ranks_of(plan: Plan, group: str, key: str, rank: int) -> Sequence[int]:
    """Returns the ranks of a process group, by its key and one of its ranks."""
    component, dims, _ = _parts(key)
    if dims == ("world",):
        return range(plan.group(group).workers)
    if dims == ("local",):
        node = plan.node_of(group, rank)
        return [worker.rank for worker in plan.workers(group, node)]
    return sorted(plan.component(component).mesh.ranks_along(dims, rank))


def _parts(key: str) -> tuple[str, tuple[str, ...], bool]:
    """Returns the component and the dims of a process group, and whether torch counts its collectives."""
    component, dims, *kind = key.split(":")
    return component, tuple(dims.split(",")), bool(kind)


def _report(group: _Group, rank: int, key: str, value: Mapping[str, Any]) -> Report:
    if "sites" in value:
        group.sites[rank, key] = value["sites"]
    sites = group.sites.get((rank, key), {})
    return Report(Calls(value["count"], (value["digest"],)), sites, value.get("operations", ()))


def _reported(group: _Group, rank: int, other: int) -> Mapping[str, Report] | None:
    """Returns the report of the rank `other` on the visit in which `rank` stands; None if it has made none.
    A rank without reports stands in setup or in its first step, and the first report covers both."""
    visits = [visit for visit, reports in group.reports.items() if other in reports]
    visit = _visit(group.standing[rank])
    if visit not in visits and rank not in group.visits:
        visit = min(visits, default=visit)
    return group.reports[visit][other] if visit in visits else None


def _visit(record: Record) -> Visit:
    return Visit(record.step, record.visit)


def _difference(members: Mapping[int, Report]) -> str:
    """Returns the first operation in which two ranks differ, or, where their operations are not known, the
    call sites that they have not reached equally often."""
    one = min(members)
    other = next(rank for rank in members if members[rank].calls != members[one].calls)
    pairs = zip_longest(members[one].operations, members[other].operations, fillvalue="none")
    for number, (own, theirs) in enumerate(pairs, 1):
        if own.partition(" at ")[0] != theirs.partition(" at ")[0]:
            return f"call number {number} differs: rank {one} called {own}, rank {other} called {theirs}"
    sites = [members[rank].sites if members[rank].calls.count else {} for rank in (one, other)]
    found = [
        f"{site} ({sites[0].get(site, 0)} times on rank {one}, {sites[1].get(site, 0)} on rank {other})"
        for site in sorted({*sites[0], *sites[1]})
        if sites[0].get(site, 0) != sites[1].get(site, 0)
    ]
    if found:
        return f"they differ at {', '.join(found[:SITES_MAX])}"
    at = f", called at {', '.join(sorted(sites[0])[:SITES_MAX])}" if sites[0] else ""
    return f"the operations, dtypes or shapes differ, or their order{at}"


def _counts_text(members: Mapping[int, Report]) -> str:
    """Returns `ranks 0, 1 called 7, rank 2 called 6`."""
    by_count: dict[int, list[int]] = {}
    for rank, report in sorted(members.items()):
        by_count.setdefault(report.calls.count, []).append(rank)
    return ", ".join(f"{_ranks_text(ranks)} called {count}" for count, ranks in by_count.items())


def _ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {in_words([*map(str, ranks)])}"
