"""Nodes that their scheduler ends, such as a pod that is deleted, while the run may go on without them: the
workers save, and the next attempt does without these nodes, or waits for others in their place.

    departure = Departure(is_allowed, nodes, has_checkpoints)
    if departure.add(node): ...              # a node has received the signal of its scheduler
    match departure.poll(newest, now): case "save" | "end": ...

A scheduler that ends the whole job signals all nodes and the head, in any order. The head's own signal then
ends the run in order: either the attempt still runs, or it has just saved.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal

TOGETHER_S = 2.0
"""Seconds between the signal of a node and the end of an attempt that has nothing to save, in which the
head's own signal may arrive."""
Action = Literal["", "save", "end"]


class Departure:
    """Decides when an attempt ends because some of its nodes leave."""

    def __init__(self, is_allowed: bool, nodes: Collection[int], has_checkpoints: bool) -> None:
        """`is_allowed` is whether the run may lose a node, and `nodes` are those of the attempt."""
        self._is_allowed, self._nodes, self._has_checkpoints = is_allowed, frozenset(nodes), has_checkpoints
        self.leaving: set[int] = set()
        """The nodes that leave."""
        self._began = math.inf
        """The time at which the first of them was signalled."""
        self._has_asked = False
        self._newest: int | None = None
        """The step of the newest checkpoint when the workers were asked to save."""

    def add(self, node: int, now: float) -> bool:
        """Notes that the scheduler ends a node. Returns whether the run goes on without it: it ends if all
        nodes are asked to."""
        if not self._is_allowed or not self._nodes - self.leaving - {node}:
            return False
        if node in self._nodes:
            self.leaving.add(node)
            self._began = min(self._began, now)
        return True

    def poll(self, newest: int | None, can_save: bool, now: float) -> Action:
        """Returns what is to be done: "save" asks the workers for a checkpoint, after which "end" ends the
        attempt. `newest` is the step of the newest checkpoint, and `can_save` whether a step has ended."""
        if not self.leaving:
            return ""
        if self._has_asked:
            return "end" if newest != self._newest else ""
        if not self._has_checkpoints or not can_save:
            return "end" if now - self._began > TOGETHER_S else ""
        self._has_asked, self._newest = True, newest
        return "save"
