"""The orderly end of an attempt: the workers agree on a last step, which all of them execute and save.

ending = OrderlyEnd(plan, store, journal)
ending.stop(StopRequest(reason))        # the supervisor asks for the end
ending.save()                           # ... or for a checkpoint, after a step that all agree on
ending.poll()                           # requests of workers, and the agreement
ending.reason(judge.stop)               # why the run ended, once it has
"""

from __future__ import annotations

import math

from meshctl.engines.engine import STOP_KEY
from meshctl.network.control_store import StoreClient
from meshctl.plan.model import Plan
from meshctl.run.bounds import end_of_data
from meshctl.run.events import Event, Journal
from meshctl.run.shutdown import PREFIX, Proposer, StopRequest


class OrderlyEnd:
    def __init__(self, plan: Plan, store: StoreClient, journal: Journal) -> None:
        """`store` is the part of the control store that belongs to the attempt."""
        ranks = _component_ranks(plan)
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


def _component_ranks(plan: Plan) -> list[int]:
    """Returns the job ranks of the workers of components. They agree on the last step; programs do not."""
    return [
        group.first_job_rank + rank
        for group in plan.groups
        if not group.program
        for rank in range(group.workers)
    ]
