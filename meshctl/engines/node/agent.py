"""The agent of one group on one node: torchelastic's, with workers that come from the fork server.

Every engine starts it as `meshctl agent --plan RUN/plan.json --group G --node I --head HOST:PORT`; the local
one calls `run_agent` in a process that it forked. It meets the group's other agents on the launcher's store,
orders its workers with torchrun's environment, says `started` and `exited` of each, and leaves with 0 when
all have ended well, else with 1.

It never restarts anything: with routes between groups, a new attempt is the launcher's alone. On SIGTERM its
workers get SIGTERM, and SIGKILL when the grace is over. An orderly end comes as the key `stop` in the store,
which only matters to a program: it is told by SIGTERM and takes the time that it takes; components agree on a
last step by themselves.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistError, PrefixStore, Store
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.api import Worker as ElasticWorker
from torch.distributed.elastic.events import Event, EventSource
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousError

from meshctl.engines.node import forkserver, guard, worker_env
from meshctl.engines.node.forkserver import Client, Ended, Order, ServerGone, Started, WorkerMain
from meshctl.engines.node.rendezvous import PlannedRendezvous, connect
from meshctl.engines.supervise.head import STOP
from meshctl.plan.model import Plan, Worker
from meshctl.run.directory import RunDir
from meshctl.run.events import Journal

LISTEN = 0.1
"""Seconds between two looks at the store; a worker's end is heard at once."""


class GroupAgent(SimpleElasticAgent):
    def __init__(
        self,
        spec: WorkerSpec,
        server: Client,
        world_size: int,
        members: Sequence[Worker],
        orders: Sequence[Order],
        journal: Journal,
        stop: Store | None,
    ) -> None:
        """`members` by local rank, and their `orders` without torchrun's variables; `stop` is where the head
        may ask a program to end."""
        super().__init__(spec, exit_barrier_timeout=60)
        self._world_size = world_size
        self._server, self._members, self._orders, self._journal, self._stop = (
            server,
            members,
            orders,
            journal,
            stop,
        )
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._sent: set[int] = set()
        """Signals that this agent has sent to its workers."""

    def _assign_worker_ranks(
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[ElasticWorker]:
        """The plan's: nothing has to be asked."""
        return [
            ElasticWorker(member.local_rank, member.rank, member.rank, self._world_size, self._world_size)
            for member in self._members
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        for member, order in zip(worker_group.workers, self._orders, strict=True):
            env = {**order.env, **self._torchrun(worker_group, member)}
            self._server.start(replace(order, env=env))
            self._listen(0)  # so that answers never pile up while it is still being told
        while len(self._pids) < len(self._orders):
            self._listen(1.0)
        return dict(self._pids)

    def _torchrun(self, group: WorkerGroup, member: Any) -> dict[str, str]:
        spec = group.spec
        return {
            "LOCAL_RANK": str(member.local_rank),
            "RANK": str(member.global_rank),
            "GROUP_RANK": str(group.group_rank),
            "ROLE_RANK": str(member.role_rank),
            "ROLE_NAME": spec.role,
            "LOCAL_WORLD_SIZE": str(spec.local_world_size),
            "WORLD_SIZE": str(member.world_size),
            "GROUP_WORLD_SIZE": str(group.group_world_size),
            "ROLE_WORLD_SIZE": str(member.role_world_size),
            "MASTER_ADDR": str(group.master_addr),
            "MASTER_PORT": str(group.master_port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": str(spec.rdzv_handler.use_agent_store),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._running:
            self._listen(LISTEN)
        if self._stop is not None and not self._sent and self._stop.check([STOP]):
            self._signal(signal.SIGTERM)
        if any(self._codes.values()) and not self._sent:
            return RunResult(state=WorkerState.FAILED)
        if self._running:
            return RunResult(state=WorkerState.HEALTHY)
        return RunResult(
            state=WorkerState.SUCCEEDED, return_values={member.rank: None for member in self._members}
        )

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = guard.GRACE) -> None:
        """SIGTERM, the guard's grace and never torchelastic's 30 s, then SIGKILL."""
        try:
            for number, grace in ((signal.SIGTERM, guard.GRACE), (signal.SIGKILL, guard.GRACE)):
                if self._running:
                    self._signal(number)
                end = time.monotonic() + grace
                while self._running and time.monotonic() < end:
                    self._listen(end - time.monotonic())
        except ServerGone:
            pass  # and so are the workers

    @property
    def _running(self) -> bool:
        return len(self._codes) < len(self._pids)

    def _signal(self, number: signal.Signals) -> None:
        """To all that still run."""
        self._sent.add(number)
        for key in self._pids.keys() - self._codes.keys():
            self._server.signal(key, number)

    def _listen(self, seconds: float) -> None:
        for said in self._server.listen(max(seconds, 0)):
            match said:
                case Started(key, pid):
                    self._pids[key] = pid
                    self._journal.say("started", rank=self._members[key].rank, pid=pid)
                case Ended(key, pid, code):
                    self._codes[key] = code
                    self._journal.say(
                        "exited",
                        rank=self._members[key].rank,
                        pid=pid,
                        code=code,
                        stopped=self._was_stopped(code),
                    )

    def _was_stopped(self, code: int) -> bool:
        """Whether an end is this agent's doing: not if it was by a signal of somebody else, as the peers of a
        worker that was killed may be reaped before it."""
        return bool(self._sent) and (code >= 0 or -code in self._sent)

    def _construct_event(self, state: str, source: EventSource, *_: object, **__: object) -> Event:
        """torchelastic's own looks up the host's full name for each, which takes seconds where there is no
        DNS."""
        return Event(f"torchelastic.worker.status.{state}", source=source)


def run_agent(
    plan_path: Path, group: str, node: int, head: str, worker_main: WorkerMain, server: Client | None = None
) -> int:
    """The whole life of an agent; gives its exit code. Without `server` it forks a fork server of its own,
    first of all."""
    plan, run = Plan.read(plan_path), RunDir.of_plan(plan_path)
    log = run.log(group, f"agent-{node}")
    _log_to(log)
    if server is None:
        guard.adopt_orphans()
        _, sockets = forkserver.fork(1, worker_main, str(log))
        server = Client(sockets[0])
    journal = Journal(run.journal(f"agent-{group}-{node}"), group)
    try:
        agent = _agent(plan, run, group, node, head, server, journal)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _raise_once)
        return 1 if agent.run().is_failed() else 0
    except SignalException as stopped:
        return 128 + stopped.sigval
    except (DistError, RendezvousError, ServerGone, worker_env.CannotStart) as error:
        logging.getLogger(__name__).exception("agent of group %s on node %s", group, node)
        print(f"error: {error}", file=sys.stderr)
        journal.say("fault", error=f"{error}", traceback="", lost=isinstance(error, ServerGone))
        return 1
    finally:
        server.close()
        guard.kill_children()


def _agent(
    plan: Plan, run: RunDir, group: str, node: int, head: str, server: Client, journal: Journal
) -> GroupAgent:
    placed, start, inherited = plan.group(group), run.read_start(), dict(os.environ)
    members = list(plan.workers(group, node))
    argv = worker_env.argv_of(run, start, placed, inherited)
    cwd = worker_env.cwd_of(start, placed.program) if placed.program else ""
    orders = [
        Order(
            member.local_rank,
            f"{group}:{member.rank}",
            str(run.log(group, member.rank)),
            worker_env.environment(
                plan, run, start, placed, member, head, inherited, torch.version.hip is not None
            ),
            argv,
            cwd,
        )
        for member in members
    ]
    store = connect(head)
    rendezvous = PlannedRendezvous(
        head, store, start.attempt, group, plan.nodes_of(group), node, own_store=placed.program is not None
    )
    spec = WorkerSpec(
        role=DEFAULT_ROLE if placed.program else group,
        local_world_size=len(orders),
        rdzv_handler=rendezvous,
        entrypoint=" ".join(argv or ("meshctl.runtime.worker",)),
        max_restarts=0,
        monitor_interval=1e-4,
    )
    stop = PrefixStore(f"run/{start.attempt}", store) if placed.program else None
    return GroupAgent(spec, server, placed.workers, members, orders, journal, stop)


def _raise_once(number: int, _: object) -> None:
    """torchelastic's way to end; a second signal is not heard, the launcher has SIGKILL."""
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise SignalException(f"agent got {signal.Signals(number).name}", signal.Signals(number))


def _log_to(path: Path) -> None:
    """torchelastic's words go to a file and nowhere else."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("torch.distributed.elastic", __name__):
        logger = logging.getLogger(name)
        logger.handlers[:] = [file]
        logger.propagate = False
        logger.setLevel(logging.INFO)
