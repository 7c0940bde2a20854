"""A fork server that runs another Python interpreter, for groups that name one. The node process starts it by
exec and keeps it across attempts. Agents are still forked from the node process and run its interpreter.

    node process --exec--> fork server --fork--> worker
          |                    |
          +--- control socket -+     to the fork server: the sockets of agents
                                     to the node process: the number of agents received so far, sent when
                                     the server is ready (0) and each time that it becomes idle
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from meshctl.engines.node import forkserver, termination
from meshctl.engines.node.interpreter import environ_of
from meshctl.engines.node.preload import preload
from meshctl.plan.model import Plan
from meshctl.run import process
from meshctl.run.directory import RunDir
from meshctl.run.process import is_in_job

MODULE = "meshctl.engines.node.exec_server"
WORKER_FUNCTION = "meshctl.runtime.worker:main"
"""The function that a worker without a command line calls."""


class ExecServer:
    """The node process's end of the control socket. The fork server dies with this process."""

    def __init__(self, python: str, log: str, records: int, plan: Path, groups: Sequence[str]) -> None:
        """Starts the server. `records` is the descriptor of the memory with the progress records of this
        node. The server imports in advance what the components of `groups` import."""
        self._socket, theirs = forkserver.agent_sockets()
        self._agents, self._agents_done = 0, 0
        self.is_ready = False
        """True if the server has finished its imports. Agents are added from then on."""
        parent, environ = os.getpid(), environ_of(python, os.environ)
        words = [str(plan), *groups]
        forkserver.flush()
        with forkserver.blocked_signals():
            self.pid = os.fork()
            if not self.pid:
                _exec_server(python, environ, [theirs.fileno(), parent, records], words, log)
        theirs.close()

    @property
    def is_idle(self) -> bool:
        """True if the server has no worker: all of its agents have ended."""
        return self._agents == self._agents_done

    def fileno(self) -> int:
        return self._socket.fileno()

    def add_agent(self, sock: socket.socket) -> None:
        """Passes the server's end of an agent's socket to the server, and closes it in this process."""
        self._agents += 1
        with suppress(OSError):  # the exit status of the server reports its death
            socket.send_fds(self._socket, [b"agent"], [sock.fileno()])
        sock.close()

    def receive(self) -> None:
        with suppress(OSError, ValueError):
            self._agents_done = int(self._socket.recv(forkserver.PACKET_BYTES_MAX))
            self.is_ready = True

    def close(self) -> None:
        self._socket.close()


def _exec_server(
    python: str, environ: Mapping[str, str], numbers: Sequence[int], words: Sequence[str], log: str
) -> NoReturn:
    """Turns a forked copy of the node process into the server. `numbers` are the first arguments of `main`,
    `words` the others."""
    control, parent, records = numbers
    try:
        forkserver.default_signals()
        process.die_with(parent, signal.SIGTERM)
        forkserver.redirect_to_file(log)
        process.close_files([control, records])
        for descriptor in (control, records):
            os.set_inheritable(descriptor, True)
        os.execve(python, [python, "-P", "-m", MODULE, *map(str, numbers), *words], environ)
    except OSError as error:
        os.write(2, f"meshctl: {python} could not be started: {error}\n".encode())
    finally:
        os._exit(127)


def main(control: int, parent: int, records: int, plan: Path, groups: Sequence[str]) -> NoReturn:
    """Serves the agents whose sockets arrive over `control`, until `control` closes or the parent dies.
    Imports in advance what the components of `groups` of a plan import."""
    in_job = is_in_job()
    process.die_with(parent, signal.SIGKILL if in_job else signal.SIGTERM)
    process.adopt_orphans()
    process.set_title(forkserver.TITLE)
    module, _, name = WORKER_FUNCTION.partition(":")
    os.set_inheritable(records, False)
    preload(Plan.read(plan), RunDir.of_plan(plan).read_start().path, groups)
    server = forkserver.ForkServer(getattr(import_module(module), name), records)
    sock = socket.socket(fileno=control)
    wakeup = forkserver.Wakeup(() if in_job else (signal.SIGTERM,))
    agents = reported = 0
    with suppress(OSError):  # the node process has died; the next read reports it
        sock.send(b"0")
    while not wakeup.is_ending:
        waiting: list[Any] = [wakeup, sock, *server.files()]
        ready, _, _ = select.select(waiting, [], [])
        wakeup.clear()
        server.serve(ready)
        server.reap()
        if sock in ready:
            _, descriptors, _, _ = socket.recv_fds(sock, 16, 1)
            if not descriptors:
                break
            server.add_agent(socket.socket(fileno=descriptors[0]))
            agents += 1
        elif server.is_idle and agents > reported:
            termination.kill_children()
            sock.send(str(agents).encode())
            reported = agents
    termination.kill_children()
    os._exit(0)


if __name__ == "__main__":
    _control, _parent, _records = map(int, sys.argv[1:4])
    main(_control, _parent, _records, Path(sys.argv[4]), sys.argv[5:])
