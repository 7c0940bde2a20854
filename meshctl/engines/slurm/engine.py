"""The engine `slurm`: one job with a component for each set of equal nodes, and one task on each node.

    launch            writes RUN/job/sbatch.sh, submits it, and follows the run
      Slurm             runs the script on the first node of the first component
        head              `meshctl head`, which the script becomes; starts the nodes by `srun` (`steps.py`)
          srun              one for each component; with `run.restarts` one for each node
            agent             on each node, after the lines of `setup`

Inside an allocation (`salloc`, or a script of the user's) `launch` is the head itself, and nothing is
submitted.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from meshctl.engines.engine import CannotStart, Command, Handle, Job, Rendered, SubmittedJob
from meshctl.engines.remote import RemoteEngine
from meshctl.engines.slurm.job import Allocation, Requeue, SlurmJob, SlurmOptions, call
from meshctl.engines.slurm.steps import SlurmHandle, Step, script_of, steps_of
from meshctl.network.addresses import address_towards, default_address
from meshctl.plan.model import Plan
from meshctl.run.directory import NO_START, RunDir, Start, write_whole
from meshctl.run.events import Observer
from meshctl.run.process import is_in_job

JOB_ID = "SLURM_JOB_ID"
PORT = 9
"""A port towards which an address is looked up; nothing is sent there."""
SUBMIT_S = 60.0


class SlurmEngine(RemoteEngine):
    def __init__(
        self,
        setup: Sequence[str] = (),
        join_limit: float = 300.0,
        lease: float = 15.0,
        head: str = "",
        **options: Any,
    ) -> None:
        super().__init__(setup, join_limit, lease, head)
        self.options = SlurmOptions(**options)

    @property
    def supervisor(self) -> Literal["here", "inside"]:  # type: ignore[override]
        """The launcher supervises inside an allocation; otherwise, and in the job, `meshctl head` does."""
        return "here" if os.environ.get(JOB_ID) and not is_in_job() else "inside"

    def default_host(self) -> str:
        """Returns the address from which this node reaches another one of the job."""
        if not os.environ.get(JOB_ID):
            return default_address()
        allocation = Allocation.of(os.environ)
        own = os.environ.get("SLURMD_NODENAME", socket.gethostname())
        others = [host for host in allocation.hosts if host != own]
        return address_towards(allocation.address_of((others or allocation.hosts)[0]), PORT)

    def preflight(self, plan: Plan, start: Start) -> None:
        """Raises `CannotStart` if Slurm's commands are missing, or if the allocation is too small."""
        if self.supervisor == "here":
            Allocation.of(os.environ).shares(plan)
            super().preflight(plan, start)
            return
        try:
            call("sbatch", "--version")
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotStart(
                f"sbatch cannot be started: {error}; launch where Slurm's commands are installed"
            ) from error

    def render(
        self, plan: Plan, run: RunDir, head: str, start: Start = NO_START, recipe: str = ""
    ) -> Rendered:
        if self.supervisor == "inside":
            file = run.submitted / "sbatch.sh"
            text = script_of(plan, run, self.options, os.getcwd())
            return Rendered((), ("sbatch", str(file)), {file: text})
        return Rendered(tuple(Command(step.node, step.argv) for step in self._steps(plan, run, head)))

    def _steps(self, plan: Plan, run: RunDir, head: str) -> tuple[Step, ...]:
        shares = Allocation.of(os.environ).shares(plan)
        return steps_of(plan, run, head, shares, self.setup, self.options)

    def start(self, job: Job) -> Handle:
        handle = SlurmHandle(job, self._steps(job.plan, job.run, job.head), os.environ.get(JOB_ID, ""))
        handle.begin()
        return handle

    # As a `JobEngine`

    def submit(self, plan: Plan, run: RunDir) -> SubmittedJob:
        [(path, text)] = self.render(plan, run, "").files.items()
        write_whole(path, text, private=True)
        (run.path / "logs").mkdir(exist_ok=True)  # Slurm does not make the folder of its log
        try:
            done = call("sbatch", "--parsable", str(path), limit_s=SUBMIT_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotStart(f"the job cannot be submitted: {error}") from error
        if done.returncode:
            reason = done.stderr.strip().removeprefix("sbatch: error: ").replace("\n", "; ")
            raise CannotStart(f"Slurm refuses the job: {reason}; it is {shlex.quote(str(path))}")
        return SlurmJob(done.stdout.strip().partition(";")[0])

    def submitted(self, run: RunDir, number: str) -> SubmittedJob:
        return SlurmJob(number)

    def observers(self, run: RunDir, environ: Mapping[str, str]) -> Sequence[Observer]:
        return [Requeue(run, environ.get(JOB_ID, ""))] if self.options.requeue else []
