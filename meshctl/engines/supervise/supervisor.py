"""The supervisor owns a run: the stores, the connections to the node processes, the attempts and the
observers.

    supervisor = Supervisor(job, engine, signals)
    outcome = supervisor.run(attempt, observers)

It opens the sockets, calls the engine to start the node processes, then serves the stores. Several attempts
can run in one supervisor, on the same node processes. The engine forks before the stores start their threads,
and later forks happen in the node processes.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from torch.distributed import TCPStore

from meshctl.engines.engine import CannotStart, Engine, Handle, Job, nodes_of
from meshctl.engines.node.rendezvous import serve
from meshctl.engines.remote import Awaited
from meshctl.engines.supervise.attempt import Attempt, next_attempt
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.disk_watch import LauncherWatch, RunFiles
from meshctl.engines.supervise.elastic import Elastic, sizes_event
from meshctl.engines.supervise.examination import Examination
from meshctl.engines.supervise.head import Head
from meshctl.engines.supervise.nodes import Nodes
from meshctl.engines.supervise.restarts import Restarts
from meshctl.engines.supervise.session import FAILED, UNFIT, Observers, Outcome, Session
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.store_server import StoreServer
from meshctl.network import addresses
from meshctl.network.addresses import joined
from meshctl.network.connection import TOKEN_VARIABLE, new_token
from meshctl.network.control_store import StoreClient
from meshctl.plan.resizing import CannotResize
from meshctl.run.checkpoints import NoWholeCheckpoint
from meshctl.run.events import Event, Journal, Observer
from meshctl.run.process import ENDED_BY_SCHEDULER

MakeObservers = Callable[[], Iterable[Observer]]
"""Returns the observers of a run. Called after the engine has forked, because an observer may start a
thread."""


def _started(engine: Engine, job: Job, is_inside: bool) -> Handle:
    """Returns the handle of the nodes. Those of a head inside a job are started by others, unless the engine
    has submitted the job."""
    if is_inside and engine.supervisor != "inside":
        return Awaited(job, engine.render(job.plan, job.run, job.head).commands)
    return engine.start(job)


def listen(host: str, port: int = 0) -> socket.socket:
    """Opens a socket on a port, or on one that the system chooses. Raises `CannotStart` if it cannot be
    had."""
    try:
        return addresses.listen(host, port)
    except OSError as error:
        what = f"port {port}" if port else "no port"
        can = "cannot be opened" if port else "can be opened"
        raise CannotStart(f"{what} {can} on {host}: {os.strerror(error.errno or 0)}") from error


class Stores:
    """The stores of a run that the supervisor serves: the control store, for everything that can steer or end
    the run, and for a run on several nodes torch's TCPStore, which has no authentication, for its process
    groups. On one node their stores are files (`engines.node.scratch`)."""

    def __init__(self, host: str, has_torch_store: bool = True) -> None:
        """Opens the sockets. Clients may connect before `serve`, because the backlog holds them. Raises
        `CannotStart`."""
        self._control, self._torch = listen(host), listen(host) if has_torch_store else None
        self.torch_address = addresses.joined(host, self._torch.getsockname()[1]) if self._torch else ""
        """HOST:PORT of the store of torch; empty without one."""
        self._control_address = addresses.joined(host, self._control.getsockname()[1])
        self._torch_store: TCPStore | None = None
        self._server: StoreServer | None = None
        self._client: StoreClient | None = None

    def serve(self, token: str) -> StoreClient:
        """Starts the threads of the stores. Returns the supervisor's connection to the control store."""
        self._torch_store = serve(self._torch) if self._torch else None
        self._server = StoreServer(self._control, token)
        self._client = StoreClient(self._control_address, token)
        return self._client

    def close(self) -> None:
        self._torch_store = None
        if self._client:
            self._client.close()
        if self._server:
            self._server.close()


class Supervisor:
    def __init__(
        self,
        engine: Engine,
        signals: Signals,
        clock: Callable[[], float] = time.monotonic,
        host: str = "",
        port: int = 0,
    ) -> None:
        """`clock` returns the seconds that `run.time_limit` and `run.restarts` count. `host` is the
        address to which node processes connect, empty for that of the engine, and `port` is 0 for any."""
        self._engine, self._signals, self._clock = engine, signals, clock
        self._host, self._port = host, port

    def run(
        self,
        job: Job,
        attempt: Attempt,
        observers: MakeObservers,
        environ: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Runs a plan to its end. `environ` is the environment of a supervisor inside a job, whose node
        processes the job starts; None otherwise. To be called from the main thread, before any other thread
        exists."""
        ends_at, engine = self._clock() + (job.plan.run.time_limit or math.inf), self._engine
        try:
            host = self._host or engine.host
            nodes_listener = listen(host, self._port)
            stores = Stores(host, has_torch_store=len(nodes_of(job.plan)) > 1)
            head = joined(host, nodes_listener.getsockname()[1])
            given = job.token or (environ or {}).get(TOKEN_VARIABLE)
            job = replace(job, head=head, token=given or new_token())
            handle = _started(engine, job, is_inside=environ is not None)
        except CannotStart as error:
            return Outcome(UNFIT, Cause(Priority.OWN, str(error)), str(error))
        can_lose = job.resize is not None
        examination = Examination(job.plan, job.run, job.needs, engine.shares_files, can_lose)
        nodes = Nodes(
            *(nodes_listener, job.token, engine.lease_s, engine.join_limit_s, job.plan.digest),
            reads_clocks=job.plan.run.trace is not None,
            examination=examination if engine.examines_nodes else None,
        )
        journal = Journal(job.run.journal("launcher"))
        watch = LauncherWatch.of(attempt, self._signals, handle)
        views, outcome = Observers([]), Outcome(70)
        files = RunFiles(job.run, lambda text: views.on_event(Event("warning", value={"text": text})))
        try:
            control = stores.serve(job.token)
            views = Observers(observers())
            session = Session(
                *(job, handle, nodes, stores.torch_address, control, journal, files, views),
                *(self._signals, watch, lambda: self._clock() >= ends_at),
                Elastic(job.plan, job.resize and partial(nodes.while_beating, job.resize)),
                Restarts(job.plan.run.restarts),
            )
            outcome = _with_results(self._attempts(session, attempt), files)
            journal.write("over", code=outcome.code, reason=outcome.reason)
        finally:
            views.on_end(outcome.code, outcome.reason)
            nodes.leave(is_final=outcome.code != ENDED_BY_SCHEDULER)
            for one in (handle, nodes, stores, journal, watch):
                one.close()
        return _with_results(outcome, files)

    def _attempts(self, session: Session, attempt: Attempt) -> Outcome:
        restarts, elastic = session.restarts, session.elastic
        while True:
            outcome, was = _followed(session, attempt), elastic.plan
            can_restart = outcome.is_restartable and restarts.are_allowed
            if self._signals.first or not (can_restart or outcome.back):
                return outcome
            reason = elastic.grow(outcome.back) if outcome.back else self._refusal(session, outcome)
            if reason:
                session.journal.write("warning", text=f"the run does not start again: {reason}")
                return outcome
            try:
                old = attempt.run, attempt.start, attempt.lock
                attempt = session.nodes.while_beating(next_attempt, elastic.plan, *old)
            except NoWholeCheckpoint as error:
                cause = Cause(Priority.OWN, str(error))
                return Outcome(FAILED, cause, cause.line)
            except OSError as error:
                text = f"the run does not start again: {error.strerror}: {error.filename}"
                session.journal.write("warning", text=text)
                return outcome
            session.journal.write(
                "restarted",
                step=attempt.step or 0,
                attempt=attempt.start.attempt,
                cause=outcome.reason,
                left=restarts.left(self._clock()),
                **sizes_event(was, elastic.plan),
            )

    def _refusal(self, session: Session, outcome: Outcome) -> str:
        """Returns why the run does not start again after a failure; empty if it does, with the plan that
        `session.elastic` then has. Starts lost nodes again. An attempt that lost nothing, because a node or a
        device was absent or a scheduler ended a node, counts as no restart."""
        elastic, nodes, was = session.elastic, session.nodes, session.elastic.plan
        for node in outcome.left:
            nodes.turn_away(node)
        absent = nodes.absent if elastic.is_allowed else []
        elastic.note(outcome.cause, absent, outcome.missing)
        try:
            elastic.plan_without_lost()
            if not (absent or outcome.missing) and (outcome.cause or not outcome.left):
                is_smaller = elastic.plan.job_size < was.job_size
                cause, has_begun = outcome.cause, outcome.has_begun
                if reason := session.restarts.refusal(cause, has_begun, self._clock(), is_smaller):
                    return reason
            lost = [node for node in nodes.lost if node in nodes_of(elastic.plan)]
            if lost and not session.handle.restart(lost):
                if not elastic.is_allowed:
                    return "the engine cannot start lost nodes again"
                elastic.note(None, lost)
                elastic.plan_without_lost()
        except CannotResize as error:
            return str(error)
        return ""


def _with_results(outcome: Outcome, files: RunFiles) -> Outcome:
    """Returns the outcome of a run; a failure if it has succeeded and its results were deleted."""
    if outcome.code or not (lost := files.lost()):
        return outcome
    return Outcome(FAILED, Cause(Priority.OWN, lost), lost)


def _followed(session: Session, attempt: Attempt) -> Outcome:
    """Follows an attempt to its end, which comes early if the launcher can open no further file."""
    try:
        return Head(session, attempt).follow()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    cause = Cause(Priority.OWN, f"the launcher cannot open another file: its limit is {limit} (`ulimit -n`)")
    return Outcome(FAILED, cause, cause.line)
