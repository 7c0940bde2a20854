"""The ends of an attempt for another one with other nodes: what was lost is back (`growth`), or the scheduler
ends some nodes (`departure`). The attempt ends at a checkpoint.

    changes = NodeChanges(session, attempt, ending, forced)
    changes.poll(newest, now)
    changes.outcome        # of the attempt that was ended; None for another end
"""

from __future__ import annotations

from meshctl.engines.engine import nodes_of
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.departure import Departure
from meshctl.engines.supervise.elastic import Present
from meshctl.engines.supervise.forced_end import ForcedEnd
from meshctl.engines.supervise.growth import Growth
from meshctl.engines.supervise.orderly_end import OrderlyEnd
from meshctl.engines.supervise.reports import DevicesRead
from meshctl.engines.supervise.session import FAILED, Outcome, Session
from meshctl.text.english import in_words


class NodeChanges:
    def __init__(self, session: Session, attempt: Attempt, ending: OrderlyEnd, forced: ForcedEnd) -> None:
        self._attempt, self._ending, self._forced = attempt, ending, forced
        self._growth = Growth(session.elastic, session.nodes, session.handle, attempt.step)
        is_allowed = session.handle.replaces_nodes and session.restarts.are_allowed
        has_checkpoints = attempt.plan.run.checkpoint is not None
        self._departure = Departure(is_allowed, nodes_of(attempt.plan), has_checkpoints)
        self._back: Present | None = None
        self._has_left = False

    def on_devices(self, report: DevicesRead) -> None:
        self._growth.on_devices(report.own, report.missing)

    def on_stop(self, node: int, now: float) -> bool:
        """Notes that the scheduler ends a node. Returns whether the run goes on without it."""
        return not self._ending.is_asked and self._departure.add(node, now)

    def poll(self, newest: int | None, now: float) -> None:
        """Asks the workers to save, or ends the attempt. `newest` is the step of the newest checkpoint."""
        if self._forced.has_begun or self._ending.is_asked or self._ending.is_last(newest):
            return
        can_save = self._attempt.fold.last > (self._attempt.step or 0)
        action = self._departure.poll(newest, can_save, now)
        is_leaving = bool(self._departure.leaving)
        if not is_leaving:
            action = self._growth.poll(newest, now)
        if action == "save":
            self._ending.save()
        elif action == "end":
            self._has_left, self._back = is_leaving, None if is_leaving else self._growth.present
            self._forced.begin_at(now)

    @property
    def leaving(self) -> frozenset[int]:
        """The nodes that their scheduler ends."""
        return frozenset(self._departure.leaving)

    @property
    def outcome(self) -> Outcome | None:
        if self._back:
            return Outcome(FAILED, None, "lost workers are back", has_begun=True, back=self._back)
        if self._has_left:
            names = in_words([f"node {node}" for node in sorted(self.leaving)])
            reason = f"the scheduler ends {names}"
            return Outcome(FAILED, None, reason, True, is_restartable=True, left=self.leaving)
        return None
