"""The engine `slurm`: one job with a component for each set of equal nodes, and one task on each node.

    launch            writes RUN/job/sbatch.sh, submits it, and follows the run
      Slurm             runs the script on the first node of the first component
        head              `meshctl head`, which the script becomes; starts the nodes by `srun`
          srun              one for each component; with `run.restarts` one for each node
            agent             on each node, after the lines of `setup`

Inside an allocation (`salloc`, or a script of the user's) `launch` is the head itself, and nothing is
submitted.

The script has the options of each component (`#SBATCH hetjob` between them), and its shell becomes the head,
so that signals to the batch step reach it. There is one `srun` for each set of nodes, whose tasks know their
place in the set by SLURM_NODEID; with `run.restarts` there is one for each node, so that a lost one can be
started again. The sets are steps of their own, because in one step of a heterogeneous job SLURM_NODEID would
count over all components.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.engines.engine import CannotStart, Command, Exited, Handle, Job, Rendered, SubmittedJob
from meshctl.engines.local import LocalHandle
from meshctl.engines.node.termination import GRACE_S
from meshctl.engines.remote import RemoteEngine, last_error, node_lines, publish, refusals, withdraw
from meshctl.engines.slurm.job import Allocation, Requeue, Share, SlurmJob, SlurmOptions, call, why_signalled
from meshctl.network.addresses import address_towards, default_address
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import NodeSet, node_sets
from meshctl.run.directory import NO_START, RunDir, Start, write_whole
from meshctl.run.events import Observer
from meshctl.run.process import IN_JOB, is_in_job

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


# The script that `launch` submits

GRES = {"cuda": "gpu", "npu": "npu"}
"""Device type -> its name for Slurm."""
NOTICE_S = 15
"""Seconds that the end of a run may take in addition to `run.grace`."""


def script_of(plan: Plan, run: RunDir, options: SlurmOptions, folder: str) -> str:
    """Returns the script. `folder` is the working directory of the launcher, and that of the head."""
    sets = node_sets(plan)
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _job(plan, run, options))]
    for index, alike in enumerate(sets):
        if index:
            lines.append("#SBATCH hetjob")
        lines += [f"#SBATCH {line}" for line in (*_common(options), *_component(plan, alike, options))]
    head = [sys.executable, "-m", "meshctl", "head", "--plan", str(run.plan)]
    lines += ["", f"export {IN_JOB}=1", f"cd {shlex.quote(folder)} || exit 4", f"exec {shlex.join(head)}"]
    return "".join(f"{line}\n" for line in lines)


def _job(plan: Plan, run: RunDir, options: SlurmOptions) -> Iterator[str]:
    """Yields the options of the whole job."""
    yield f"--job-name={plan.name}"
    yield f"--output={shlex.quote(f'{run.path}/logs/slurm-%j.log')}"
    yield "--open-mode=append"
    yield f"--signal=B:USR2@{math.ceil(plan.run.grace) + NOTICE_S}"
    yield "--requeue" if options.requeue else "--no-requeue"
    if plan.run.restarts:
        yield "--no-kill"


def _common(options: SlurmOptions) -> Iterator[str]:
    """Yields the options that each component has."""
    for name in ("partition", "account", "qos", "time", "constraint"):
        if value := getattr(options, name):
            yield f"--{name}={shlex.quote(value)}"
    yield from options.sbatch


def _component(plan: Plan, alike: NodeSet, options: SlurmOptions) -> Iterator[str]:
    yield f"--nodes={alike.count}"
    yield "--ntasks-per-node=1"
    if options.cpus:
        yield f"--cpus-per-task={options.cpus}"
    if gres := gres_of(plan, alike, options.gres):
        yield f"--gres={shlex.quote(gres)}"


def gres_of(plan: Plan, alike: NodeSet, written: str) -> str:
    """Returns the devices that each node of a set is given; empty for none. `written` is the option, without
    a number or with one. Where the plan needs no devices at all, a number is for every node."""
    needed = {kind: count for kind, count in alike.devices.items() if kind in GRES}
    has_count = written.rpartition(":")[2].isdigit()
    if not needed:
        is_wanted = has_count and all(group.device_type == "cpu" for group in plan.groups)
        return written if is_wanted else ""
    if has_count:
        return written
    return ",".join(f"{written or GRES[kind]}:{count}" for kind, count in needed.items())


FAILED_TASK = re.compile(r"srun: error: (\S+?): task.*?: (?:Exited with exit code (\d+)|(\S.*))")
FOREIGN = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    *("ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES"),
)
"""Variables of the head's own node, which a step would pass on to nodes without devices."""
END_S = 5.0
"""Seconds that steps have to end after their tasks were killed."""


@dataclass(frozen=True)
class Step:
    node: int
    """The first node of the plan that it starts."""
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    """The host of each of the nodes."""
    argv: tuple[str, ...]


def steps_of(
    plan: Plan,
    run: RunDir,
    head: str,
    shares: Sequence[Share],
    setup: Sequence[str],
    options: SlurmOptions,
) -> tuple[Step, ...]:
    """Returns the job steps of Slurm, calls of `srun`, that start the node processes of a plan: one for each
    set of equal nodes, and with `run.restarts` one for each node."""
    steps = list[Step]()
    for index, (alike, share) in enumerate(zip(node_sets(plan), shares, strict=True)):
        nodes = tuple(alike.numbers())
        if not plan.run.restarts:
            script = _node_script(run, f'"{index}.$SLURM_NODEID"', head, setup)
            argv = (*srun_of(run, share, share.hosts, options), script)
            steps.append(Step(nodes[0], nodes, share.hosts, argv))
            continue
        for node, host in zip(nodes, share.hosts, strict=True):
            argv = (*srun_of(run, share, (host,), options), _node_script(run, str(node), head, setup))
            steps.append(Step(node, (node,), (host,), argv))
    return tuple(steps)


def srun_of(run: RunDir, share: Share, hosts: Sequence[str], options: SlurmOptions) -> tuple[str, ...]:
    """Returns the command line of a step, up to the shell that runs on each node."""
    words = ["srun"]
    if share.component is not None:
        words.append(f"--het-group={share.component}")
    words += [f"--nodes={len(hosts)}", f"--ntasks={len(hosts)}", "--ntasks-per-node=1"]
    words += [f"--nodelist={','.join(hosts)}"]
    words += ["--overlap", "--no-kill", "--cpu-bind=none", "--input=none"]
    words += [f"--kill-on-bad-exit={int(len(hosts) > 1)}"]
    if options.cpus:
        words.append(f"--cpus-per-task={options.cpus}")
    if options.container_image:
        mounts = (*options.container_mounts, str(run.path), os.getcwd())
        words.append(f"--container-image={options.container_image}")
        pairs = [one if ":" in one else f"{one}:{one}" for one in dict.fromkeys(mounts)]
        words.append(f"--container-mounts={','.join(pairs)}")
    return (*words, "sh", "-c")


def _node_script(run: RunDir, place: str, head: str, setup: Sequence[str]) -> str:
    """Returns the shell script of a node. `place` is its place in the plan, as the shell reads it."""
    agent = shlex.join(["meshctl", "agent", "--plan", str(run.plan), "--head", head, "--in-job"])
    log = f'exec >{shlex.quote(str(node_log(run, "")))}"$SLURMD_NODENAME" 2>&1'
    return "\n".join([log, *node_lines(setup, f"{agent} --node {place}")])


def node_log(run: RunDir, host: str) -> Path:
    """Returns the file with the output of a node's agent and of its setup."""
    return run.path / "logs" / f"node-{host}"


class SlurmHandle(LocalHandle):
    """The `srun`s, which are children of this process."""

    def __init__(self, job: Job, steps: Sequence[Step], number: str) -> None:
        super().__init__(job)
        self._steps = {step.node: step for step in steps}
        self._number = number
        """The job."""

    def begin(self) -> None:
        """Publishes the token, which nodes read from its file, and starts all steps. Raises `OSError`."""
        publish(self._job)
        for step in self._steps.values():
            self._start(step)

    def _start(self, step: Step) -> None:
        log, environ = step_log(self._job.run, step), {**os.environ}
        for name in FOREIGN:
            environ.pop(name, None)
        self.spawn(step.node, step.argv, log, stdin=subprocess.DEVNULL, env=environ)

    def exited(self, node: int, code: int) -> Exited:
        step = self._steps[node]
        host, task_code = failed_task(step_log(self._job.run, step))
        failed = step.nodes[step.hosts.index(host)] if host in step.hosts else None
        if failed is None and len(step.nodes) == 1:
            failed, host = step.node, step.hosts[0]
        what = "the step of Slurm" if failed is None else f"the node process on {host} (node {failed})"
        log = step_log(self._job.run, step) if failed is None else node_log(self._job.run, host)
        where = f"host {host} (node {failed})"
        reasons = {} if failed is None else refusals(where, "engine.slurm", last_error(log))
        return Exited(what, code, str(log), failed, reason=reasons.get(task_code, ""))

    def explain(self, received: signal.Signals) -> str:
        return why_signalled(self._number, received) if self._number else ""

    def restart(self, nodes: Sequence[int]) -> bool:
        if any(len(self._steps[node].nodes) > 1 for node in nodes if node in self._steps):
            return False
        self._end(nodes)
        self.forget(nodes)
        for node in nodes:
            self._start(self._steps[node])
        return True

    def kill(self) -> None:
        self._end(list(self._steps))

    def _end(self, nodes: Sequence[int]) -> None:
        """Ends steps. `srun` kills the tasks of its step on SIGTERM."""
        self._signal(signal.SIGTERM, [one for one in self._processes.values() if one.node in nodes])

    def close(self) -> None:
        withdraw(self._job)
        for signals in (False, True):
            end = time.monotonic() + (END_S if signals else GRACE_S)
            while self.running and time.monotonic() < end:
                self.poll()
                time.sleep(0.02)
            if self.running and not signals:
                self.kill()
        super().close()


def step_log(run: RunDir, step: Step) -> Path:
    return run.path / "logs" / f"srun-{step.node}.log"


def failed_task(log: Path) -> tuple[str, int]:
    """Returns the host and the exit code of the first task that failed, as `srun` reports it; an empty host
    and 0 if it reports none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", 0
    found = FAILED_TASK.search(text)
    return (found[1], int(found[2] or 0)) if found else ("", 0)
