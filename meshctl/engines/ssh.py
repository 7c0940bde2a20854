"""Hosts that are reached by ssh, one connection each, with the plain client of OpenSSH.

    head    ssh HOST sh -c SCRIPT    the token of the run is the first line of its standard input, which
    stays open
              host    the lines of `setup`, then `meshctl agent`; ends with the standard input

When the head dies, its end of the pipe closes, so that on the host everything that the connection has
started ends, also while the setup runs. Where the network is cut, the lease of the agent has this effect.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import IO, Any, BinaryIO

from meshctl.engines.engine import CannotStart, Command, Exited, Handle, Job
from meshctl.engines.local import LocalHandle
from meshctl.engines.remote import NO_CONNECTION, RemoteEngine, last_error, refusals, script_of
from meshctl.engines.shipping import send_archive
from meshctl.network.addresses import address_towards, default_address
from meshctl.plan.model import Plan
from meshctl.run.directory import Start

CONNECT_S = 20
"""Seconds within which a host must answer."""
MAX_ASKED = 8
"""Maximum number of hosts whose addresses are looked up to find the network on which the head listens."""
SSH_PORT = 22
KILLED = 128
"""The exit code of a shell whose command was killed by a signal, less the number of the signal."""


class SshEngine(RemoteEngine):
    def __init__(
        self, hosts: Sequence[str] = (), hosts_file: str = "", ssh_options: Sequence[str] = (), **common: Any
    ) -> None:
        super().__init__(**common)
        self._hosts, self._file, self._options = tuple(hosts), hosts_file, tuple(ssh_options)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts by the number of their node. Raises `CannotStart` if their file cannot be read."""
        return self._hosts or hosts_in(Path(self._file))

    def default_host(self) -> str:
        loopback = ""
        for host in self.hosts[:MAX_ASKED]:
            address = self._address_towards(host)
            if address and not address.startswith("127.") and address != "::1":
                return address
            loopback = loopback or address
        return loopback or default_address()

    def _address_towards(self, host: str) -> str:
        """Returns the address from which this machine reaches a host; empty if its name is unknown."""
        try:
            settings = subprocess.run(
                ["ssh", *self._options, "-G", host], capture_output=True, text=True, timeout=CONNECT_S
            )
            names = [
                line.split(" ", 1)[1] for line in settings.stdout.splitlines() if line[:9] == "hostname "
            ]
            return address_towards(names[0] if names else host, SSH_PORT)
        except (OSError, subprocess.SubprocessError):
            return ""

    def preflight(self, plan: Plan, start: Start) -> None:
        if len(self.hosts) < plan.cluster.nodes:
            where = f"`{self._file}`" if not self._hosts else "`engine.ssh.hosts`"
            raise CannotStart(
                f"the plan has {plan.cluster.nodes} nodes, and {where} lists {len(self.hosts)} hosts"
            )
        try:
            subprocess.run(["ssh", "-V"], capture_output=True, timeout=CONNECT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotStart(f"ssh cannot be started: {error}; install the client of OpenSSH") from error
        super().preflight(plan, start)

    def prepared(self, command: Command) -> Command:
        alive = max(1, round(self.lease_s / 3))
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": CONNECT_S,
            "ServerAliveInterval": alive,
            "ServerAliveCountMax": 3,
            "ControlPath": "none",
        }
        flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        script = shlex.quote(script_of(self.setup, command.argv, self.ships))
        kept = shlex.quote(f"sh -c {script}; exit $?")  # ssh passes on an exit code and no signal
        host = self.hosts[command.node]
        return Command(command.node, ("ssh", "-T", *flags, *self._options, host, f"exec sh -c {kept}"))

    def start(self, job: Job) -> Handle:
        commands = self.render(job.plan, job.run, job.head).commands
        handle = SshHandle(job, self.hosts, commands, self.archive(job))
        handle.connect([command.node for command in commands])
        return handle


def hosts_in(file: Path) -> tuple[str, ...]:
    """Returns the hosts that a file lists: the first word of each line. Raises `CannotStart`."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise CannotStart(f"`engine.ssh.hosts_file` cannot be read: {error}") from error
    found = tuple(words[0] for line in lines if (words := line.partition("#")[0].split()))
    if not found:
        raise CannotStart(f"`engine.ssh.hosts_file` {file} lists no host")
    if options := [host for host in found if host.startswith("-")]:
        raise CannotStart(f"`engine.ssh.hosts_file` {file} lists {options[0]}, which ssh reads as an option")
    return found


class SshHandle(LocalHandle):
    """The clients of ssh, which are children of this process. Each represents the node process of its
    host."""

    def __init__(
        self, job: Job, hosts: Sequence[str], commands: Sequence[Command], archive: BinaryIO | None
    ) -> None:
        super().__init__(job)
        self._archive = archive
        self._hosts, self._commands = hosts, commands
        self._pipes: dict[int, IO[bytes]] = {}
        """Node -> the standard input of its script. Its end ends the node."""

    def connect(self, nodes: Sequence[int]) -> None:
        """Starts some nodes."""
        for command in self._commands:
            if command.node in nodes:
                self._connect(command)

    def _connect(self, command: Command) -> None:
        log = self._job.run.node_log(command.node)
        popen = self.spawn(command.node, command.argv, log, bufsize=0, stdin=subprocess.PIPE)
        assert popen.stdin is not None
        with suppress(OSError):  # ssh may have ended already
            popen.stdin.write(f"{self._job.token}\n".encode())
        self._pipes[command.node] = popen.stdin
        if self._archive:
            # A thread, because the pipe is as slow as the network to the host.
            Thread(target=send_archive, args=(self._archive, popen.stdin), daemon=True).start()

    def exited(self, node: int, code: int) -> Exited:
        self._close_pipes([node])
        if code - KILLED in set(signal.Signals):
            code = KILLED - code
        log = self._job.run.node_log(node)
        where = f"host {self._hosts[node]} (node {node})"
        reasons = refusals(where, "engine.ssh", last_error(log))
        reasons[NO_CONNECTION] = f"{where} is not reached by ssh: {last_error(log)}"
        return Exited(f"the node process on {where}", code, str(log), node, reason=reasons.get(code, ""))

    def kill(self) -> None:
        self._close_pipes(self._pipes)
        super().kill()

    def restart(self, nodes: Sequence[int]) -> bool:
        self._close_pipes(nodes)
        self.forget(nodes)
        self.connect(nodes)
        return True

    def close(self) -> None:
        super().close()
        self._close_pipes(self._pipes)
        if self._archive:
            self._archive.close()

    def _close_pipes(self, nodes: Iterable[int]) -> None:
        for node in list(nodes):
            if pipe := self._pipes.pop(node, None):
                with suppress(OSError):
                    pipe.close()
