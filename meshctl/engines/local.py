"""The local engine: every node of the plan is a process on this machine, forked from one import of torch.

    launcher            imports torch once, opens the sockets, forks the node processes, and becomes the
                        supervisor
      node process      the process that `meshctl agent` runs on other engines

Node processes may connect before the supervisor accepts, because the backlog of its socket holds their
connections.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from meshctl.engines.checks.on_node import check_start
from meshctl.engines.connection import JOIN_S
from meshctl.engines.engine import CannotStart, Exited, Handle, Job, Rendered, agent_commands, nodes_of
from meshctl.engines.node import termination
from meshctl.engines.node.scratch import remove_scratch
from meshctl.network.connection import TOKEN_VARIABLE
from meshctl.plan.model import Plan
from meshctl.run.directory import NO_START, RunDir, Start
from meshctl.run.process import adopt_orphans

HOST = "127.0.0.1"
AGENT = """
import runpy, signal, sys
from meshctl.run.process import die_with
die_with(int(sys.argv.pop(1)), signal.SIGTERM)
runpy.run_module("meshctl", run_name="__main__", alter_sys=True)
"""
"""The program of a node process that is started by exec. Its first argument is the pid of the launcher. The
process is tied to the launcher before it imports `meshctl agent`, because the imports take seconds, in which
the launcher may die."""


class LocalEngine:
    supervisor: Literal["here", "inside"] = "here"
    host = HOST
    join_limit_s = JOIN_S
    lease_s = 0.0
    """No lease is needed: the kernel ends node processes when the launcher dies."""
    examines_nodes, shares_files = False, True

    def preflight(self, plan: Plan, start: Start) -> None:
        """Checks that this machine can run the plan. Raises `CannotStart` for the first requirement that is
        not met."""
        if plan.cluster.nodes > 1:
            raise CannotStart(
                f"the plan has {plan.cluster.nodes} nodes, and the local engine has one, this machine; other "
                "engines have more: `--engine ssh` or `commands`, and to try the plan here, `loopback`"
            )
        check_start(plan, start)

    def render(
        self, plan: Plan, run: RunDir, head: str = f"{HOST}:PORT", start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        return Rendered(agent_commands(plan, run, head))

    def start(self, job: Job) -> LocalHandle:
        """Forks the node processes. To be called from the main thread, after torch is imported and while no
        other thread exists."""
        from meshctl.engines.node.node_process import NodeJob, fork

        adopt_orphans()
        handle = LocalHandle(job)
        for node in nodes_of(job.plan):
            node_job = NodeJob(job.run, node, job.head, job.token, job.worker, keep=job.keep)
            handle.add(node, fork(node_job))
        return handle


class LoopbackEngine(LocalEngine):
    """Runs all nodes of a plan on this machine, a process for each. Their workers communicate over TCP."""

    def preflight(self, plan: Plan, start: Start) -> None:
        super().preflight(replace(plan, cluster=replace(plan.cluster, nodes=1)), start)


@dataclass
class _Process:
    node: int
    pid: int
    pidfd: int
    popen: subprocess.Popen[bytes] | None = None
    """Set for a process that was started by exec."""


class LocalHandle(Handle):
    """The node processes, which are children of this process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._processes: dict[int, _Process] = {}
        self._is_single = len(nodes_of(job.plan)) == 1

    def add(self, node: int, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self._processes[pid] = _Process(node, pid, os.pidfd_open(pid), popen)

    def spawn(self, node: int, argv: Sequence[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a process that represents a node, in a session of its own. Its output goes to a log."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            popen = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True, **options)
        self.add(node, popen.pid, popen)
        return popen

    @property
    def running(self) -> bool:
        return bool(self._processes)

    def files(self) -> list[int]:
        return [process.pidfd for process in self._processes.values()]

    def poll(self) -> list[Exited]:
        exited = []
        for pid, process in list(self._processes.items()):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                self._forget(process, code)
                exited.append(self.exited(process.node, code))
        termination.reap_adopted(self._processes)
        return exited

    def exited(self, node: int, code: int) -> Exited:
        """Returns the report of the end of a node process."""
        name = "the fork server" if self._is_single else f"the node process of node {node}"
        return Exited(name, code, node=node)

    def kill(self) -> None:
        self._signal(signal.SIGKILL, list(self._processes.values()))

    def restart(self, nodes: Sequence[int]) -> bool:
        """Starts node processes by exec, because this process has threads by now and cannot fork."""
        self.forget(nodes)
        termination.kill_children(spare=[*self._processes, *self._job.spare()])
        for node in nodes:
            remove_scratch(self._job.token, node)
        environ = {**os.environ, TOKEN_VARIABLE: self._job.token}
        for command in agent_commands(self._job.plan, self._job.run, self._job.head):
            if command.node in nodes:
                popen = subprocess.Popen(
                    [sys.executable, "-c", AGENT, str(os.getpid()), *command.argv[1:]],
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=self._job.keep,
                )
                self.add(command.node, popen.pid, popen)
        return True

    def close(self) -> None:
        end = time.monotonic() + termination.GRACE_S
        while self.running and time.monotonic() < end:
            self.poll()
            time.sleep(0.002)
        termination.kill_children()
        for process in list(self._processes.values()):
            self._forget(process, -signal.SIGKILL)
        for node in nodes_of(self._job.plan):
            remove_scratch(self._job.token, node)

    def forget(self, nodes: Sequence[int]) -> None:
        """Kills the processes of some nodes that are left."""
        old = [process for process in self._processes.values() if process.node in nodes]
        self._signal(signal.SIGKILL, old)
        for process in old:
            code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
            self._forget(process, code)

    def _forget(self, process: _Process, code: int) -> None:
        os.close(process.pidfd)
        del self._processes[process.pid]
        if process.popen:
            process.popen.returncode = code  # reaped here, so Popen cannot learn the code itself

    def _signal(self, number: signal.Signals, processes: Sequence[_Process]) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process.pidfd, number)
