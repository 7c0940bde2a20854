"""The node process: one per node of the plan, the parent of everything that runs there. It outlives attempts.

    head  <--- connection ---  node process (`meshctl-fork`): one `select` loop, no thread, torch imported
                               once
                                 agent per group, forked for each attempt
                                 worker ...          forked for the agents, see `forkserver`
                                 log process         writes the output of all workers, see `worker_logs`
                                 tasks               an examination, a download

It connects to the head and waits. Where nodes are other machines, the head first asks it to examine itself.
For each attempt the head sends the plan and the addresses of its stores. The node process downloads the
models of the hub that its cache lacks (`hub_download`), and forks the agents of its groups. It reports the
exit of each, and the attempt as ended when no process of it is left. It ends when the head requests it, when
the connection to the head closes or is silent for longer than the lease, and on SIGTERM, which the kernel
also sends when the launcher dies. It then kills all processes that it has started. Inside the job of a
scheduler, it passes the first signal on to the head, and ends on the second one.
"""

from __future__ import annotations

import gc
import math
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import Any

import torch

from meshctl.dataclass import dataclass
from meshctl.engines.checks import on_node
from meshctl.engines.checks.device_files import own_and_missing
from meshctl.engines.checks.models import Download, downloads
from meshctl.engines.checks.requirements import Needs
from meshctl.engines.connection import BEAT_S, JOIN_S, beat_s, join
from meshctl.engines.engine import CannotStart, WorkerMain, groups_on
from meshctl.engines.forwarding import EVENTS_S, EventForwarding
from meshctl.engines.node import forkserver, hub_download, termination
from meshctl.engines.node.agent import run_agent
from meshctl.engines.node.forkserver import Client, ForkServer, Task, agent_sockets
from meshctl.engines.node.progress import POLL_S, STACKS_POLL_S, Records, StackRequests, is_stopped
from meshctl.engines.node.scratch import Scratch, remove_scratch
from meshctl.engines.node.worker_env import AgentJob, Stores
from meshctl.engines.node.worker_logs import WorkerLogs
from meshctl.engines.supervise.signals import Signals
from meshctl.network.addresses import interface_of, joined, listen
from meshctl.network.connection import Connection, Message, ProtocolError
from meshctl.plan.model import Plan
from meshctl.run import process
from meshctl.run.directory import RunDir, Start, write_whole
from meshctl.run.process import ENDED_BY_HEAD, is_in_job

OK, FAILED, REFUSED = 0, 1, 4
"""Exit codes, besides `ENDED_BY_HEAD` inside a job."""


@dataclass(frozen=True)
class NodeJob:
    """The parameters of a node process that are known before it connects to the head."""

    run: RunDir
    node: int
    head: str
    """HOST:PORT"""
    token: str = field(repr=False)
    worker: WorkerMain
    keep: tuple[int, ...] = ()
    """Descriptors that the node process and its agents keep open."""
    digest: str = ""
    """The digest of the node's plan, which must be that of the head; empty for a process of the head."""
    wait_s: float = 0.0
    """Seconds that a head which has not been started is given."""
    path: tuple[str, ...] = ()
    """The folders of the recipe's code, if they were shipped. The node then sends its events to the head."""

    @property
    def log(self) -> str:
        return str(self.run.node_log(self.node))


@dataclass
class NodeAttempt:
    number: int
    waiting: Sequence[AgentJob]
    """The agents that are not forked yet, because a download is not ready."""
    agents: dict[int, str] = field(default_factory=dict)
    """Pid -> group, for each running agent."""
    generations: dict[str, int] = field(default_factory=dict)
    """Group -> how often it has restarted alone."""


class NodeProcess:
    def __init__(
        self,
        job: NodeJob,
        connection: Connection,
        lease_s: float,
        signals: Signals,
        asks: Collection[signal.Signals] = (),
    ) -> None:
        """`asks` are the signals of which the first one is passed on to the head."""
        self._job, self._connection, self._lease_s = job, connection, lease_s
        self._signals, self._asks = signals, asks
        self._records, self._stacks = Records(), StackRequests()
        self._server = ForkServer(job.worker, self._records.descriptor)
        self._scratch = Scratch(job.token, job.node)
        self._logs = WorkerLogs(self._scratch)
        self._attempt: NodeAttempt | None = None
        self._download: Task | None = None
        """The download that the agents of the attempt wait for."""
        self._examination: Task | None = None
        self._listener = listen(connection.own_host) if lease_s else None
        """The socket to which other nodes connect, to see whether they reach this one; None for a process of
        the head. Nothing is read from it."""
        self._failed: set[str] = set()
        """The groups whose last agent here has failed. An attempt, or a restart of a group, forgets them."""
        self._code = OK
        self._is_leaving = self._has_lost_logs = False
        """True if the head has requested the end, and if the process that writes logs has ended."""
        self._silence_s = 0.0
        """The seconds of the head's silence when it was lost."""
        self._has_passed_request = False
        """True if the head knows that a scheduler ends the job. It ends the run in order."""
        self._last_seen = time.monotonic()
        self._events = EventForwarding(job.run.events) if job.path else None
        self._beat = -math.inf
        """The time of the last beat. The first one, which has the pid of this process, is due at once."""
        self._stopped: list[tuple[str, int]] = []
        """The agents that are stopped (SIGSTOP), with their pids, as they were reported last."""
        self._looked = -math.inf
        """The time of the last look at the agents."""

    def run(self) -> int:
        """Runs until the end of the run. Returns the exit code: 0 if the last agent of each group has exited
        with 0 and the head has ended the run."""
        if self._listener:
            self._listener.setblocking(False)
            self._connection.send({"type": "listens", "address": joined(*self._listener.getsockname()[:2])})
        while not (self._is_leaving or self._is_ending or self._connection.is_closed):
            before = time.monotonic()
            sending = [self._connection] if self._connection.has_unsent else []
            ready, writable, _ = select.select(self._reading(), sending, [], self._poll_s)
            self._keep_lease(before)
            self._signals.arrived()
            first = self._signals.first
            if first and first in self._asks and not self._has_passed_request:
                self._has_passed_request = True
                self._connection.send({"type": "stop", "signal": int(first)})
            if writable:
                self._connection.flush()
            if self._listener and self._listener in ready:
                with suppress(OSError):
                    self._listener.accept()[0].close()
            self._server.serve(ready)
            self._read_tasks(ready)
            self._reap()
            if self._logs in ready:
                self._report_logs()
            if self._connection in ready:
                self._receive()
            self._report_progress()
            self._end_attempt()
        return self._end()

    @property
    def _is_ending(self) -> bool:
        """True if this process ends, whatever the head requests."""
        first = self._signals.first
        is_signalled = self._signals.count > 1 or (first is not None and first not in self._asks)
        return is_signalled or self._has_lost_logs

    def _end(self) -> int:
        """Kills all processes of this node. Returns the exit code. The head learns of a signal before other
        nodes miss the workers: it names the node then, and none of their victims."""
        if self._is_ending and self._lease_s and not self._is_leaving:
            self._report("ending")
        if not self._is_leaving and not self._is_ending:
            silent = f"has been silent for {self._silence_s:.0f} s" if self._silence_s else ""
            lost = f"the head at {self._job.head} {silent or 'has closed the connection'}"
            print(f"error: node {self._job.node} ends: {lost}", file=sys.stderr, flush=True)
        termination.kill_children(spare=[self._logs.pid])
        self._scratch.release()
        self._logs.close()
        termination.kill_children()
        remove_scratch(self._job.token, self._job.node)  # where the process that writes logs was killed
        return self._code if self._is_leaving else ENDED_BY_HEAD if is_in_job() else FAILED

    def _reading(self) -> list[Any]:
        tasks = (self._download, self._examination)
        return [
            self._signals,
            self._connection,
            *([self._listener] if self._listener else []),
            self._logs,
            *self._server.agents,
            *(one for one in tasks if one and one.is_open),
        ]

    @property
    def _poll_s(self) -> float:
        if self._stacks.is_open:
            return STACKS_POLL_S
        if self._events and self._attempt:
            return EVENTS_S
        return POLL_S if self._records.is_open else beat_s(self._lease_s)

    def _keep_lease(self, before: float) -> None:
        """Sends a beat to the head when one is due, and closes the connection when the head has been silent
        for longer than the lease.

        `before` is the time at which this process began to wait for messages. If the wait was much longer
        than a beat, this process was itself stopped (SIGSTOP, a suspended machine), and the lease is renewed.
        """
        now = time.monotonic()
        if now - before > 2 * BEAT_S:
            self._last_seen = now
        if now - self._beat >= beat_s(self._lease_s):
            self._beat = now
            self._connection.send({"type": "beat", "pid": os.getpid()})
        if self._lease_s and now - self._last_seen > self._lease_s:
            self._silence_s = now - self._last_seen
            self._connection.close()

    def _receive(self) -> None:
        try:
            for message in self._connection.receive():
                self._last_seen = time.monotonic()
                self._obey(message)
        except ProtocolError as error:
            print(f"error: the head sends a malformed message: {error}", file=sys.stderr)
            self._connection.close()

    def _obey(self, message: Message) -> None:
        match message["type"]:
            case "attempt":
                self._begin(message)
            case "restart":
                self._restart(message)
            case "signal" if self._attempt and message["attempt"] == self._attempt.number:
                self._signal(signal.Signals(message["signal"]), message["groups"])
            case "stacks" if self._attempt and message["attempt"] == self._attempt.number:
                self._stacks.begin(map(tuple, message["workers"]), time.monotonic())
            case "prune" if self._events:
                self._job.run.prune_checkpoints(message["latest"], message["keep"], message["exempt"])
            case "devices":
                self._send_devices(Plan.read(self._job.run.plan), int(message["attempt"]), has_begun=True)
            case "clock":
                self._connection.send({"type": "clock", "sent": message["sent"], "at": time.monotonic()})
            case "examine":
                examine = partial(_examine, self._job.run, self._job.node, message)
                self._examination = Task("meshctl-check", self._job.log, examine)
            case "leave":
                self._is_leaving = True
                goes_on = not message["is_final"] and is_in_job()
                self._code = ENDED_BY_HEAD if goes_on else FAILED if self._failed else OK

    # Tasks

    def _read_tasks(self, ready: Sequence[object]) -> None:
        if self._download and self._download in ready:
            self._report_download(self._download)
        if (one := self._examination) and one in ready:
            one.receive()
            if not one.is_open:
                self._examination = None
                ended = ChildProcessError("the process that examines the node has ended")
                facts = one.messages[0] if one.messages else on_node.failed(ended)
                self._connection.send({"type": "examined", "facts": facts})

    def _report_download(self, download: Task) -> None:
        for message in download.receive():
            self._report("unfit" if "error" in message else "download", **message)

    def _end_download(self, download: Task, code: int) -> None:
        """Forks the agents after a successful download."""
        self._report_download(download)
        download.close()
        self._download = None
        if code == 0 and self._attempt:
            self._fork_agents(self._attempt)
        elif self._attempt:
            self._attempt.waiting = ()
            if not any("error" in message for message in download.messages):
                ended = termination.name_of(code)
                error = f"the download from the hub ended: {ended}; its log is {self._job.log}"
                self._report("unfit", error=error)

    # One attempt

    def _begin(self, message: Message) -> None:
        plan, start = self._read(message)
        groups = groups_on(plan, self._job.node)
        self._attempt = NodeAttempt(
            int(message["number"]), [self._agent_job(message, plan, start, group) for group in groups]
        )
        self._failed.clear()
        self._records.begin(plan, self._job.node)
        if not (file := self._job.run.plan_of(start)).exists():  # where the run directory is not shared
            write_whole(file, message["plan"], private=True)
        problem, wanted = "", tuple[Download, ...]()
        if not message["store"] and self._scratch.descriptor < 0:
            why = f"the folder {self._scratch.folder} cannot be made or locked"
            problem = f"{why}: TMPDIR must name a local folder with free space"
        try:
            wanted = downloads(plan, start.path, os.environ, groups)
        except CannotStart as error:
            problem = problem or str(error)
        if problem:
            self._report("unfit", error=problem)
        lacks = message["is_elastic"] and self._send_devices(plan, self._attempt.number, has_begun=False)
        if problem or lacks:
            self._attempt.waiting = ()
            return
        if wanted:
            download = partial(hub_download.download_in_task, wanted)
            self._download = Task(hub_download.TITLE, self._job.log, download)
        self._fork_agents(self._attempt)

    def _send_devices(self, plan: Plan, attempt: int, *, has_begun: bool) -> bool:
        """Sends which devices of a plan this node lacks, to a question of the head or if there are some.
        Returns whether there are some."""
        own, missing = own_and_missing(plan, self._job.node)
        if missing or has_begun:
            message = {"type": "devices", "attempt": attempt, "has_begun": has_begun}
            self._connection.send({**message, "own": own, "missing": missing})
        return bool(missing)

    def _read(self, message: Message) -> tuple[Plan, Start]:
        start = Start.from_json(message["start"] | ({"path": self._job.path} if self._job.path else {}))
        return Plan.from_json(message["plan"]), start

    def _agent_job(self, message: Message, plan: Plan, start: Start, group: str) -> AgentJob:
        interface, own = interface_of(self._connection.own_host), self._job
        store = str(message["store"]) or str(self._scratch.folder)
        stores = Stores(store, str(message["control"]), own.token, interface)
        rocm, generations = torch.version.hip is not None, message.get("generations", {})
        environ, starter = dict(os.environ), os.getppid()
        return AgentJob(plan, own.run, start, group, own.node, stores, environ, rocm, starter, generations)

    def _restart(self, message: Message) -> None:
        """Starts a group again, whose agent has ended. The attempt has ended here if there was no other
        group."""
        (plan, start), number = self._read(message), int(message["number"])
        if self._attempt is None or self._attempt.number != number:
            self._attempt = NodeAttempt(number, [])
            self._records.begin(plan, self._job.node)
        self._attempt.generations = message["generations"]
        job = self._agent_job(message, plan, start, message["group"])
        self._attempt.waiting = [*self._attempt.waiting, job]
        self._fork_agents(self._attempt)

    def _fork_agents(self, attempt: NodeAttempt) -> None:
        """Forks the agents, unless a download is not ready."""
        if self._download:
            return
        jobs, attempt.waiting = attempt.waiting, ()
        for job in jobs:
            try:
                self._fork_agent(attempt, job)
            except OSError as error:
                self._report("refused", error=str(error))

    def _fork_agent(self, attempt: NodeAttempt, job: AgentJob) -> None:
        job.run.log(job.name, 0).parent.mkdir(parents=True, exist_ok=True)
        outputs = self._logs.open(job.logs, job.plan.run.log_keep)
        ours, theirs = agent_sockets()
        parent = os.getpid()
        forkserver.flush()
        with forkserver.blocked_signals():
            pid = os.fork()
            if not pid:
                keep = [*self._job.keep, theirs.fileno(), *outputs.descriptors]
                run = partial(run_agent, job, Client(theirs), outputs)
                forkserver.become(f"mesh {job.name}/{job.node}", parent, str(job.log), keep, run)
        theirs.close()
        outputs.close()
        attempt.agents[pid] = job.name
        self._failed.discard(job.name)
        self._server.agents.append(ours)

    def _signal(self, number: signal.Signals, groups: Sequence[str] | None) -> None:
        """Sends a signal to the agents of `groups`, or to all agents if `groups` is None. A SIGKILL to all
        agents also kills the workers and orphans that they leave behind."""
        assert self._attempt is not None
        to_agents = signal.SIGINT if number == signal.SIGTERM and is_in_job() else number
        for pid, group in self._attempt.agents.items():
            if groups is None or group in groups:
                os.kill(pid, to_agents)
        if groups is None:
            self._attempt.waiting = ()
        if self._download and groups is None:
            os.kill(self._download.pid, number)
        if number == signal.SIGKILL and groups is None:
            termination.kill_children(spare=[self._logs.pid, *self._attempt.agents])

    def _reap(self) -> None:
        for pid, code in self._server.reap():
            if self._attempt and (group := self._attempt.agents.pop(pid, "")):
                if code:
                    self._failed.add(group)
                self._report("exited", group=group, pid=pid, code=code)
            elif self._download and pid == self._download.pid:
                self._end_download(self._download, code)
            elif pid == self._logs.pid:
                print(f"error: the process that writes logs ended: {termination.name_of(code)}", flush=True)
                self._has_lost_logs = True

    def _end_attempt(self) -> None:
        is_started = self._attempt and not self._attempt.waiting and not self._download
        if self._attempt and is_started and not self._attempt.agents and self._server.is_idle:
            termination.kill_children(spare=[self._logs.pid])
            self._logs.end_attempt()
            self._report_logs()
            self._report("ended", generations=self._attempt.generations)
            self._attempt = None
            self._records.end()
            self._stacks.close()

    def _report_progress(self) -> None:
        self._send_events()
        if self._attempt and self._attempt.waiting:
            return  # no worker has been started
        failed = self._records.of_failed(self._server.failed)
        self._server.failed.clear()
        stand, move = self._records.changes(time.monotonic())
        if failed or stand or move:
            self._report("progress", workers=[*failed, *stand], moved=move)
        if found := self._stacks.poll(time.monotonic()):
            self._report("stacks", workers=found)
        if self._attempt and (now := time.monotonic()) - self._looked >= POLL_S:
            self._looked = now
            agents = self._attempt.agents.items()
            stopped = [(f"the agent of {group}", pid) for pid, group in agents if is_stopped(pid)]
            if stopped != self._stopped:
                self._stopped = stopped
                self._report("stopped", processes=stopped)

    def _report_logs(self) -> None:
        for path, reason in self._logs.receive():
            self._report("log_problem", path=path, reason=reason)

    def _send_events(self) -> None:
        if self._events and self._attempt:
            for message in self._events.messages(self._attempt.number):
                self._connection.send(message)

    def _report(self, kind: str, **values: Any) -> None:
        self._send_events()
        if self._attempt:
            self._connection.send({"type": kind, "attempt": self._attempt.number, **values})


def _examine(run: RunDir, node: int, message: Message, writer: int) -> int:
    """Examines this node, as the head asks. Sends the fields of `NodeFacts`."""
    try:
        plan, start, needs = Plan.read(run.plan), run.read_start(), Needs(**message["needs"])
        peers = {int(peer): address for peer, address in message["peers"].items()}
        facts = on_node.examine(plan, run, start, node, needs, message["nonce"], peers)
    except Exception as error:  # a bug in a check prevents no launch
        facts = on_node.failed(error)
    forkserver.report(writer, facts)
    return OK


# Starting a node process


def serve(
    job: NodeJob,
    ends: Sequence[signal.Signals] = (signal.SIGTERM,),
    asks: Sequence[signal.Signals] = (),
) -> int:
    """Turns the calling process into the node process of this node. Returns its exit code. The signals `ends`
    end it; the first one in `asks` is passed on to the head.

    To be called from the main thread, after the heavy imports and before any other thread exists.
    """
    process.adopt_orphans()
    process.set_title(forkserver.TITLE)
    try:
        connection, lease_s = join(job.head, job.node, job.token, job.digest, JOIN_S, job.wait_s)
    except CannotStart as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    for number in {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}.difference(ends, asks):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the end of a child wakes this process
    with Signals().handled({*ends, *asks}) as signals:
        return NodeProcess(job, connection, lease_s, signals, asks).run()


def fork(job: NodeJob) -> int:
    """Forks the node process of a node on this machine; returns its pid.

    To be called from the main thread, after the heavy imports and before any other thread exists.
    """
    parent = os.getpid()
    forkserver.flush()
    gc.collect()
    gc.freeze()
    if pid := os.fork():
        gc.unfreeze()
        return pid
    forkserver.become(forkserver.TITLE, parent, job.log, job.keep, partial(serve, job), signal.SIGTERM)
