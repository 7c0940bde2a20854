"""The progress records, states and stacks of a node's workers. The records are shared memory that the node
process creates, and reads while they run.

A worker stands if its record is the same in two consecutive polls: it waits, hangs or computes. The record of
a worker that stands is sent to the head once, and again after the worker has moved and stands at another
place. The head also learns which of these workers move again. A worker that has failed also stands.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.engine import groups_on
from meshctl.engines.node.termination import stat_of
from meshctl.plan.model import Plan
from meshctl.run import process
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


# States and stacks

STACK_S = 1.0
"""Time limit for a process to write its stacks."""
SETTLE_S = 0.05
"""Seconds after the last growth of the stacks after which they are complete."""
STOPPED = ("T", "t")
"""The letters of the kernel for a process that is stopped or traced."""
STACKS_POLL_S = 0.02
"""Seconds between two polls while a request is open."""


@dataclass(frozen=True)
class ProcessState:
    """A process, as the kernel and the process itself describe it."""

    pid: int = 0
    state: str = ""
    """The letter of the kernel: R runs, S sleeps, D waits for a device, T is stopped, t is traced, Z has
    ended; empty where it is unknown."""
    waits_in: str = ""
    """The function of the kernel in which the process waits, where the kernel shows it."""
    stack: str = ""
    """faulthandler's stacks of all threads; empty if the process has written none."""

    @property
    def is_stopped(self) -> bool:
        return self.state in STOPPED


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped by a signal or by a debugger."""
    return _letter_of(f"/proc/{pid}") in STOPPED


def _letter_of(folder: str | Path) -> str:
    """Returns the letter of the kernel for the state of a process or thread; empty if it is not there."""
    with suppress(OSError):
        return stat_of(folder)[0]
    return ""


def state_of(pid: int, stack: str = "") -> ProcessState:
    """Returns the state of a process that has written a stack. It is D if any of its threads is in it: one
    that writes a checkpoint, for example."""
    state, waits_in = _letter_of(f"/proc/{pid}"), ""
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        waiting = next((task for task in tasks if _letter_of(task) == "D"), None)
        state = "D" if waiting else state
        waits_in = Path(waiting or f"/proc/{pid}", "wchan").read_text()
    return ProcessState(pid, state, "" if waits_in == "0" else waits_in, stack)


@dataclass
class _Request:
    group: str
    rank: int
    pid: int
    began: float
    number: int | None
    """The descriptor of the process for its stacks."""
    start: int = 0
    seen: str = ""
    changed: float = 0.0

    def is_complete(self, now: float) -> bool:
        if self.number is None:
            return True
        text = process.read_stacks(self.pid, self.number, self.start)
        if text != self.seen:
            self.seen, self.changed = text, now
        has_written = bool(self.seen) and now - self.changed >= SETTLE_S
        return has_written or now - self.began >= STACK_S or is_stopped(self.pid)


class StackRequests:
    """Asks the kernel for the states of processes that do not advance, and the processes for their stacks.

        requests.begin([("train", 1, pid), ...], now)
        requests.poll(now)            # the `ProcessState` of each of them, once, as soon as it is known

    No method waits. A process writes its stacks itself (`run.process`)."""

    def __init__(self) -> None:
        self._open: list[_Request] = []

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def begin(self, processes: Iterable[tuple[str, int, int]], now: float) -> None:
        """Asks processes for their stacks, each given as (group, rank, pid)."""
        for group, rank, pid in processes:
            request = _Request(group, rank, pid, now, process.find_stacks(pid), changed=now)
            if request.number is not None:
                with suppress(OSError):
                    request.start = process.request_stacks(pid, request.number)
            self._open.append(request)

    def poll(self, now: float) -> list[list[Any]]:
        """Returns [group, rank, state] of the processes whose stacks are complete, or do not come."""
        complete = [request for request in self._open if request.is_complete(now)]
        self._open = [request for request in self._open if request not in complete]
        return [[one.group, one.rank, asdict(state_of(one.pid, one.seen))] for one in complete]

    def close(self) -> None:
        self._open = []
