"""The ends of an attempt for another one with other nodes. The attempt ends at a checkpoint.

    changes = NodeChanges(session, attempt, ending, forced)
    changes.poll(newest, now)
    changes.outcome        # of the attempt that was ended; None for another end

An attempt with fewer workers ends once lost nodes or devices are back. At each checkpoint the head starts the
lost nodes again, and asks all nodes for the devices that they lacked. When enough of them is back, the
workers save, and the attempt ends as soon as the checkpoint is published.

An attempt also ends when a scheduler ends some of its nodes, such as a pod that is deleted, while the run may
go on without them: the workers save, and the next attempt does without these nodes, or waits for others in
their place. A scheduler that ends the whole job signals all nodes and the head, in any order. The head's own
signal then ends the run in order: either the attempt still runs, or it has just saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from meshctl.engines.engine import nodes_of
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.elastic import Present
from meshctl.engines.supervise.ending import ForcedEnd, OrderlyEnd
from meshctl.engines.supervise.session import FAILED, Outcome, Session
from meshctl.plan.resizing import Device
from meshctl.text.english import in_words

RETRY_S = 30.0
"""Seconds between two attempts to start a lost node, which may take as long to answer."""
TOGETHER_S = 2.0
"""Seconds between the signal of a node and the end of an attempt that has nothing to save, in which the
head's own signal may arrive."""
Action = Literal["", "save", "end"]


class NodeChanges:
    def __init__(self, session: Session, attempt: Attempt, ending: OrderlyEnd, forced: ForcedEnd) -> None:
        self._attempt, self._ending, self._forced = attempt, ending, forced
        self._nodes, self._handle, self._elastic = session.nodes, session.handle, session.elastic
        self._first = self._seen = attempt.step
        """The step of the newest checkpoint, at the beginning of the attempt and at the last poll."""
        self._found: set[Device] = set()
        """The devices that were missing and are there again."""
        self._started = -math.inf
        """The time at which the lost nodes were started last."""
        self._known: Present | None = None
        self._can_grow = False
        """True if the run can be larger with what is known to be back."""
        self._can_leave = session.handle.replaces_nodes and session.restarts.are_allowed
        """True if the run may lose a node that its scheduler ends."""
        self._has_checkpoints = attempt.plan.run.checkpoint is not None
        self._left: set[int] = set()
        self._signalled = math.inf
        """The time at which the first of them was signalled."""
        self._asked: list[int | None] = []
        """The step of the newest checkpoint when the workers were asked to save, if they were."""
        self._back: Present | None = None
        self._has_left = False

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
            self._has_left, self._back = bool(self._left), None if self._left else self._present
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

    @property
    def outcome(self) -> Outcome | None:
        if self._back:
            return Outcome(FAILED, None, "lost workers are back", has_begun=True, back=self._back)
        if self._has_left:
            names = in_words([f"node {node}" for node in sorted(self.leaving)])
            reason = f"the scheduler ends {names}"
            return Outcome(FAILED, None, reason, True, is_restartable=True, left=self.leaving)
        return None
