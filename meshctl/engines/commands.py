"""Nodes that a person or another tool starts. `launch` is the head, and prints the
command line of each node (`awaited`)."""

from __future__ import annotations

import shlex
from dataclasses import replace

from meshctl.engines.awaited import Awaited
from meshctl.engines.engine import Command, Handle, Job, Rendered
from meshctl.engines.remote import RemoteEngine
from meshctl.plan.model import Plan
from meshctl.run.directory import NO_START, RunDir, Start


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
