"""Ends an attempt with fewer workers for a larger one: at a checkpoint, once lost nodes or devices are back.

    growth = Growth(elastic, nodes, handle, step)
    match growth.poll(checkpoints.newest, now): case "save" | "end": ...

At each checkpoint the head starts the lost nodes again, and asks all nodes for the devices that they lacked.
When enough of them is back, the workers save, and the attempt ends as soon as the checkpoint is published.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from meshctl.engines.engine import Handle
from meshctl.engines.supervise.elastic import Elastic, Present
from meshctl.engines.supervise.nodes import Nodes
from meshctl.plan.resizing import Device

RETRY_S = 30.0
"""Seconds between two attempts to start a lost node, which may take as long to answer."""
Action = Literal["", "save", "end"]


class Growth:
    """Decides when an attempt with fewer workers ends, because lost nodes or devices are back."""

    def __init__(self, elastic: Elastic, nodes: Nodes, handle: Handle, step: int | None) -> None:
        """`step` is that of the checkpoint from which the attempt continues; None without one."""
        self._elastic, self._nodes, self._handle = elastic, nodes, handle
        self._first = self._seen = step
        """The step of the newest checkpoint, at the beginning of the attempt and at the last poll."""
        self._found: set[Device] = set()
        """The devices that were missing and are there again."""
        self._started = -math.inf
        """The time at which the lost nodes were started last."""
        self._known: Present | None = None
        self._can_grow = self._has_asked = False
        """True if the run can be larger with what is known to be back; and if the workers were asked to
        save because of it."""

    @property
    def present(self) -> Present:
        """The lost nodes and devices that can be used again."""
        fit = frozenset(node for node in self._elastic.nodes if self._nodes.is_fit(node))
        return Present(fit, frozenset(self._found))

    def on_devices(self, own: Iterable[Device], missing: Iterable[Device]) -> None:
        """Notes the devices of a node in the plan of the whole recipe, and those of them that it lacks."""
        self._found |= self._elastic.devices.intersection(own)
        self._found -= {*missing}

    def poll(self, newest: int | None, now: float) -> Action:
        """Returns what is to be done at a checkpoint: "save" asks for one more, and "end" ends the attempt.
        `newest` is the step of the newest one."""
        if not self._elastic.is_smaller or newest == self._first:
            return ""
        is_fresh, self._seen = newest != self._seen, newest
        if is_fresh:
            self._ask(now)
        if not self._is_back():
            return ""
        if is_fresh:
            return "end"
        action: Action = "" if self._has_asked else "save"
        self._has_asked = True
        return action

    def _ask(self, now: float) -> None:
        self._nodes.ask_devices()
        absent = [node for node in self._elastic.nodes if not self._nodes.is_connected(node)]
        if absent and now - self._started >= RETRY_S:
            self._started = now
            self._handle.restart(sorted(absent))

    def _is_back(self) -> bool:
        """Returns whether the run can be larger. Resolves the recipe again only where something has
        changed."""
        if (present := self.present) != self._known:
            self._known, self._can_grow = present, self._elastic.can_grow(present)
        return self._can_grow
