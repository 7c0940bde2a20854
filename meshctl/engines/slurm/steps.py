"""The steps of a job: the `srun`s by which the head starts the nodes.

There is one for each set of nodes, whose tasks know their place in the set by SLURM_NODEID; with
`run.restarts` there is one for each node, so that a lost one can be started again. The sets are steps of
their own, because in one step of a heterogeneous job SLURM_NODEID would count over all components.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meshctl.dataclass import dataclass
from meshctl.engines.awaited import publish, withdraw
from meshctl.engines.engine import Exited, Job
from meshctl.engines.host_script import last_error, node_lines, refusals
from meshctl.engines.local import LocalHandle
from meshctl.engines.node.termination import GRACE_S
from meshctl.engines.slurm.allocation import Share
from meshctl.engines.slurm.job import why_signalled
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import node_sets
from meshctl.run.directory import RunDir

if TYPE_CHECKING:
    from meshctl.engines.slurm.engine import SlurmOptions

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
    """Returns the steps that start all nodes of a plan."""
    steps = list[Step]()
    for index, (alike, share) in enumerate(zip(node_sets(plan), shares, strict=True)):
        nodes = tuple(alike.numbers())
        if not plan.run.restarts:
            script = script_of(run, f'"{index}.$SLURM_NODEID"', head, setup)
            argv = (*srun_of(run, share, share.hosts, options), script)
            steps.append(Step(nodes[0], nodes, share.hosts, argv))
            continue
        for node, host in zip(nodes, share.hosts, strict=True):
            argv = (*srun_of(run, share, (host,), options), script_of(run, str(node), head, setup))
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
        words.append(f"--container-mounts={','.join(_mount(one) for one in dict.fromkeys(mounts))}")
    return (*words, "sh", "-c")


def _mount(text: str) -> str:
    return text if ":" in text else f"{text}:{text}"


def script_of(run: RunDir, place: str, head: str, setup: Sequence[str]) -> str:
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
        log = step_log(self._job.run, step)
        log.parent.mkdir(parents=True, exist_ok=True)
        environ = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        with log.open("wb") as output:
            popen = subprocess.Popen(
                step.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                start_new_session=True,
            )
        self.add(step.node, popen.pid, popen)

    def exited(self, node: int, code: int) -> Exited:
        step = self._steps[node]
        host, task_code = failed_task(step_log(self._job.run, step))
        failed = step.nodes[step.hosts.index(host)] if host in step.hosts else None
        if failed is None and len(step.nodes) == 1:
            failed, host = step.node, step.hosts[0]
        what = "the step of Slurm" if failed is None else f"the node process on {host} (node {failed})"
        log = step_log(self._job.run, step) if failed is None else node_log(self._job.run, host)
        return Exited(what, code, str(log), failed, reason=self._reason(host, failed, task_code, log))

    def _reason(self, host: str, node: int | None, code: int, log: Path) -> str:
        """Returns why a node could not be started; empty for another end."""
        if node is None:
            return ""
        return refusals(f"host {host} (node {node})", "engine.slurm", last_error(log)).get(code, "")

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

    def terminate(self) -> None:
        self._end(list(self._steps))

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
                self.terminate()
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
