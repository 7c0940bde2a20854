"""A job of Slurm: its options, its state by squeue and sacct, the nodes that it has, and how it is queued
again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from meshctl.dataclass import dataclass
from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Plan
from meshctl.plan.node_sets import node_sets
from meshctl.run.directory import JobState, Phase, RunDir, Submission
from meshctl.run.events import Event, Observer
from meshctl.text.english import counted

CALL_S = 20.0
"""Seconds that a command of Slurm may take."""
QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
NO_REASON = ("None", "", "N/A")


@dataclass(frozen=True)
class SlurmOptions:
    """The options of `engine.slurm`, as `recipe/slurm_fields.py` describes them."""

    partition: str = ""
    account: str = ""
    time: str = ""
    """DAYS-HH:MM:SS"""
    qos: str = ""
    constraint: str = ""
    gres: str = ""
    cpus: int = 0
    """CPUs of each node; 0 for those of the partition."""
    container_image: str = ""
    container_mounts: Sequence[str] = ()
    sbatch: Sequence[str] = ()
    requeue: bool = False


def call(*words: str, limit_s: float = CALL_S) -> subprocess.CompletedProcess[str]:
    """Runs a command of Slurm. Raises `OSError` and `subprocess.TimeoutExpired`."""
    return subprocess.run(words, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL)


class SlurmJob:
    def __init__(self, number: str) -> None:
        self.number, self.name = number, f"Slurm job {number}"

    def state(self) -> JobState | None:
        try:
            found = call("squeue", "--noheader", "--states=all", f"--jobs={self.number}", "--format=%i|%T|%r")
            if found.returncode and "Invalid job id" not in found.stderr:
                return None
            lines = (line.strip().split("|", 2) for line in found.stdout.splitlines())
            own = (self.number, f"{self.number}+0")  # the first component of a heterogeneous job
            state, reason = next((words[1:] for words in lines if words[0] in own), ("", ""))
            if not state:  # it ended some time ago, and the cluster may not record it
                words = ("--noheader", "--allocations", f"--jobs={self.number}", "--format=State%40")
                found = call("sacct", *words)
                state = "" if found.returncode else found.stdout.partition("\n")[0].strip()
        except (OSError, subprocess.SubprocessError):
            return None
        phase: Phase = "queued" if state in QUEUED else "running" if state in RUNNING else "ended"
        return JobState(self.name, phase, f"{state} ({reason})" if reason not in NO_REASON else state)

    def signal(self, number: signal.Signals) -> None:
        self._scancel("--batch", f"--signal={number.name.removeprefix('SIG')}")

    def cancel(self) -> None:
        self._scancel()

    def _scancel(self, *words: str) -> None:
        try:
            done = call("scancel", *words, self.number)
        except subprocess.SubprocessError as error:
            raise OSError(str(error)) from error
        if done.returncode:
            raise OSError(f"scancel: {done.stderr.strip() or done.returncode}")


def why_signalled(number: str, received: signal.Signals) -> str:
    """Returns why Slurm sends a signal to a job, as a sentence; empty if it has not sent it."""
    shown = ""
    with suppress(OSError, subprocess.SubprocessError):
        shown = call("scontrol", "--oneliner", "show", "job", number).stdout.partition("\n")[0]
    found = dict(re.findall(r"(\S+?)=(\S*)", shown))
    state, reason = found.get("JobState", ""), found.get("Reason", "")
    name = f"Slurm job {number}"
    if found.get("PreemptTime", "None") not in ("None", ""):
        return f"{name} was preempted"
    if "NODE_FAIL" in state or "NodeFail" in reason or "NodeDown" in reason:
        return f"{name} has lost a node"
    if received == signal.SIGUSR2 and state == "RUNNING":
        return f"the time limit of {name} is near"
    if "TIMEOUT" in state or "TimeLimit" in reason:
        return f"the time limit of {name} is over"
    return f"{name} was cancelled" if state in ("CANCELLED", "COMPLETING") else ""


@dataclass(frozen=True)
class Share:
    """The hosts of one set of the plan's nodes."""

    hosts: tuple[str, ...]
    """By the place of the node in its set."""
    component: int | None = None
    """The component of a heterogeneous job; None in another job."""


@dataclass(frozen=True)
class Allocation:
    components: tuple[tuple[str, ...], ...]
    """The hosts of each component."""
    is_heterogeneous: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Allocation:
        """Returns the allocation of a job. Raises `CannotStart` if its hosts are unknown."""
        size = int(environ.get("SLURM_HET_SIZE", "0") or 0)
        names = [f"SLURM_JOB_NODELIST_HET_GROUP_{index}" for index in range(size)]
        lists = [environ.get(name, "") for name in names or ["SLURM_JOB_NODELIST"]]
        return cls(tuple(hosts_of(text) for text in lists), bool(size))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(host for component in self.components for host in component)

    def shares(self, plan: Plan) -> tuple[Share, ...]:
        """Returns the hosts of each set of the plan's nodes. The sets are the components of a heterogeneous
        job, or else neighbouring hosts of the only one. Raises `CannotStart` if there are too few hosts."""
        sets, found, begin = node_sets(plan), list[Share](), 0
        if self.is_heterogeneous and len(self.components) < len(sets):
            raise CannotStart(
                f"the plan has {counted(len(sets), 'set')} of equal nodes, and the allocation "
                f"{counted(len(self.components), 'component')}"
            )
        for index, alike in enumerate(sets):
            hosts = self.components[index if self.is_heterogeneous else 0]
            if not self.is_heterogeneous:
                hosts, begin = hosts[begin:], begin + alike.count
            if len(hosts) < alike.count:
                raise CannotStart(
                    f"the plan has {counted(plan.cluster.nodes, 'node')}, and the allocation is too small: "
                    f"{counted(len(self.hosts), 'node')}"
                )
            found.append(Share(hosts[: alike.count], index if self.is_heterogeneous else None))
        return tuple(found)

    def address_of(self, host: str) -> str:
        """Returns the address of a host, as Slurm knows it."""
        try:
            shown = call("scontrol", "--oneliner", "show", "node", host).stdout.split()
        except (OSError, subprocess.SubprocessError):
            return host
        return next((word[9:] for word in shown if word.startswith("NodeAddr=")), host)


def hosts_of(text: str) -> tuple[str, ...]:
    """Returns the hosts of a list such as n[1-3,7]. Raises `CannotStart`."""
    if not any(letter in text for letter in "[,"):
        return (text,) if text else ()
    try:
        done = call("scontrol", "show", "hostnames", text)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotStart(f"scontrol cannot be started: {error}") from error
    if done.returncode:
        raise CannotStart(f"scontrol does not know the hosts {text}: {done.stderr.strip()}")
    return tuple(done.stdout.split())


SIGNAL = "SIGUSR2"
END_S = 5.0
"""Seconds in which this head has written its last event. Later events are of the next job."""


class Requeue(Observer):
    """The observer that queues a job again after the signal before its time limit. Slurm itself queues a job
    again that was preempted, or that has lost a node."""

    def __init__(self, run: RunDir, job: str) -> None:
        self._run, self._job = run, job
        self._has_saved = False
        """True if this job has published a checkpoint."""

    def on_event(self, event: Event) -> None:
        self._has_saved = self._has_saved or event.name == "checkpoint"

    def on_end(self, code: int, reason: str) -> None:
        """Queues the job again, before the end of the run is written to `state.json`, so that its followers
        see that it goes on. Slurm ends this process some seconds later."""
        if not reason.startswith(SIGNAL):
            return
        problem = "" if self._has_saved else "it has saved no step since it began"
        if not problem:
            try:
                done = call("scontrol", "requeue", self._job)
                problem = done.stderr.strip() if done.returncode else ""
            except (OSError, subprocess.SubprocessError) as error:
                problem = str(error)
        if problem:
            print(f"error: Slurm job {self._job} is not queued again: {problem}", file=sys.stderr, flush=True)
        else:
            Submission("slurm", self._job, time.time() + END_S).write(self._run)
