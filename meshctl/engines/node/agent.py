"""The agent of one group on one node: torchelastic's agent, with workers that the fork server starts.

The node process forks it for each attempt. It joins the group's other agents through the store of the head,
requests its workers with torchrun's environment, and writes the events `started` and `exited` of each. It
exits with 0 if all workers have exited with 0, otherwise with 1.

The agent never restarts workers. Because routes connect groups, only the supervisor can begin a new attempt.
On SIGTERM the agent sends SIGTERM to its workers, and SIGKILL after the grace period. The key `stop` in the
store requests an orderly end. Only agents of programs act on it: they send SIGTERM to their workers, without
a time limit. Components agree on a last step by themselves, and services run until all other groups have
ended.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.distributed import DistError, Store
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

from meshctl.engines.checks.machine import kills_for_memory
from meshctl.engines.engine import STOP_KEY, CannotStart
from meshctl.engines.node.forkserver import Client, Ended, ServerGone, SpawnRequest, Started
from meshctl.engines.node.progress import recorded_workers
from meshctl.engines.node.rendezvous import PlannedRendezvous
from meshctl.engines.node.scratch import scratch_folder
from meshctl.engines.node.termination import GRACE_S
from meshctl.engines.node.worker_env import AgentJob
from meshctl.engines.node.worker_logs import Outputs
from meshctl.network.control_store import StoreClient, StoreLost
from meshctl.run.events import Journal
from meshctl.run.process import is_in_job

POLL_S = 0.1
"""Seconds between two reads of the store. The end of a worker is noticed at once."""


class GroupAgent(SimpleElasticAgent):
    def __init__(self, job: AgentJob, server: Client, outputs: Outputs, journal: Journal) -> None:
        program, argv = job.group.program, job.argv
        spec = WorkerSpec(
            role=DEFAULT_ROLE if program else job.name,
            local_world_size=len(job.members),
            rdzv_handler=PlannedRendezvous(job),
            entrypoint=" ".join(argv or ("meshctl.runtime.worker",)),
            max_restarts=0,
            monitor_interval=1e-4,
        )
        super().__init__(spec, exit_barrier_timeout=60)
        self._job, self._server, self._outputs, self._journal = job, server, outputs, journal
        is_asked, prefix = program is not None and not program.service, f"run/{job.start.attempt}/"
        self._stop = StoreClient(job.stores.control, job.stores.token, prefix) if is_asked else None
        """The store in which the head may request a program to end; None for other groups."""
        self._starter: int | None = None
        """A descriptor that is readable once the process has ended that has started the node process."""
        if job.starter:
            with suppress(OSError):
                self._starter = os.pidfd_open(job.starter)
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._kills = kills_for_memory()
        """The number of processes that the kernel has killed because memory ran out."""
        self._sent: set[int] = set()
        """The signals that this agent has sent to its workers."""

    def _assign_worker_ranks(
        self, store: Store, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[ElasticWorker]:
        """Returns the workers with the ranks of the plan, without a negotiation through the store."""
        size = self._job.group.workers
        return [
            ElasticWorker(member.local_rank, member.rank, member.rank, size, size)
            for member in self._job.members
        ]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, int]:
        job, outputs = self._job, self._outputs.descriptors
        argv, cwd, recorded = job.argv, job.cwd, recorded_workers(job.plan, job.node)
        scratch = str(scratch_folder(job.stores.token, job.node))
        for worker, member, output in zip(worker_group.workers, job.members, outputs, strict=True):
            name = f"{job.name}:{member.rank}"
            env = {**job.variables(member), **self._torchrun(worker_group, worker)}
            terminal = job.start.terminal if job.start.debug == name else ""
            record = -1 if job.group.program else recorded.index((job.name, member.rank))
            request = SpawnRequest(member.local_rank, name, env, argv, cwd, terminal, record, scratch)
            self._server.start(request, output)
            self._receive(0)  # keeps the socket from filling with answers while requests are sent
        while len(self._pids) < len(job.members):
            self._receive(1.0)
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
            self._receive(POLL_S)
        if self._starter is not None and select.select([self._starter], [], [], 0)[0]:
            os.kill(os.getppid(), signal.SIGCONT)  # a stopped node process has not seen that it must end
        if self._stop is not None and not self._sent and self._stop.check([STOP_KEY]):
            self._signal(signal.SIGTERM)
        if any(self._codes.values()) and not self._sent:
            return RunResult(state=WorkerState.FAILED)
        if self._running:
            return RunResult(state=WorkerState.HEALTHY)
        results = {member.rank: None for member in self._job.members}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=results)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = GRACE_S) -> None:
        """Sends SIGTERM to the workers, and SIGKILL after the grace period instead of torchelastic's
        30 s. In a job the workers of components do not receive SIGTERM."""
        numbers = [signal.SIGTERM, signal.SIGKILL]
        if is_in_job() and not self._job.group.program:
            numbers.remove(signal.SIGTERM)
        with suppress(ServerGone):  # the server has died, and its workers with it
            for number in numbers:
                if self._running:
                    self._signal(number)
                end = time.monotonic() + GRACE_S
                while self._running and time.monotonic() < end:
                    self._receive(end - time.monotonic())

    @property
    def _running(self) -> bool:
        return len(self._codes) < len(self._pids)

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the workers that still run."""
        self._sent.add(number)
        for key in self._pids.keys() - self._codes.keys():
            self._server.signal(key, number)

    def _receive(self, seconds: float) -> None:
        """Writes events about workers. One that has ended by itself, or of another's signal, may be reported
        after this agent has stopped its peers."""
        for report in self._server.receive(max(seconds, 0)):
            match report:
                case Started(key, pid):
                    self._pids[key] = pid
                    self._journal.write("started", rank=self._job.members[key].rank, pid=pid)
                case Ended(key, pid, code, was_signalled):
                    was_stopped = was_signalled and (code >= 0 or -code in self._sent)
                    self._codes[key], memory = code, dict[str, Any]()
                    if code == -signal.SIGKILL and not was_stopped and kills_for_memory() > self._kills:
                        self._kills, memory = kills_for_memory(), {"out_of_memory": True}
                    self._outputs.wait_written(key)  # the head reads the log when it knows of the end
                    self._journal.write(
                        "exited",
                        rank=self._job.members[key].rank,
                        pid=pid,
                        code=code,
                        stopped=was_stopped,
                        **memory,
                    )

    def _construct_event(self, state: str, source: EventSource, *_: object, **__: object) -> Event:
        """Replaces torchelastic's method, which resolves the host's full name at each call and takes seconds
        without DNS."""
        return Event(f"torchelastic.worker.status.{state}", source=source)


def run_agent(job: AgentJob, server: Client, outputs: Outputs) -> int:
    """Runs an agent from start to end; returns its exit code."""
    _log_to(job.log)
    journal = Journal(job.run.journal(f"agent-{job.name}-{job.node}"), job.name)
    try:
        agent = GroupAgent(job, server, outputs, journal)
        for number in (signal.SIGINT, signal.SIGHUP, *(() if is_in_job() else (signal.SIGTERM,))):
            signal.signal(number, _raise_once)
        return 1 if agent.run().is_failed() else 0
    except SignalException as stopped:
        return 128 + stopped.sigval
    except (DistError, RendezvousError, ServerGone, StoreLost, CannotStart) as error:
        logging.getLogger(__name__).exception("agent of group %s on node %s", job.name, job.node)
        print(f"error: {error}", file=sys.stderr)
        journal.write("fault", error=f"{error}", traceback="", lost=isinstance(error, ServerGone))
        return 1
    finally:
        server.close()


def _raise_once(number: int, _: object) -> None:
    """Raises torchelastic's exception for the first signal and ignores further ones. The head can send
    SIGKILL."""
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise SignalException(f"agent got {signal.Signals(number).name}", signal.Signals(number))


def _log_to(path: Path) -> None:
    """Redirects torchelastic's log records to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("torch.distributed.elastic", __name__):
        logger = logging.getLogger(name)
        logger.handlers[:] = [file]
        logger.propagate = False
        logger.setLevel(logging.INFO)
