"""Engines whose nodes are other machines: the address of the head, and their common options. The base of
`ssh`, `ray` and `slurm`, and the engine `commands`, whose nodes a person or another tool starts. Its head
prints the command line of each node, and waits for them.

    RUN/commands.txt    the command lines
    RUN/head.json       the address of the head: `meshctl agent` without `--head` reads it
    RUN/.token          the token of the run, for agents that see this file; others get MESHCTL_TOKEN
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Literal

from meshctl.diagnostics.health import Check
from meshctl.engines.checks.requirements import Requirements
from meshctl.engines.engine import CannotStart, Command, Exited, Handle, Job, Rendered, agent_commands
from meshctl.engines.shipping import check_code, check_size, pack
from meshctl.network.addresses import address_of, default_address
from meshctl.plan.model import Plan
from meshctl.run.directory import NO_START, SHIP_TO, RunDir, Start, write_whole


class ConnectedNodes(Handle):
    """A handle of node processes that somebody else starts, and that are known by their connections only."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def poll(self) -> list[Exited]:
        return []

    def files(self) -> list[int]:
        return []

    def kill(self) -> None:
        """Does nothing: nodes end with their connections."""


class Awaited(ConnectedNodes):
    """Nodes whose command lines the head prints."""

    def __init__(self, job: Job, commands: Sequence[Command]) -> None:
        """Publishes the address and the token, and prints the command lines. Raises `OSError`."""
        super().__init__(job)
        self._commands = commands
        lines = [shlex.join(command.argv) for command in commands]
        publish(job)
        write_whole(job.run.commands, "".join(f"{line}\n" for line in lines))
        print(f"the head listens at {job.head}; start on each node:\n", flush=True)
        self._print([command.node for command in commands])

    def _print(self, nodes: Sequence[int]) -> None:
        for command in self._commands:
            if command.node in nodes:
                print(f"  {shlex.join(command.argv)}", flush=True)
        token = self._job.run.token
        print(f"\nwhere a node does not see {token}, set MESHCTL_TOKEN to its content\n", flush=True)

    def restart(self, nodes: Sequence[int]) -> bool:
        print("these nodes are lost; start them again:\n", flush=True)
        self._print(nodes)
        return True

    def close(self) -> None:
        withdraw(self._job)


def publish(job: Job) -> None:
    """Writes the address of the head and the token of the run, for nodes that see its directory. Raises
    `OSError`."""
    write_whole(job.run.token, f"{job.token}\n", private=True)
    write_whole(job.run.head, json.dumps({"address": job.head, "plan": job.plan.digest}) + "\n")


def withdraw(job: Job) -> None:
    """Removes what `publish` has written."""
    for file in (job.run.head, job.run.token):
        with suppress(OSError):
            file.unlink()


class RemoteEngine:
    """An engine whose nodes run `meshctl agent`, and whose supervisor is in the launcher's process."""

    supervisor: Literal["here", "inside"] = "here"
    examines_nodes = True

    def __init__(
        self,
        setup: Sequence[str] = (),
        join_limit: float = 300.0,
        lease: float = 15.0,
        head: str = "",
        ship: bool = False,
        ship_to: str = "",
    ) -> None:
        """The options of `engine.NAME`: shell commands before the agent, seconds, seconds, the address, host
        name or interface at which the head listens, whether the recipe's folder is copied to the nodes, and
        the folder there for runs."""
        self.setup, self.join_limit_s, self.lease_s, self._head = tuple(setup), join_limit, lease, head
        self.ships, self.shares_files, self._ship_to = ship, not ship, ship_to or SHIP_TO

    @property
    def host(self) -> str:
        """The address at which the head listens. Raises `CannotStart` if its name is unknown."""
        try:
            return address_of(self._head) if self._head else self.default_host()
        except OSError as error:
            raise CannotStart(
                f"`{self._head}` is neither an address, a host name nor an interface of this machine: {error}"
            ) from error

    def default_host(self) -> str:
        """Returns the address from which the nodes reach the head, if no option names it."""
        return default_address()

    def preflight(self, plan: Plan, start: Start) -> None:
        """Raises `CannotStart` if the head cannot listen, or the recipe's folder cannot be shipped. Each node
        checks itself before it starts workers."""
        _ = self.host
        if self.ships:
            check_code(plan, start.path)
            check_size(Path(start.path[0]), Path(plan.run.dir))

    def examine(self, requirements: Requirements) -> tuple[Check, ...]:
        return ()

    def render(
        self, plan: Plan, run: RunDir, head: str, start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        there = RunDir(Path(self._ship_to, run.path.parent.name, run.path.name)) if self.ships else run
        return Rendered(tuple(self.prepared(command) for command in agent_commands(plan, there, head)))

    def archive(self, job: Job) -> BinaryIO | None:
        """Returns the archive that each node unpacks; None without `ship`. Raises `CannotStart`."""
        if not self.ships:
            return None
        start = job.run.read_start()
        if start.resume:
            raise CannotStart(
                "with `ship` a run cannot continue from a checkpoint, because nodes do not see the files of "
                "others: continue it without `ship`, where all nodes share the run directory"
            )
        files = {"plan.json": job.plan.to_json(), "start.json": job.run.start.read_text(encoding="utf-8")}
        return pack(Path(start.path[0]), Path(job.plan.run.dir), files)

    def prepared(self, command: Command) -> Command:
        """Returns the command line that is started on a node: the agent after the setup."""
        return command

    def attach(self, job: Job, environ: Mapping[str, str]) -> Handle:
        """Returns the handle of `meshctl head`, whose nodes are started by others."""
        return Awaited(job, self.render(job.plan, job.run, job.head).commands)


class CommandsEngine(RemoteEngine):
    def prepared(self, command: Command) -> Command:
        if not self.setup:
            return command
        lines = " && ".join([*self.setup, f"exec {shlex.join(command.argv)}"])
        return Command(command.node, ("sh", "-c", lines))

    def render(
        self, plan: Plan, run: RunDir, head: str, start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        host = head.rpartition(":")[0].strip("[]")
        argv = ("meshctl", "head", "--plan", str(run.plan), "--host", host)
        return replace(super().render(plan, run, head), head=argv)

    def start(self, job: Job) -> Handle:
        return Awaited(job, self.render(job.plan, job.run, job.head).commands)
