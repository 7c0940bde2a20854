"""The nodes of a run as the head inside a cluster sees them: pods that Kubernetes starts."""

from __future__ import annotations

from collections.abc import Sequence

from meshctl.engines.awaited import ConnectedNodes
from meshctl.engines.kubernetes.last_copy import wait_for_copy


class HeadHandle(ConnectedNodes):
    """Pods, which connect to the head."""

    replaces_nodes = True

    def restart(self, nodes: Sequence[int]) -> bool:
        """Returns True: with `run.restarts` the Job of a lost pod starts another one, which connects to the
        head."""
        return True

    def close(self) -> None:
        """Keeps the pod until the launcher's machine has the end of the run. All observers have ended by
        now, so `state.json` is the last one."""
        wait_for_copy(self._job.run)
