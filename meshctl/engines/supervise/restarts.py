"""Decides by `run.restarts` if a run starts another attempt after a failure, and restarts a single group of
an attempt, while the other groups wait.

    restarts = Restarts(plan.run.restarts)
    reason = restarts.refusal(cause, has_begun, now)        why the run ends instead; empty if it starts again
    restarts.left(now)

    groups = GroupRestart(attempt, nodes, store, journal, restarts, forget)
    if not groups.takes(cause, causes.groups, now): ...     the attempt ends
    groups.poll(now, message, words); groups.add(event)

A death, a lost peer or node, and an exception start another attempt. Wrong numbers, ranks that called
different collectives, and an environment that lacks something would only fail again, and so would a failure
before step 1 of the first attempt, and the same exception in the same step: unless one worker has raised it
twice in a row and the run goes on without this worker, whose device may be broken.

The agents of a group that restarts end on all nodes, and are forked again with the next generation. The
workers agree on the rest through the control store (`runtime.group_restarts`). A group that fails while it
restarts is restarted again, as `run.restarts` permits. Everything else ends the attempt: a failure of another
group meanwhile, a worker that has run its last step, and steps that the other groups can no longer repeat.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Collection, Mapping
from typing import Any

from meshctl.engines.node.termination import GRACE_S
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.nodes import Nodes
from meshctl.network.control_store import StoreClient
from meshctl.plan import model
from meshctl.plan.model import Plan
from meshctl.run.events import NOT_ALONE, Event, Journal
from meshctl.run.shutdown import LEFT
from meshctl.run.shutdown import PREFIX as ENDING
from meshctl.text.english import counted, in_units


class Restarts:
    def __init__(self, allowed: model.Restarts | None) -> None:
        self._allowed = allowed
        self._times: list[float] = []
        """The times of the restarts, in seconds of the monotonic clock."""
        self._seen: set[tuple[str, int | None, str] | None] = set()
        """The exceptions that have ended attempts: stage, step and type."""
        self._has_begun = False
        """True if an attempt has begun a step."""

    @property
    def are_allowed(self) -> bool:
        """True if the recipe asks for restarts."""
        return self._allowed is not None

    def refusal(
        self, cause: Cause | None, has_begun: bool, now: float, is_without_worker: bool = False
    ) -> str:
        """Returns why the run is not started again after an attempt; empty if it is. Counts the restart.
        `has_begun`: a worker was ready for its first step. `is_without_worker`: the next attempt does without
        the worker that has failed."""
        self._has_begun = self._has_begun or has_begun
        if self._allowed is None or cause is None:
            return "`run.restarts` is left out"
        if not self._has_begun:
            return "it failed before step 1"
        key = self._key(cause)
        is_repeated = key is not None and key in self._seen
        self._seen.add(key)
        if is_repeated and not is_without_worker:
            return "the same exception was raised in the same step before"
        if not self.left(now):
            times = counted(self._allowed.times, "restart")
            return f"`run.restarts` allows {times} within {in_units(self._allowed.within)}"
        self._times.append(now)
        return ""

    def permits(self, cause: Cause, now: float) -> bool:
        """Returns whether a single group is started again because of a failure, and counts the restart if it
        is. Where it is not, the whole run may be (`refusal`)."""
        key = self._key(cause)
        if not self.left(now) or (key and key in self._seen):
            return False
        self._seen.add(key)
        self._times.append(now)
        return True

    def left(self, now: float) -> int:
        """Returns how many restarts are left."""
        if self._allowed is None:
            return 0
        recent = [time for time in self._times if now - time < self._allowed.within]
        return max(0, self._allowed.times - len(recent))

    @staticmethod
    def _key(cause: Cause) -> tuple[str, int | None, str] | None:
        """Returns the stage, the step and the type of an exception; None for another failure. The text may
        have addresses in it, so the type counts."""
        if cause.priority is not Priority.OWN or cause.code is not None or cause.step is None:
            return None
        if NOT_ALONE in cause.error:  # what the whole run does not repeat
            return None
        return cause.stage, cause.step, cause.error.partition(":")[0]


PREFIX = "restarts/"
"""The prefix of the keys of restarts in the store, below that of the attempt."""
KEPT_TAKES = 64
"""The number of steps of a take block that are known. Consumers are fewer steps behind."""


class GroupRestart:
    def __init__(
        self,
        attempt: Attempt,
        nodes: Nodes,
        store: StoreClient,
        journal: Journal,
        restarts: Restarts,
        forget: Callable[[str], None],
    ) -> None:
        """`store` is the part of the control store that belongs to the attempt. `forget` drops what is known
        of the processes of a group."""
        self._attempt, self._nodes, self._store, self._journal = attempt, nodes, store, journal
        self._restarts, self._forget = restarts, forget
        plan, start = attempt.plan, attempt.start
        is_whole = not (start.only or start.replay or start.debug)
        self._candidates = frozenset(restartable_groups(plan)) if is_whole else frozenset[str]()
        self._workers = sum(group.workers for group in plan.groups if group.program is None)
        self._ready: set[tuple[str, int | None]] = set()
        self._takes: dict[str, dict[int, dict[str, Any]]] = {}
        """Group -> step -> take block -> the value of its `taken` event, for the last steps of the running
        generation."""
        self.generations: dict[str, int] = {}
        """Group -> how often it has restarted in this attempt."""
        self._group, self._cause = "", ""
        """The group that restarts, and why."""
        self._is_ending = False
        """True if processes of its last generation run."""
        self._kill_at = math.inf

    def add(self, event: Event) -> None:
        """Notes that a worker is ready for its first step, and which passes the take blocks of a group have
        taken."""
        if event.name == "taken" and event.value["generation"] == self.generations.get(event.group, 0):
            steps = self._takes.setdefault(event.group, {})
            steps.setdefault(event.step or 0, {})[event.value["block"]] = event.value
            if len(steps) > KEPT_TAKES:
                del steps[min(steps)]
        if event.name == "ready":
            self._ready.add((event.group, event.rank))
            if self._group and not self._is_ending and len(self._ready) == self._workers:
                self._group = ""

    def takes(self, cause: Cause, failed: Collection[str], now: float) -> bool:
        """Returns whether a group restarts because of a failure, which begins now. `failed` are the groups
        with a fault."""
        if not self._candidates or len(failed) != 1:
            return False
        [group] = failed
        if self._group and (group != self._group or self._is_ending):
            return group == self._group
        is_restarting = bool(self._group)
        if not is_restarting and (group not in self._candidates or len(self._ready) < self._workers):
            return False
        if self._nodes.lost or self._store.check([ENDING + LEFT]) or not self._can_repeat():
            return False
        if not self._restarts.permits(cause, now):
            return False
        self._group, self._cause, self._is_ending = group, cause.line, True
        self._kill_at = now + GRACE_S
        self._nodes.signal(signal.SIGTERM, [group])
        return True

    def _can_repeat(self) -> bool:
        """Returns whether the running restart, if there is one, can be followed by another one of the group.
        The workers of the other groups no longer wait for its decision then."""
        if not self._group:
            return True
        key = f"{PREFIX}{sum(self.generations.values()) - 1}/decision"
        decision = json.loads(self._store.compare_set(key, "", json.dumps({"again": True})))
        return "whole" not in decision

    def poll(self, now: float, message: Mapping[str, Any], words: int) -> None:
        """Goes on with a restart. `message` is that by which the attempt has begun, and `words` the number of
        announcements about its end."""
        if not self._is_ending:
            return
        if now >= self._kill_at:
            self._kill_at = math.inf
            self._nodes.signal(signal.SIGKILL, [self._group])
        if self._group not in self._nodes.running_groups:
            self._start(message, words, now)

    def _start(self, message: Mapping[str, Any], words: int, now: float) -> None:
        group, fold = self._group, self._attempt.fold
        self._is_ending, self._kill_at = False, math.inf
        self.generations[group] = generation = self.generations.get(group, 0) + 1
        through = max(fold.through(group), self._attempt.step or 0)
        fold.restart(group)
        self._forget(group)
        self._ready = {worker for worker in self._ready if worker[0] != group}
        takes = self._takes.pop(group, {})
        call = {"group": group, "generation": generation, "through": through, "words": words, "takes": takes}
        self._store.set(f"{PREFIX}{sum(self.generations.values()) - 1}", json.dumps(call))
        self._journal.write(
            "restarted",
            step=through,
            attempt=self._attempt.start.attempt,
            cause=self._cause,
            left=self._restarts.left(now),
            group=group,
            generation=generation,
        )
        self._nodes.restart(group, {**message, "generations": self.generations})


def restartable_groups(plan: Plan) -> list[str]:
    """Returns the groups that may restart alone: those of the recipe, unless they send weights, exchange
    values with other groups several times in a step, or take the samples of passes that they run."""
    found = {group.name for group in plan.groups if group.restartable and group.program is None}
    for route in plan.routes:
        source, target = plan.ends_of(route)
        stages = plan.stage(route.source), plan.stage(route.target)
        is_repeated = stages[0].block != "" and stages[0].block == stages[1].block
        if plan.is_of_take(stages[0]) and source == target and not is_repeated:
            found -= {source}
        if source != target and (is_repeated or route.kind == "weights"):
            found -= {source, target} if is_repeated else {source}
    return sorted(found)
