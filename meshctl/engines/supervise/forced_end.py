"""The forced end of an attempt, in phases: SIGTERM to all agents, then SIGKILL, then the node processes are
killed."""

from __future__ import annotations

import math
import signal

from meshctl.engines.engine import Handle
from meshctl.engines.node.termination import GRACE_S
from meshctl.engines.supervise.nodes import Nodes

AGENT_S = 0.5
"""Seconds that an agent needs, in addition to the grace period of its workers, to end itself."""


class ForcedEnd:
    def __init__(self, nodes: Nodes, handle: Handle) -> None:
        self._nodes, self._handle = nodes, handle
        self._phase = 0
        """0 not begun, 1 SIGTERM sent, 2 SIGKILL sent, 3 node processes killed."""
        self._deadline = math.inf
        """Time at which the next phase begins."""
        self._notice_s = GRACE_S
        """Seconds between SIGTERM and SIGKILL."""

    @property
    def has_begun(self) -> bool:
        return self._phase > 0

    def begin_at(self, moment: float, notice_s: float = GRACE_S) -> None:
        """Begins at a time, in seconds of the monotonic clock, unless it has begun. `notice_s` is the time
        between SIGTERM and SIGKILL: 0 if all workers have been asked to end before."""
        if not self._phase:
            self._deadline, self._notice_s = moment, notice_s

    def kill(self, now: float) -> None:
        """Begins with SIGKILL, or goes on to it."""
        if self._phase < 2:
            self._phase, self._deadline = 1, now

    def poll(self, now: float) -> None:
        """Begins the next phase when it is due."""
        if now < self._deadline:
            return
        self._phase += 1
        self._deadline = now + GRACE_S
        if self._phase == 1:
            self._nodes.signal(signal.SIGTERM)
            self._deadline = now + self._notice_s + AGENT_S
        elif self._phase == 2:
            self._nodes.signal(signal.SIGKILL)
        else:
            self._handle.kill()
