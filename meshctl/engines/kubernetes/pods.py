"""The state of a run according to the objects of its JobSet, and why pods were lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.text.english import counted

JOBSET_LABEL, JOB_LABEL = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
INDEX = "batch.kubernetes.io/job-completion-index"
STUCK = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
)
"""The reasons of waiting containers that do not start by themselves."""
MAX_PROBLEMS = 4
"""Pods that a message names."""
SIGNALS_FROM = 128
FAILED, ENDED = "has failed with exit code", "was "
"""Beginnings of the texts about pods that have ended by themselves, and about those that were ended."""

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Pod:
    """One pod, as the API server describes it."""

    data: Object

    @property
    def name(self) -> str:
        return str(self.meta.get("name", ""))

    @property
    def job(self) -> str:
        """The replicated job."""
        return str(self.meta.get("labels", {}).get(JOB_LABEL, ""))

    @property
    def index(self) -> int:
        given = self.meta.get("labels", {}).get(INDEX) or self.meta.get("annotations", {}).get(INDEX)
        return int(given) if str(given).isdigit() else -1

    @property
    def phase(self) -> str:
        return str(self._status.get("phase", "Pending"))

    @property
    def is_deleted(self) -> bool:
        """True if somebody has asked for its deletion."""
        return "deletionTimestamp" in self.meta

    @property
    def is_waiting(self) -> bool:
        return self.phase == "Pending" and not self.is_deleted

    @property
    def problem(self) -> str:
        """The reason that the pod has failed, is being ended or cannot start; empty if nothing is wrong."""
        if self._status.get("reason"):  # Evicted, Preempting, DeadlineExceeded, NodeLost
            return _joined(self._status["reason"], self._status.get("message"))
        for condition in self._status.get("conditions", ()):
            if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
                return _joined(condition.get("reason"), condition.get("message"))
        if self.is_deleted and self.phase != "Succeeded":
            return f"{ENDED}deleted"
        for status in self._status.get("containerStatuses", ()):
            state = status.get("state", {})
            if ended := state.get("terminated"):
                return _ended(ended)
            waiting = state.get("waiting") or {}
            if waiting.get("reason") in STUCK:
                return _joined(waiting["reason"], waiting.get("message"))
        for condition in self._status.get("conditions", ()):
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return _joined(condition.get("reason"), condition.get("message"))
        return ""

    @property
    def meta(self) -> Object:
        found: Object = self.data.get("metadata", {})
        return found

    @property
    def _status(self) -> Object:
        found: Object = self.data.get("status", {})
        return found


def _joined(reason: object, message: object) -> str:
    return f"{reason}: {message}" if message else str(reason)


def _ended(state: Object) -> str:
    """Returns why a container has ended; empty if it is done."""
    code, reason = int(state.get("exitCode", 0)), str(state.get("reason", ""))
    if code == 0:
        return ""
    if reason == "OOMKilled":
        return "OOMKilled: it needed more memory than its limit, /dev/shm included"
    if code > SIGNALS_FROM:
        return f"{ENDED}ended by signal {code - SIGNALS_FROM} (exit code {code})"
    return f"{FAILED} {code}"


@dataclass(frozen=True)
class Seen:
    """A JobSet with its pods."""

    job_set: Object | None
    """None if it does not exist."""
    pods: Sequence[Pod]

    @property
    def verdict(self) -> str:
        """`Completed` or `Failed`; empty while neither is certain."""
        status = self.job_set.get("status", {}) if self.job_set else {}
        for condition in status.get("conditions", ()):
            if condition.get("type") in ("Completed", "Failed") and condition.get("status") == "True":
                return str(condition["type"])
        return str(status.get("terminalState", ""))

    @property
    def is_suspended(self) -> bool:
        return bool(self.job_set and self.job_set.get("spec", {}).get("suspend"))

    def head(self, job: str) -> Pod | None:
        """Returns the newest pod of the head: that of a restart, if there was one."""
        found = [pod for pod in self.pods if (pod.job, pod.index) == (job, 0)]
        return max(found, key=lambda pod: str(pod.meta.get("creationTimestamp", "")), default=None)

    def lost(self) -> dict[str, str]:
        """Returns pod -> why it was ended from outside. When the JobSet has failed, its controller deletes
        the other pods, which are not lost."""
        found = {pod.name: pod.problem for pod in self.pods if not pod.is_waiting}
        return {
            name: text
            for name, text in found.items()
            if text and not text.startswith(FAILED) and not (self.verdict and text.startswith(ENDED))
        }

    def waiting(self) -> dict[str, str]:
        """Returns pod -> why it does not start."""
        return {pod.name: pod.problem for pod in self.pods if pod.is_waiting and pod.problem}

    def failed(self) -> list[str]:
        """Returns the names of the pods that have ended with an exit code of their own."""
        return [pod.name for pod in self.pods if pod.problem.startswith(FAILED)]

    def text(self, lost: Mapping[str, str]) -> str:
        """Returns the state in one line, with the pods that are or were lost."""
        running = sum(pod.phase == "Running" for pod in self.pods)
        if self.job_set is None:
            state = "it was deleted"
        elif self.is_suspended:
            state = "waits in its queue"
        else:
            state = self.verdict.lower() or f"{running} of {counted(len(self.pods), 'pod')} running"
        return "; ".join(filter(None, [state, reported({**self.waiting(), **lost})]))


def reported(lost: Mapping[str, str]) -> str:
    """Returns what happened to pods in one line."""
    texts = [f"pod {name}{' ' if text.startswith(ENDED) else ': '}{text}" for name, text in lost.items()]
    if len(texts) > MAX_PROBLEMS:
        rest = len(texts) - MAX_PROBLEMS + 1
        texts = [*texts[: MAX_PROBLEMS - 1], f"{counted(rest, 'more pod')}"]
    return "; ".join(texts)
