"""The end of an attempt. At an orderly end, the workers agree on a last step, which all of them execute and
save.

orderly = OrderlyEnd(plan, store, journal)
orderly.stop(StopRequest(reason))       # the supervisor asks for the end
orderly.save()                          # ... or for a checkpoint, after a step that all agree on
orderly.poll()                          # requests of workers, and the agreement
orderly.reason(judge.stop)              # why the run ended, once it has

forced = ForcedEnd(nodes, handle)       # SIGTERM to all agents, SIGKILL, and then the node processes are
killed forced.begin_at(now); forced.poll(now)"""

from __future__ import annotations

import math
import signal
from enum import Flag, auto

from meshctl.engines.engine import STOP_KEY, Handle
from meshctl.engines.node.termination import GRACE_S
from meshctl.engines.supervise.nodes import Nodes
from meshctl.network.control_store import StoreClient
from meshctl.plan.model import Plan
from meshctl.run.events import Event, Journal
from meshctl.run.settings import end_of_data
from meshctl.run.shutdown import PREFIX, Proposer, StopRequest


class Ending(Flag):
    """The reasons for which a head ends an attempt, beside deaths, exceptions and the end of the data."""

    NONE = 0
    SIGNAL = auto()
    TIME_LIMIT = auto()
    METRIC = auto()
    """A metric is not finite."""
    WRONG = auto()
    """The results are wrong, so that another attempt would only fail again."""
    UNFIT = auto()
    """A node lacks something that a worker needs, before one has started."""


class OrderlyEnd:
    def __init__(self, plan: Plan, store: StoreClient, journal: Journal) -> None:
        """`store` is the part of the control store that belongs to the attempt."""
        ranks = [
            group.first_job_rank + rank
            for group in plan.groups
            if not group.program
            for rank in range(group.workers)
        ]
        self._store, self._journal = store, journal
        self._proposer = Proposer(store.under(PREFIX), ranks)
        self._has_workers = bool(ranks)
        """Programs take no part in the agreement: they read the request from the store."""
        self.is_asked = False
        self._planned: int | None = None
        """The planned last step, where there is one."""
        self._agreed: int | None = None
        """The agreed last step."""
        self._ended_by = ""
        """The source that has ended, or the first request, because of which the run ends before its
        `steps`."""
        self._first_end = math.inf
        """The earliest step in which a stream ended. Groups that run ahead may report a later one first."""

    @property
    def is_agreeing(self) -> bool:
        """True if the workers agree on the last step now."""
        return self.is_asked and self._agreed is None

    @property
    def is_deciding(self) -> bool:
        """True if the step of the end or of a checkpoint is to be announced as soon as all workers have
        answered."""
        return self.is_agreeing or self._proposer.is_saving

    @property
    def words(self) -> int:
        """The number of announcements to the workers so far."""
        return self._proposer.words

    def on_ready(self, event: Event) -> None:
        """Notes the planned last step, which a worker knows when it is ready."""
        self._planned = event.value.get("last")
        if (source := event.value.get("source")) and not self._ended_by:
            self._ended_by = end_of_data(source)

    def is_last(self, step: int | None) -> bool:
        """Returns whether a step is the last one, as far as it is known."""
        return step is not None and step in (self._planned, self._agreed)

    def stop(self, asked: StopRequest, is_reason: bool = True) -> None:
        """Asks for the end. `is_reason`: the request is the reason for the end, if it is the first one."""
        is_first = not self.is_asked and is_reason
        if asked.ended is not None:
            is_first = asked.ended < self._first_end
            self._first_end = min(asked.ended, self._first_end)
        if is_first:
            self._ended_by = asked.reason
        if asked.ended is None:
            self._journal.write("stopping", reason=asked.reason)
            self._store.set(STOP_KEY, asked.reason)
        self.is_asked = True
        if self._has_workers:
            self._proposer.propose(asked)

    def save(self) -> None:
        """Asks for a checkpoint after a step on which the workers agree."""
        self._proposer.save()

    def poll(self) -> None:
        """Passes on the requests of workers, and notes the agreed last step."""
        if self._has_workers:
            self._read_requests()
            self._agreed = self._proposer.poll()

    def _read_requests(self) -> None:
        while asked := self._proposer.asked():
            self.stop(asked)

    def reason(self, metric: str) -> str:
        """Returns the reason for the end of a successful run. It is `metric`, which no longer improved, if
        the agreed last step is earlier than the planned one and than the end of every stream."""
        if self._has_workers:
            self._read_requests()  # those of workers that ended soon after
        planned = math.inf if self._planned is None else self._planned
        is_early = self._agreed is not None and self._agreed < min(planned, self._first_end - 1)
        return metric if metric and is_early else self._ended_by


AGENT_S = 0.5
"""Seconds that an agent needs, in addition to the grace period of its workers, to end itself."""


class ForcedEnd:
    def __init__(self, nodes: Nodes, handle: Handle) -> None:
        self._nodes, self._handle = nodes, handle
        self._phase = 0
        """0 not begun, 1 SIGTERM sent, 2 SIGKILL sent, 3 node processes killed."""
        self._deadline = math.inf
        """Time at which the next phase begins."""
        self._notice_s = GRACE_S
        """Seconds between SIGTERM and SIGKILL."""

    @property
    def has_begun(self) -> bool:
        return self._phase > 0

    def begin_at(self, moment: float, notice_s: float = GRACE_S) -> None:
        """Begins at a time, in seconds of the monotonic clock, unless it has begun. `notice_s` is the time
        between SIGTERM and SIGKILL: 0 if all workers have been asked to end before."""
        if not self._phase:
            self._deadline, self._notice_s = moment, notice_s

    def kill(self, now: float) -> None:
        """Begins with SIGKILL, or goes on to it."""
        if self._phase < 2:
            self._phase, self._deadline = 1, now

    def poll(self, now: float) -> None:
        """Begins the next phase when it is due."""
        if now < self._deadline:
            return
        self._phase += 1
        self._deadline = now + GRACE_S
        if self._phase == 1:
            self._nodes.signal(signal.SIGTERM)
            self._deadline = now + self._notice_s + AGENT_S
        elif self._phase == 2:
            self._nodes.signal(signal.SIGKILL)
        else:
            self._handle.kill()
