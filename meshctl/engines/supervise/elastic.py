"""Decides which nodes, devices and processes a run has lost for good, and makes the plan of its next attempt.

    elastic = Elastic(plan, resize)
    elastic.note(cause, absent, missing)     after an attempt that has failed
    elastic.plan_without_lost()              makes `elastic.plan` that of the next attempt
    elastic.can_grow(present)                whether it would be larger with what is back
    elastic.grow(present)                    makes `elastic.plan` the larger one

A worker is lost for good when its node does not rejoin within the join limit, when its device is missing
before an attempt, or when it was the first cause of two attempts in a row. In the last case its device may be
sound: it is used again from the next checkpoint on, and is lost until the next launch if it fails in the same
way again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.engine import Resize
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.plan.model import Plan
from meshctl.plan.resizing import CannotResize, Device, Lost


@dataclass(frozen=True)
class Suspect:
    """A worker that was the first cause of two attempts in a row."""

    group: str
    devices: frozenset[Device] = frozenset()
    rank: int = -1
    """The rank of a process on cpu, which has no device by which it could be known."""


@dataclass(frozen=True)
class Present:
    """The lost nodes and devices that can be used again."""

    nodes: frozenset[int] = frozenset()
    """The nodes that are connected and have passed their examination."""
    devices: frozenset[Device] = frozenset()
    """The lost devices that their nodes have again."""


class Elastic:
    def __init__(self, plan: Plan, resize: Resize | None) -> None:
        """`plan` is that of the whole recipe. `resize` returns the plan without what is lost, and raises
        `CannotResize`; None for a run that cannot change its size."""
        self._whole, self._resize = plan, resize
        self.plan = plan
        """The plan of the running attempt."""
        self._names = {one.group for one in plan.run.elastic} if resize else set[str]()
        self.nodes: set[int] = set()
        """The nodes that are lost."""
        self.devices: set[Device] = set()
        """The devices that were missing."""
        self._suspects: list[Suspect] = []
        self._tried: set[Suspect] = set()
        """The suspects that were used again."""
        self._last: Suspect | None = None
        """The worker that was the first cause of the last attempt."""

    @property
    def is_allowed(self) -> bool:
        return bool(self._names)

    @property
    def is_smaller(self) -> bool:
        """True if the running attempt lacks workers of the recipe."""
        return self.plan.job_size < self._whole.job_size

    def note(self, cause: Cause | None, absent: Collection[int], missing: Collection[Device] = ()) -> None:
        """Notes what is lost after a failed attempt: the nodes that did not join it, the devices that a node
        did not have, and a worker that was the first cause again."""
        if not self.is_allowed:
            return
        self.nodes.update(absent)
        self.devices.update(missing)
        found = self._first_failed(cause)
        if absent or missing:
            found = None  # ranks may have other numbers in the next attempt
        if found and found == self._last:
            self._suspects.append(found)
            found = None
        self._last = found

    def _first_failed(self, cause: Cause | None) -> Suspect | None:
        if cause is None or cause.rank is None or cause.priority > Priority.CODE:
            return None
        if cause.group not in self._names or cause.rank >= self.plan.group(cause.group).workers:
            return None
        kind, worker = self.plan.group(cause.group).device_type, self.plan.worker(cause.group, cause.rank)
        devices = frozenset((kind, device) for device in worker.devices)
        return Suspect(cause.group, devices, -1 if devices else worker.rank)

    def plan_without_lost(self) -> None:
        """Makes the plan without what is lost that of the next attempt. Raises `CannotResize` if the run
        cannot go on. A suspect alone ends no run: it is used again where no smaller plan exists."""
        try:
            self.plan = self._resized()
        except CannotResize:
            if not self._suspects:
                raise
            self._suspects.clear()
            self.plan = self._resized()

    def can_grow(self, present: Present) -> bool:
        """Returns whether the plan with what is back has more workers than the running attempt."""
        try:
            return self._resized(present).job_size > self.plan.job_size
        except CannotResize:
            return False

    def grow(self, present: Present) -> str:
        """Makes the plan with what is back that of the next attempt. Returns why that is not possible; empty
        if it is."""
        self.nodes -= present.nodes
        self.devices -= present.devices
        kept = self._kept_suspects()
        self._tried.update(self._suspects)
        self._suspects, self._last = kept, None
        try:
            self.plan_without_lost()
        except CannotResize as error:
            return str(error)
        return ""

    def _resized(self, present: Present | None = None) -> Plan:
        """Returns the plan without what is lost, or with what of it is `present` again."""
        nodes, devices, suspects = self.nodes, self.devices, self._suspects
        if present is not None:
            nodes, devices = nodes - present.nodes, devices - present.devices
            suspects = self._kept_suspects()
        processes = Counter(one.group for one in suspects if not one.devices)
        own = {device for one in suspects for device in one.devices}
        lost = Lost(frozenset(nodes), frozenset(devices | own), dict(processes))
        return self._resize(lost) if lost and self._resize is not None else self._whole

    def _kept_suspects(self) -> list[Suspect]:
        return [one for one in self._suspects if one in self._tried]


def sizes_of(plan: Plan) -> dict[str, int]:
    """Returns group -> the number of its workers, for all groups."""
    return {group.name: group.workers for group in plan.groups}


def sizes_event(was: Plan, now: Plan) -> dict[str, Any]:
    """Returns the fields of a `restarted` event about groups that change their size: `sizes`, group -> the
    numbers of its workers before and after. Empty without such groups."""
    before, after = sizes_of(was), sizes_of(now)
    sizes = {name: [workers, after[name]] for name, workers in before.items() if after[name] != workers}
    return {"sizes": sizes} if sizes else {}
