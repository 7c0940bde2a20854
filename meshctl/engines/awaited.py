"""Nodes that a person or another tool starts. The head prints the command line of each node, and
waits for them.

    RUN/commands.txt    the command lines
    RUN/head.json       the address of the head: `meshctl agent` without `--head` reads it
    RUN/.token          the token of the run, for agents that see this file; others get MESHCTL_TOKEN
"""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Sequence
from contextlib import suppress

from meshctl.engines.engine import Command, Exited, Job
from meshctl.run.directory import write_whole


class ConnectedNodes:
    """A handle of node processes that somebody else starts, and that are known by their connections only."""

    running = False
    """True if a process that the engine has started runs."""
    replaces_nodes = False

    def __init__(self, job: Job) -> None:
        self.address, self._job = job.head, job

    def poll(self) -> list[Exited]:
        return []

    def files(self) -> list[int]:
        return []

    def terminate(self) -> None:
        """Does nothing: nodes end with their connections."""

    def kill(self) -> None:
        """Does nothing: nodes end with their connections."""

    def explain(self, received: signal.Signals) -> str:
        return ""


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
