"""The progress records of a node's workers: shared memory that the node process creates, and reads while they
run.

A worker stands if its record is the same in two consecutive polls: it waits, hangs or computes. The record of
a worker that stands is sent to the head once, and again after the worker has moved and stands at another
place. The head also learns which of these workers move again. A worker that has failed also stands.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

from meshctl.engines.engine import groups_on
from meshctl.plan.model import Plan
from meshctl.run.progress import RECORD_BYTES, Record, decode

POLL_S = 1.0
"""Seconds between two polls of the records."""

Worker = tuple[str, int]
"""Group and rank."""


def recorded_workers(plan: Plan, node: int) -> list[Worker]:
    """Returns the workers of components on a node, in the order of their records."""
    return [
        (group, worker.rank)
        for group in groups_on(plan, node)
        if plan.group(group).program is None
        for worker in plan.workers(group, node)
    ]


class Records:
    """The records of one node. The memory outlives attempts, so that fork servers inherit it once."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("meshctl-progress", os.MFD_CLOEXEC)
        self._workers: list[Worker] = []
        self._memory: mmap.mmap | None = None
        self._seen: dict[Worker, bytes] = {}
        """Worker -> its record in the last poll."""
        self._reported: dict[Worker, bytes] = {}
        """Worker -> the record that `standing` has last returned for it."""
        self._changed: dict[Worker, tuple[float, float]] = {}
        """Worker -> the times of the poll that has found its record changed, and of the poll before."""
        self._polled = 0.0

    def begin(self, plan: Plan, node: int) -> None:
        """Clears the records for a new attempt, before its workers are started."""
        self.end()
        self._workers = recorded_workers(plan, node)
        os.ftruncate(self.descriptor, 0)
        os.ftruncate(self.descriptor, len(self._workers) * RECORD_BYTES)
        if self._workers:
            self._memory = mmap.mmap(self.descriptor, 0, prot=mmap.PROT_READ)

    def end(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._memory = None
        self._seen, self._reported, self._changed = {}, {}, {}

    @property
    def is_open(self) -> bool:
        return self._memory is not None

    def changes(self, now: float) -> tuple[list[list[Any]], list[Worker]]:
        """Returns [group, rank, record, seconds] of the workers that stand and have not been returned for
        this record yet, with the seconds for which they stand, and the workers that were returned and move
        again. Both are empty if the last poll was less than `POLL_S` ago."""
        if self._memory is None or now - self._polled < POLL_S:
            return [], []
        before, self._polled = self._polled, now
        stand, move = list[list[Any]](), list[Worker]()
        for number, worker in enumerate(self._workers):
            data = self._data(number)
            if data != self._seen.get(worker):
                self._seen[worker], self._changed[worker] = data, (before, now)
                if self._reported.pop(worker, None) is not None:
                    move.append(worker)
            elif worker not in self._reported:
                self._reported[worker] = data
                record = decode(data)
                stand.append([*worker, record.to_message(), now - self._since(worker, record)])
        return stand, move

    def _since(self, worker: Worker, record: Record) -> float:
        """Returns when a record has changed: the time that it contains itself, unless it has changed in
        another way since then or contains none, before the worker has begun."""
        before, found = self._changed[worker]
        since = max(record.since, record.collective_since if record.collective else 0.0)
        return since if since and since >= before else found

    def of_failed(self, numbers: Sequence[int]) -> list[list[Any]]:
        """Returns [group, rank, record, seconds] of workers that have failed, by the numbers of their
        records."""
        if self._memory is None:
            return []
        return [[*self._workers[number], decode(self._data(number)).to_message(), 0.0] for number in numbers]

    def _data(self, number: int) -> bytes:
        assert self._memory is not None
        return self._memory[number * RECORD_BYTES : (number + 1) * RECORD_BYTES]
