"""The local engine: everything on this machine, from one import of torch.

    launcher   imports torch once, opens the store's socket, forks the rest, then becomes the store and
               follows
      fork server, one for all groups
      agent per group, which runs what `meshctl agent` runs

`commands` says what the same run looks like as command lines; `start` does it. Agents connect before the
store exists: their connections wait in the backlog of the socket that was opened first.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import signal
import socket
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from meshctl.engines.node import forkserver, guard
from meshctl.engines.node.forkserver import Client, WorkerMain
from meshctl.engines.node.visible_devices import CannotStart, Narrowed, devices_text, named, narrowed, numbers
from meshctl.engines.node.worker_env import missing, resolve
from meshctl.engines.supervise.head import Gone
from meshctl.plan.model import Group, Plan
from meshctl.run.directory import RunDir, Start
from meshctl.topology.cluster import transport_error

if TYPE_CHECKING:
    from torch.distributed import TCPStore

ROOT = Path("/")
DEVICES = {"cuda": "dev/nvidia[0-9]*", "npu": "dev/davinci[0-9]*"}
"""The files that a machine has for its devices."""
ROCM_DEVICES = "sys/class/kfd/kfd/topology/nodes/*/gpu_id"
"""One for each processor; 0 is in those that are no GPU."""
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Command:
    """One agent, as a command line."""

    group: str
    node: int
    argv: tuple[str, ...]


def commands(plan: Plan, run: RunDir, head: str) -> tuple[Command, ...]:
    """What is started, by group and node. Pure."""
    return tuple(
        Command(
            group.name,
            node,
            (
                "meshctl",
                "agent",
                "--plan",
                str(run.plan),
                "--group",
                group.name,
                "--node",
                str(node),
                "--head",
                head,
            ),
        )
        for group in plan.groups
        for node in plan.nodes_of(group.name)
    )


def preflight(plan: Plan, start: Start) -> None:
    """Compares the plan with this machine; raises `CannotStart` with the first thing that is missing."""
    if plan.cluster.nodes > 1:
        raise CannotStart(
            f"the plan has {plan.cluster.nodes} nodes, and the local engine has one: this machine"
        )
    rocm = any(group.device_type == "cuda" for group in plan.groups) and is_rocm()
    held: dict[str, Group] = {}
    for group in plan.groups:
        if (kind := group.device_type) in DEVICES:
            for name in compare(
                group, numbers(plan, group, 0), narrowed(kind, os.environ, rocm), count_devices(kind, rocm)
            ):
                other = held.setdefault(f"{kind} device {name}", group)
                if host(plan, other) != host(plan, group):
                    both = f"groups {other.name} and {group.name} would both have the {kind} device {name}"
                    raise CannotStart(
                        f"{both}: give them other visible_devices, or say `colocate: {other.name}`"
                    )
        if lacking := missing(start, group):
            raise CannotStart(lacking)
        own = {name: resolve(value or "", os.environ) for name, value in group.env if value is not None}
        if refused := transport_error({**os.environ, **own}):
            raise CannotStart(refused)


def host(plan: Plan, group: Group) -> str:
    """Whose devices a group has."""
    while group.colocate:
        group = plan.group(group.colocate)
    return group.name


def compare(group: Group, wanted: Sequence[int], left: Narrowed | None, here: int) -> list[str]:
    """What this machine calls the devices that a group needs, by their numbers on the node; raises
    `CannotStart` where it lacks some.

    A list in the environment is believed where no device is found at all: the machine may have them
    elsewhere.
    """
    if left is not None:
        known = takewhile(lambda name: here == 0 or not name.isdigit() or int(name) < here, left.names)
        return named(group, wanted, replace(left, names=tuple(known)))
    names = named(group, wanted, None)
    if strange := [name for name in names if here == 0 or (name.isdigit() and int(name) >= here)]:
        needs = (
            f"is to see {', '.join(strange)} (its visible_devices)"
            if group.visible_devices
            else f"needs {devices_text(group, wanted)}"
        )
        raise CannotStart(f"group {group.name} {needs}, and this machine has {here or 'none'}")
    return names


def count_devices(device_type: str, rocm: bool = False) -> int:
    """Without a driver call: CUDA that was touched before a fork is of no use after it."""
    if rocm and device_type == "cuda":
        return len([file for file in ROOT.glob(ROCM_DEVICES) if file.read_text().strip() not in ("", "0")])
    return len(list(ROOT.glob(DEVICES[device_type])))


def is_rocm() -> bool:
    """Whether the torch that is installed is ROCm's, told by its text and without importing it."""
    found = importlib.util.find_spec("torch")
    version = Path(found.origin).with_name("version.py") if found and found.origin else None
    return (
        version is not None
        and version.is_file()
        and re.search(r"^hip\b.*=\s*['\"]", version.read_text(), re.M) is not None
    )


@dataclass
class LocalProcesses:
    """The fork server and the agents, as children of this process."""

    names: dict[int, Gone]
    """By pid: how each is called; its code is not known yet."""
    server: int
    pidfds: dict[int, int] = field(default_factory=dict)
    killed: bool = False
    alone: float = math.inf
    """Since when nothing but the fork server has been running."""

    def __post_init__(self) -> None:
        self.pidfds = {pid: os.pidfd_open(pid) for pid in self.names}

    @property
    def running(self) -> bool:
        return bool(self.pidfds)

    def files(self) -> list[int]:
        return list(self.pidfds.values())

    def gone(self) -> list[Gone]:
        found = []
        for pid in list(self.pidfds):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(self.pidfds.pop(pid))
                found.append(replace(self.names[pid], code=code))
        guard.reap_adopted(self.pidfds)
        self._end_server()
        return found

    def _end_server(self) -> None:
        """It leaves when the last agent has; it has to."""
        if self.pidfds.keys() == {self.server}:
            self.alone = min(self.alone, time.monotonic())
        if time.monotonic() > self.alone + 2 * guard.GRACE:
            self._send(signal.SIGKILL, [self.server])

    def terminate(self) -> None:
        """The agents end their workers, and the fork server ends when all agents have."""
        self._send(signal.SIGTERM, [pid for pid in self.pidfds if pid != self.server])

    def kill(self) -> None:
        """The agents at once; the fork server kills all workers and what they leave, and is killed itself the
        second time."""
        self._send(signal.SIGKILL, [pid for pid in self.pidfds if pid != self.server])
        self._send(signal.SIGKILL if self.killed else signal.SIGTERM, [self.server])
        self.killed = True

    def clean(self) -> None:
        """Whatever is left, and whatever it left."""
        guard.kill_children()
        for pidfd in self.pidfds.values():
            os.close(pidfd)
        self.pidfds.clear()

    def _send(self, number: signal.Signals, pids: Sequence[int]) -> None:
        for pid in pids:
            if pid in self.pidfds:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfds[pid], number)


def start(
    plan: Plan, run: RunDir, worker: WorkerMain, keep: Sequence[int] = ()
) -> tuple[LocalProcesses, TCPStore]:
    """Starts a plan; gives its processes and the store. To be called from the main thread, with torch
    imported and no other thread.

    `keep`: descriptors that stay open until the last agent is gone, e.g. the run's lock.
    """
    from meshctl.engines.node import rendezvous

    guard.adopt_orphans()
    listener = socket.create_server((HOST, 0), backlog=1024)
    head = f"{HOST}:{listener.getsockname()[1]}"
    members = [(group.name, node) for group in plan.groups for node in plan.nodes_of(group.name)]
    for group, _ in members:
        run.log(group, 0).parent.mkdir(parents=True, exist_ok=True)
    server, sockets = forkserver.fork(len(members), worker, str(run.path / "logs" / "fork-server.log"), keep)
    names = {server: Gone("the fork server", 0)}
    for (group, node), ours in zip(members, sockets, strict=True):
        pid = _fork_agent(run, group, node, head, worker, ours, [*keep, ours.fileno()])
        names[pid] = Gone(f"the agent of {group}", 0, str(run.log(group, f"agent-{node}")))
    for ours in sockets:
        ours.close()
    processes = LocalProcesses(names, server)
    return processes, rendezvous.serve(listener)


def _fork_agent(
    run: RunDir,
    group: str,
    node: int,
    head: str,
    worker: WorkerMain,
    sock: socket.socket,
    keep: Sequence[int],
) -> int:
    from meshctl.engines.node.agent import run_agent

    parent = os.getpid()
    forkserver.flush()
    if pid := os.fork():
        return pid
    code = 70
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        guard.die_with(parent, signal.SIGTERM)
        guard.rename(f"mesh {group}/{node}")
        forkserver.redirect(str(run.log(group, f"agent-{node}")))
        guard.close_files(keep)
        code = run_agent(run.plan, group, node, head, worker, Client(sock))
    except BaseException:
        traceback.print_exc()
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """Ends a forked process, past everything that its copy of the parent's stack would still do."""
    try:
        forkserver.flush()
    finally:
        os._exit(code)


def close(processes: LocalProcesses) -> None:
    """After the last event: the fork server has nothing left to do, and nothing stays behind."""
    end = time.monotonic() + guard.GRACE
    while processes.running and time.monotonic() < end:
        processes.gone()
        time.sleep(0.005)
    processes.clean()
