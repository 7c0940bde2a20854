"""A fake engine: the nodes and workers of a plan as threads of this process, for tests.

    engine = FakeEngine(worker)                            # the supervisor runs here
    engine = FakeEngine(worker, supervisor="inside")       # the supervisor is the head of a "job"

The threads use the same connection to the supervisor as real node processes. Everything except the processes
is real: the handshake, attempts, exits, signals, lost nodes.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from meshctl.engines.connection import join
from meshctl.engines.engine import Exited, Handle, Job, groups_on, nodes_of
from meshctl.engines.local import LocalEngine
from meshctl.network.connection import Connection, Message
from meshctl.plan.model import Plan
from meshctl.run.directory import RunDir
from meshctl.run.events import Journal, Observer
from tests.hang import HANG_S

POLL_S = 0.01


@dataclass(frozen=True)
class FakeWorker:
    """The argument of a worker's function."""

    plan: Plan
    run: RunDir
    group: str
    rank: int
    attempt: int
    control: str
    """HOST:PORT of the control store."""
    token: str
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when SIGTERM or SIGKILL is sent to the worker."""

    def journal(self) -> Journal:
        return Journal(self.run.journal(f"{self.group}-{self.rank}"), self.group, self.rank)


FakeMain = Callable[[FakeWorker], int]
"""Runs a worker; returns its exit code."""


class FakeEngine(LocalEngine):
    join_limit_s = HANG_S

    def __init__(
        self,
        worker: FakeMain,
        supervisor: Literal["here", "inside"] = "here",
        lease_s: float = 0.0,
    ) -> None:
        self.supervisor, self.lease_s = supervisor, lease_s
        self._worker = worker

    def start(self, job: Job) -> Handle:  # type: ignore[override]
        return FakeHandle(job, self._worker)

    def observers(self, run: RunDir, environ: Mapping[str, str]) -> Sequence[Observer]:
        return ()


class FakeHandle(Handle):
    """The nodes of a plan as threads."""

    def __init__(self, job: Job, worker: FakeMain) -> None:
        self._job, self._worker = job, worker
        self._nodes: dict[int, FakeNode] = {}
        self.restart(nodes_of(job.plan))

    def poll(self) -> list[Exited]:
        ended = [number for number, node in self._nodes.items() if not node.is_alive()]
        codes = [(number, self._nodes.pop(number).code) for number in ended]
        return [Exited(f"the node process of node {number}", code, node=number) for number, code in codes]

    def kill(self) -> None:
        for node in self._nodes.values():  # as a signal would: the workers stop, and the connection closes
            node.code, node.is_ending = -signal.SIGKILL, True

    def restart(self, nodes: Sequence[int]) -> bool:
        for number in nodes:
            self._nodes[number] = FakeNode(self._job, number, self._worker)
        return True

    def close(self) -> None:
        for node in self._nodes.values():
            node.join(10.0)


class FakeNode(threading.Thread):
    """A node process as a thread. Its agents are counters, and its workers are threads."""

    def __init__(self, job: Job, node: int, worker: FakeMain) -> None:
        super().__init__(name=f"node {node}", daemon=True)
        self.code = 0
        self._job, self._node, self._worker = job, node, worker
        self.is_ending = False
        self._attempt = -1
        self._workers: dict[str, list[_Worker]] = {}
        """Group -> workers whose exit has not been reported yet."""
        self.start()

    def run(self) -> None:
        connection, _ = join(self._job.head, self._node, self._job.token)
        while not (self.is_ending or connection.is_closed):
            select.select([connection], [], [], POLL_S)
            for message in connection.receive():
                self._obey(message)
            self._report(connection)
        for workers in self._workers.values():
            for worker in workers:
                worker.job.stop.set()
        connection.close()

    def _obey(self, message: Message) -> None:
        match message["type"]:
            case "attempt":
                self._begin(message)
            case "signal":
                for group, workers in self._workers.items():
                    if message["groups"] is None or group in message["groups"]:
                        for worker in workers:
                            worker.signal(message["signal"])
            case "leave":
                self.is_ending = True

    def _begin(self, message: Message) -> None:
        plan, run = Plan.from_json(message["plan"]), self._job.run
        self._attempt = message["number"]
        place = self._attempt, message["control"], self._job.token
        for group in groups_on(plan, self._node):
            ranks = [member.rank for member in plan.workers(group, self._node)]
            jobs = [FakeWorker(plan, run, group, rank, *place) for rank in ranks]
            self._workers[group] = [_Worker(job, self._worker) for job in jobs]

    def _report(self, connection: Connection) -> None:
        """Reports an agent as ended once all of its workers have ended. Ends them when one fails."""
        for group, workers in list(self._workers.items()):
            if any(worker.code for worker in workers):
                for worker in workers:
                    worker.signal(signal.SIGTERM)
            if not any(worker.is_alive() for worker in workers):
                del self._workers[group]
                code = int(any(worker.code for worker in workers))
                self._send(connection, "exited", group=group, code=code)
                if not self._workers:
                    self._send(connection, "ended", generations={})

    def _send(self, connection: Connection, kind: str, **values: Any) -> None:
        connection.send({"type": kind, "attempt": self._attempt, **values})


class _Worker(threading.Thread):
    def __init__(self, job: FakeWorker, main: FakeMain) -> None:
        super().__init__(name=f"{job.group}:{job.rank}", daemon=True)
        self.job, self._main = job, main
        self.code: int | None = None
        self._was_stopped = False
        self.start()

    def signal(self, number: int) -> None:
        if self.code is None:
            self._was_stopped = True
        self.job.stop.set()

    def run(self) -> None:
        journal = Journal(self.job.run.journal(f"agent-{self.job.group}-{self.job.rank}"), self.job.group)
        rank, pid = self.job.rank, os.getpid()
        journal.write("started", rank=rank, pid=pid)
        code = self._main(self.job)
        journal.write("exited", rank=rank, pid=pid, code=code, stopped=self._was_stopped)
        journal.close()
        self.code = code
