"""A job of Slurm, as a process outside of it sees it: by squeue, sacct and scancel."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping

from meshctl.run.submission import JobState, Phase

CALL_S = 20.0
"""Seconds that a command of Slurm may take."""
QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
NO_REASON = ("None", "", "N/A")


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
            state, reason = self._parsed(found.stdout)
            if not state:
                state = self._accounted()
        except (OSError, subprocess.SubprocessError):
            return None
        phase: Phase = "queued" if state in QUEUED else "running" if state in RUNNING else "ended"
        return JobState(self.name, phase, f"{state} ({reason})" if reason not in NO_REASON else state)

    def _parsed(self, text: str) -> tuple[str, str]:
        """Returns the state and the reason from the lines of squeue; of a heterogeneous job those of its
        first component."""
        for line in text.splitlines():
            number, _, rest = line.strip().partition("|")
            if number in (self.number, f"{self.number}+0"):
                state, _, reason = rest.partition("|")
                return state, reason
        return "", ""

    def _accounted(self) -> str:
        """Returns the state of a job that ended some time ago; empty if the cluster does not record it."""
        words = ("sacct", "--noheader", "--allocations", f"--jobs={self.number}", "--format=State%40")
        found = call(*words)
        lines = found.stdout.split("\n") if found.returncode == 0 else []
        return lines[0].strip() if lines else ""

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


def details(number: str) -> Mapping[str, str]:
    """Returns what scontrol shows of a job; nothing if it does not answer."""
    try:
        shown = call("scontrol", "--oneliner", "show", "job", number).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(re.findall(r"(\S+?)=(\S*)", shown[0])) if shown else {}


def why_signalled(number: str, received: signal.Signals) -> str:
    """Returns why Slurm sends a signal to a job, as a sentence; empty if it has not sent it."""
    found = details(number)
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
