"""The base of engines whose nodes are other machines: the address of the head, and their common options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from meshctl.diagnostics.health import Check
from meshctl.engines.awaited import Awaited
from meshctl.engines.checks.requirements import Requirements
from meshctl.engines.engine import CannotStart, Command, Handle, Job, Rendered, agent_commands
from meshctl.plan.model import Plan
from meshctl.run.addresses import address_of, default_address
from meshctl.run.directory import NO_START, RunDir, Start


class RemoteEngine:
    """An engine whose nodes run `meshctl agent`, and whose supervisor is in the launcher's process."""

    supervisor: Literal["here", "inside"] = "here"
    examines_nodes, shares_files = True, True

    def __init__(
        self,
        setup: Sequence[str] = (),
        join_limit: float = 300.0,
        lease: float = 15.0,
        head: str = "",
        secure: bool = False,
    ) -> None:
        """The options of `engine.NAME`: shell commands before the agent, seconds, seconds, the address, host
        name or interface at which the head listens, and whether connections are secured, which the processes
        of the run read from `start.json`."""
        self.setup, self.join_limit_s, self.lease_s, self._head = tuple(setup), join_limit, lease, head

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
        """Raises `CannotStart` if the head cannot listen. Each node checks itself before it starts
        workers."""
        _ = self.host

    def examine(self, requirements: Requirements) -> tuple[Check, ...]:
        return ()

    def render(self, plan: Plan, run: RunDir, head: str, start: Start = NO_START) -> Rendered:
        return Rendered(tuple(self.prepared(command) for command in agent_commands(plan, run, head)))

    def prepared(self, command: Command) -> Command:
        """Returns the command line that is started on a node: the agent after the setup."""
        return command

    def attach(self, job: Job, environ: Mapping[str, str]) -> Handle:
        """Returns the handle of `meshctl head`, whose nodes are started by others."""
        return Awaited(job, self.render(job.plan, job.run, job.head).commands)
