"""The restart of a single group, as the workers of all groups see it.

    head            restarts/N                the group, its generation, and the last step that it has ended
    other workers   restarts/N/answer/RANK    what they have received from it, and what they can send again
    the group       restarts/N/decision       the step after which it runs again, and the versions of weights
    other workers   restarts/N/reopened/RANK  their program has reopened its routes

N counts the restarts of single groups in an attempt. A thread of each other worker answers at once, and from
then on nothing is exchanged with the group. The same thread reopens the routes and sends what the group
lacks, while the program waits or runs code of a component (`transports.turn`). The group computes its first
step once all have done so. Who waits for whom:

    a worker of the group   for the threads of the others
    such a thread           for no other process, because it sends beyond the slots of receivers; only until
                            its program waits, runs code of a component, or saves
    a program               as in an undisturbed run: for what others do in an earlier step or stage, also in
                            a collective of a component

So there is no circle, however far a rank is ahead of its peers when the group dies.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple

from meshctl.network.control_store import Store, StoreLost
from meshctl.plan.model import Plan, Stage
from meshctl.run.events import NOT_ALONE
from meshctl.run.shutdown import StopAgreement
from meshctl.runtime.devices.nccl import own_stream
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.resumable import NEVER, ResumableChannel, ResumableWeights
from meshctl.runtime.schedule import Schedule, ScheduledStep
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost

PREFIX = "restarts/"
"""The prefix of the keys of restarts in the store, below that of the attempt."""
FOREVER = timedelta(days=100)
ANSWER = timedelta(seconds=60)
"""Time limit for all workers of a group that has restarted to connect."""

End = ResumableChannel | ResumableWeights
Connect = Callable[[DataPlane, Store, Sequence[int], int], None]
"""Connects to the job ranks of a group that has restarted, by the addresses of a generation."""


class GroupRestarts:
    """Takes part in the restarts of other groups."""

    def __init__(
        self,
        plan: Plan,
        plane: DataPlane,
        store: Store,
        generations: Mapping[str, int],
        connect: Connect,
    ) -> None:
        """`store` is a connection to the control store of its own. `generations` are those of the groups when
        this process was started, and `connect` is `world.connect_again`."""
        self._plan, self._plane, self._store = plan, plane, store
        self._connect = connect
        self._generations = dict(generations)
        self._own = plan.group_and_rank(plane.job_rank)[0]
        self._ends: Sequence[End] = ()
        self._step = 0

    def begin(self, ends: Sequence[End], step: int) -> None:
        """Begins to answer, before the step `step`. `ends` are this worker's ends of routes that may be
        reopened."""
        self._ends, self._step = ends, step
        threading.Thread(target=self._listen, daemon=True, name="restarts").start()

    def move_to(self, step: int) -> None:
        """Notes the step in which this worker is."""
        self._step = step

    # The thread

    def _listen(self) -> None:
        peers = peer_groups(self._plan, self._own)
        with suppress(StoreLost):  # the launcher has ended, and this process ends with it
            for number in count(sum(self._generations.values())):
                call = self._read(str(number))
                if call["group"] in peers:
                    self._take_part(number, call)

    def _read(self, key: str) -> dict[str, Any]:
        """Returns the value of a key, which may be set much later."""
        self._store.wait([PREFIX + key], FOREVER)
        value: dict[str, Any] = json.loads(self._store.get(PREFIX + key))
        return value

    def _take_part(self, number: int, call: Mapping[str, Any]) -> None:
        group = call["group"]
        with self._plane.lock:
            self._plane.suspend(group)
            answer = self._answer(group)
        self._store.set(f"{PREFIX}{number}/answer/{self._plane.job_rank}", json.dumps(answer))
        decision = self._read(f"{number}/decision")
        if "step" in decision:
            with self._plane.turn.wanted():
                failure = self._reopen(group, call["generation"], decision)
            self._store.set(f"{PREFIX}{number}/reopened/{self._plane.job_rank}", failure)

    def _answer(self, group: str) -> dict[str, Any]:
        ends = self._of(group)
        channels = [end for end in ends if isinstance(end, ResumableChannel)]
        syncs = [end for end in ends if isinstance(end, ResumableWeights) and end.row is not None]
        delivered = {end.route.name: end.delivered for end in channels if end.consumes}
        return {
            "complete": max(self._step - 1, min(delivered.values())) if delivered else None,
            "delivered": delivered,
            "forgotten": max((end.other.forgotten for end in channels), default=NEVER),
            "versions": {end.route.source: end.other.forgotten for end in syncs},
            "rows": {end.route.source: end.row for end in syncs},
        }

    def _of(self, group: str) -> list[End]:
        return [end for end in self._ends if end.other.group == group]

    def _reopen(self, group: str, generation: int, decision: Mapping[str, Any]) -> str:
        """Reopens the routes of a group, and sends what it lacks. Returns why that fails; empty if it does
        not."""
        plane, ranks = self._plane, [worker.job_rank for worker in self._plan.workers(group)]
        self._generations[group] = generation
        plane.reopen(group, generation)
        try:
            self._connect(plane, self._store, ranks, generation)
            with own_stream(plane.context.device), plane.forced():
                for end in self._of(group):
                    is_sync = isinstance(end, ResumableWeights)
                    after = decision["versions"][end.route.source][0] if is_sync else decision["step"]
                    end.resume(route_generation(self._generations, self._own, group), after)
        except PeerLost:
            plane.suspend(group)  # its next generation gets everything
        except Exception as error:  # of a value that cannot be sent again, or of the memory for it
            plane.suspend(group)
            return f"{plane.name_of(plane.job_rank)} cannot send again: {type(error).__name__}: {error}"
        return ""


class Beginning(NamedTuple):
    """The step and the weights with which the workers of a group begin after its restart."""

    step: int
    """The step before their first one."""
    versions: Mapping[str, Sequence[int]]
    """Sync -> the steps whose weights they will receive: first those to begin with, then those that are due
    in later steps."""
    delivered: Mapping[str, Mapping[int, int]]
    """Route -> job rank of a consumer -> the last step that it has."""
    rows: Mapping[str, list[Any]]
    """Sync -> the layout of the weights of each producer."""
    taken: int
    """The last step whose samples of take blocks the other groups have."""
    takes: Mapping[str, Mapping[str, Any]]
    """Take block -> `next` and `open` after this step; empty where none was taken since the start."""


class Rejoining:
    """The side of a worker whose group has restarted."""

    def __init__(self, plan: Plan, job_rank: int, store: Store, generations: Mapping[str, int]) -> None:
        self._plan, self._job_rank, self._store, self._generations = plan, job_rank, store, generations
        self._group, self._rank = plan.group_and_rank(job_rank)
        self._number = sum(generations.values()) - 1
        self._others = [
            worker.job_rank
            for name in sorted(peer_groups(plan, self._group))
            for worker in plan.workers(name)
        ]

    def begin(self, agreement: StopAgreement, start: int, *, is_open_ended: bool) -> Beginning:
        """Returns where the group begins, once all of its workers have connected. `start` is the step before
        the first one of the attempt. Raises `StageError` if the other groups no longer have what it needs, or
        with `is_open_ended`: a stream may end the run unannounced."""
        store, key = self._store, f"{PREFIX}{self._number}"
        call = json.loads(store.get(key))
        store.set(f"{key}/connected/{self._job_rank}", "")
        agreement.await_words(call["words"])
        texts = store.multi_get([f"{key}/answer/{other}" for other in self._others])
        answers = {other: json.loads(text) for other, text in zip(self._others, texts, strict=True)}
        if self._rank == 0:
            connected = [worker.job_rank for worker in self._plan.workers(self._group)]
            store.wait([f"{key}/connected/{each}" for each in connected], ANSWER)
            step = min(
                [call["through"], *(each["complete"] for each in answers.values() if each["delivered"])]
            )
            versions = self._versions(agreement, start, step)
            taken = max({step, *self._taken(answers, start)})
            decision: dict[str, Any] = {"step": step, "versions": versions, "taken": taken}
            decision["takes"] = call["takes"].get(str(taken), {})
            if is_open_ended:
                decision = {"whole": "a stream of the run may end unannounced"}
            elif reason := self._lacking(answers, step, versions) or self._unknown(answers, start, decision):
                decision = {"whole": reason}
            store.compare_set(f"{key}/decision", "", json.dumps(decision))
        decision = json.loads(store.get(f"{key}/decision"))
        if "step" not in decision:
            why = decision.get("whole", "it was lost once more")
            raise StageError(f"`{self._group}` {NOT_ALONE}: {why}")
        delivered: dict[str, dict[int, int]] = defaultdict(dict)
        rows: dict[str, list[Any]] = defaultdict(list)
        for other, answer in answers.items():  # the producers of a sync are neighbours, in their order
            for route, step in answer["delivered"].items():
                delivered[route][other] = step
            for sync, row in answer["rows"].items():
                rows[sync].append(row)
        known = decision["step"], decision["versions"], delivered, rows
        return Beginning(*known, decision["taken"], decision["takes"])

    def await_others(self) -> None:
        """Waits until all other workers have reopened their routes. Raises `StageError` if one of them could
        not."""
        keys = [f"{PREFIX}{self._number}/reopened/{other}" for other in self._others]
        self._store.wait(keys, FOREVER)
        if why := next((text.decode() for text in self._store.multi_get(keys) if text), ""):
            self._store.set(f"{PREFIX}{self._number}/decision", json.dumps({"whole": why}))
            raise StageError(f"`{self._group}` {NOT_ALONE}: {why}")

    def route_generation(self, other: str) -> int:
        return route_generation(self._generations, self._group, other)

    def _lacking(
        self, answers: Mapping[int, Mapping[str, Any]], step: int, versions: Mapping[str, Sequence[int]]
    ) -> str:
        """Returns what the other groups no longer have of what the steps after `step` need; empty if they
        have everything."""
        for other, answer in answers.items():
            name = ":".join(map(str, self._plan.group_and_rank(other)))
            if answer["forgotten"] > step:
                return f"{name} no longer has what it sent in step {step + 1}"
            for sync, forgotten in answer["versions"].items():
                if forgotten >= versions[sync][0]:
                    return f"{name} no longer has the weights of step {versions[sync][0]} (`{sync}`)"
        return ""

    @property
    def generation(self) -> int:
        return self._generations[self._group]

    def _taken(self, answers: Mapping[int, Mapping[str, Any]], start: int) -> set[int]:
        """Returns the last steps whose samples of this group's take blocks the consumers have, by their
        routes."""
        routes = {
            one.name for one in self._plan.routes if self._plan.is_of_take(self._plan.stage(one.source))
        }
        delivered = [one for answer in answers.values() for one in answer["delivered"].items()]
        return {max(start, step) for route, step in delivered if route in routes}

    def _unknown(
        self, answers: Mapping[int, Mapping[str, Any]], start: int, decision: Mapping[str, Any]
    ) -> str:
        """Returns why the passes that were taken cannot be known; empty if they can. Other passes would be
        taken in the same step again."""
        steps = self._taken(answers, start)
        if len(steps) > 1:
            return f"the samples of step {max(steps)} have arrived in part"
        if steps and decision["taken"] > start and not decision["takes"]:
            return f"the passes that step {decision['taken']} has taken are not known"
        return ""

    def _versions(self, agreement: StopAgreement, start: int, step: int) -> dict[str, list[int]]:
        plan, schedule = self._plan, Schedule(self._plan)

        def ran(number: int) -> ScheduledStep:
            last, is_cut = agreement.announced, agreement.is_cut(number)
            return schedule.at(number, last, is_open_ended=False, replayed=frozenset(), is_cut=is_cut)

        return {
            stage.name: versions_after(stage, start, step, ran)
            for stage in plan.stages
            if stage.kind == "sync" and plan.component(stage.to).group == self._group
        }


def versions_after(stage: Stage, start: int, step: int, ran: Callable[[int], ScheduledStep]) -> list[int]:
    """Returns the steps whose weights a consumer of a sync receives after `step`: first that of the weights
    that it has then, and those that were sent by then and are due later. `ran` returns what ran in a step
    after `start`, at which it has the weights of `start`."""
    later: list[int] = []
    is_cut = False
    for number in range(step, start, -1):
        now = ran(number)
        is_cut = is_cut or now.is_saved  # consumers have caught up then
        if stage.name in now.stages or now.is_saved:
            later.insert(0, number)
            if is_cut or number + stage.lag <= step:
                return later
    return [start, *later]


def peer_groups(plan: Plan, group: str) -> set[str]:
    """Returns the other groups that share routes with a group."""
    ends = [{*plan.ends_of(route)} for route in plan.routes]
    return {name for pair in ends if group in pair for name in pair} - {group}


def route_generation(generations: Mapping[str, int], *groups: str) -> int:
    """Returns the generation of a route between two groups."""
    return sum(generations.get(group, 0) for group in groups)
