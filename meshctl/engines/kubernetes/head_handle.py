"""The nodes of a run as the head inside a cluster sees them: pods that Kubernetes starts."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from meshctl.engines.engine import Exited, Job
from meshctl.engines.kubernetes.last_copy import wait_for_copy


class HeadHandle:
    """Node processes that are known by their connections only."""

    running = False
    """True if a process that the engine has started runs."""
    replaces_nodes = True

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

    def restart(self, nodes: Sequence[int]) -> bool:
        """Returns True: with `run.restarts` the Job of a lost pod starts another one, which connects to the
        head."""
        return True

    def explain(self, received: signal.Signals) -> str:
        return ""

    def close(self) -> None:
        """Keeps the pod until the launcher's machine has the end of the run. All observers have ended by
        now, so `state.json` is the last one."""
        wait_for_copy(self._job.run)
