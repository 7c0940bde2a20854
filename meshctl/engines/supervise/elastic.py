"""Decides which nodes, devices and processes a run has lost for good, and makes the plan of its next attempt.
`NodeChanges` ends an attempt for another one with other nodes.

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

import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.engines.engine import Handle, Resize, nodes_of
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.ending import ForcedEnd, OrderlyEnd
from meshctl.engines.supervise.nodes import Nodes
from meshctl.plan.model import Plan
from meshctl.plan.resizing import CannotResize, Device, Lost
from meshctl.text.english import in_words


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


RETRY_S = 30.0
"""Seconds between two attempts to start a lost node, which may take as long to answer."""
TOGETHER_S = 2.0
"""Seconds between the signal of a node and the end of an attempt that has nothing to save, in which the
head's own signal may arrive."""
Action = Literal["", "save", "end"]


class NodeChanges:
    """The ends of an attempt for another one with other nodes. The attempt ends at a checkpoint.

    An attempt with fewer workers ends once lost nodes or devices are back. At each checkpoint the head starts
    the lost nodes again, and asks all nodes for the devices that they lacked. When enough of them is back,
    the workers save, and the attempt ends as soon as the checkpoint is published.

    An attempt also ends when a scheduler ends some of its nodes, such as a pod that is deleted, while the run
    may go on without them: the workers save, and the next attempt does without these nodes, or waits for
    others in their place. A scheduler that ends the whole job signals all nodes and the head, in any order.
    The head's own signal then ends the run in order: either the attempt still runs, or it has just saved.
    """

    def __init__(
        self,
        elastic: Elastic,
        nodes: Nodes,
        handle: Handle,
        attempt: Attempt,
        ending: OrderlyEnd,
        forced: ForcedEnd,
    ) -> None:
        self._attempt, self._ending, self._forced = attempt, ending, forced
        self._nodes, self._handle, self._elastic = nodes, handle, elastic
        self._first = self._seen = attempt.step
        """The step of the newest checkpoint, at the beginning of the attempt and at the last poll."""
        self._found: set[Device] = set()
        """The devices that were missing and are there again."""
        self._started = -math.inf
        """The time at which the lost nodes were started last."""
        self._known: Present | None = None
        self._can_grow = False
        """True if the run can be larger with what is known to be back."""
        self._can_leave = handle.replaces_nodes and attempt.plan.run.restarts is not None
        """True if the run may lose a node that its scheduler ends."""
        self._has_checkpoints = attempt.plan.run.checkpoint is not None
        self._left: set[int] = set()
        self._signalled = math.inf
        """The time at which the first of them was signalled."""
        self._asked: list[int | None] = []
        """The step of the newest checkpoint when the workers were asked to save, if they were."""
        self.reason = ""
        """The reason for which the attempt was ended for another one; empty for another end."""
        self.back: Present | None = None
        """The nodes and devices that can be used again, if the attempt was ended for them."""

    def on_devices(self, own: Iterable[Device], missing: Iterable[Device]) -> None:
        """Notes the devices of a node in the plan of the whole recipe, and those of them that it lacks."""
        self._found |= self._elastic.devices.intersection(own)
        self._found -= {*missing}

    def on_stop(self, node: int, now: float) -> bool:
        """Notes that the scheduler ends a node. Returns whether the run goes on without it: it ends if all
        nodes are asked to."""
        own = {*nodes_of(self._attempt.plan)}
        if self._ending.is_asked or not self._can_leave or not own - self._left - {node}:
            return False
        if node in own:
            self._left.add(node)
            self._signalled = min(self._signalled, now)
        return True

    def poll(self, newest: int | None, now: float) -> None:
        """Asks the workers to save, or ends the attempt. `newest` is the step of the newest checkpoint."""
        if self._forced.has_begun or self._ending.is_asked or self._ending.is_last(newest):
            return
        action = self._departure(newest, now) if self._left else self._growth(newest, now)
        if action == "save":
            self._ending.save()
        elif action == "end":
            leaving = in_words([f"node {node}" for node in sorted(self._left)])
            self.reason = f"the scheduler ends {leaving}" if leaving else "lost workers are back"
            self.back = None if leaving else self._present
            self._forced.begin_at(now)

    def _departure(self, newest: int | None, now: float) -> Action:
        """Returns what is to be done because nodes leave."""
        if self._asked:
            return "end" if newest != self._asked[0] else ""
        if not self._has_checkpoints or not self._attempt.has_ended_step:
            return "end" if now - self._signalled > TOGETHER_S else ""
        self._asked = [newest]
        return "save"

    def _growth(self, newest: int | None, now: float) -> Action:
        """Returns what is to be done because lost nodes or devices may be back."""
        if not self._elastic.is_smaller or newest == self._first:
            return ""
        is_fresh, self._seen = newest != self._seen, newest
        if is_fresh:
            self._nodes.ask_devices()
            absent = [node for node in self._elastic.nodes if not self._nodes.is_connected(node)]
            if absent and now - self._started >= RETRY_S:
                self._started = now
                self._handle.restart(sorted(absent))
        if (present := self._present) != self._known:  # the recipe is resolved again
            self._known, self._can_grow = present, self._elastic.can_grow(present)
        if not self._can_grow:
            return ""
        if is_fresh:
            return "end"
        action: Action = "" if self._asked else "save"
        self._asked = [newest]
        return action

    @property
    def _present(self) -> Present:
        """The lost nodes and devices that can be used again."""
        fit = frozenset(node for node in self._elastic.nodes if self._nodes.is_fit(node))
        return Present(fit, frozenset(self._found))

    @property
    def leaving(self) -> frozenset[int]:
        """The nodes that their scheduler ends."""
        return frozenset(self._left)
