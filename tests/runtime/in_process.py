"""Runs a whole plan in the threads of one process.

The loop is the same as in processes. Frames stay in memory, or travel over sockets, and torch.distributed is not
used. Threads share torch's random generators, so random numbers are not reproducible here.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from torch.distributed import HashStore, PrefixStore, Store

from meshctl.plan.model import Plan
from meshctl.run.directory import Recorded
from meshctl.run.events import Event, Journal, StepReport
from meshctl.run.shutdown import Proposer, StopAgreement, StopRequest, has_left
from meshctl.runtime.component import Component, context_of
from meshctl.runtime.loop import Loop
from meshctl.runtime.loop_context import CheckpointHook, LoopContext
from meshctl.runtime.rank_context import RankContext
from meshctl.runtime.routes.end import TAGS_PER_ROUTE
from meshctl.runtime.routes.record import Recorder
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.world import Handshake, ranks_by_node
from tests.hang import HANG_S
from tests.runtime.memory import MemoryDataPlane

Make = Callable[[str, int], Component]
"""Component name and rank -> the component; `setup()` is called on it."""

YIELD_S = 0.0005
"""How long a worker leaves the interpreter to others after a step, in seconds. One that waits for nobody would
keep it."""
POLL_S = 0.005
"""Seconds between two reads of the requests of workers."""


@dataclass
class Outcome:
    """The result of a run in threads."""

    last: dict[int, int] = field(default_factory=dict)
    """Job rank -> its last step."""
    faults: dict[int, Exception] = field(default_factory=dict)
    """Job rank -> the error that ended it."""
    reason: str = ""
    """Why a worker asked for the end; of several streams that ended, the earliest."""
    first_end: float = math.inf
    events: list[Event] = field(default_factory=list)

    def note(self, request: StopRequest) -> None:
        """Takes the reason of a request, as the launcher does."""
        is_first = not self.reason
        if request.ended is not None:
            is_first = request.ended < self.first_end
            self.first_end = min(request.ended, self.first_end)
        if is_first:
            self.reason = request.reason


class StoreOfWorkers:
    """A connection to the store whose waits end once a worker has a fault."""

    def __init__(self, store: Store, outcome: Outcome) -> None:
        self._store, self._outcome = store, outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        while not self._store.check(keys):
            if self._outcome.faults:
                raise PeerLost("a worker has a fault")
            time.sleep(YIELD_S)


class KeptEvents(Journal):
    """Keeps a worker's events in memory."""

    def __init__(self, events: list[Event], group: str, rank: int) -> None:
        self._events, self._group, self._rank = events, group, rank

    def write(
        self, name: str, *, rank: int | None = None, step: int | None = None, stage: str = "", **value: Any
    ) -> None:
        self._events.append(Event(name, self._group, self._rank, step, stage, value))
        if name == "step":
            time.sleep(YIELD_S)

    def write_step(self, report: StepReport) -> None:
        self.write_metrics(report)
        self.write("step", step=report.step, **report.value)


def run(
    plan: Plan,
    make: Make,
    *,
    save: CheckpointHook = lambda step, given, takes: None,
    recorder: Recorder | None = None,
    recorded: Mapping[str, Recorded] = MappingProxyType({}),
    ask: Callable[[Outcome], StopRequest | None] = lambda outcome: None,
    start: int = 0,
    given: Mapping[str, int] = MappingProxyType({}),
    on_setup: Callable[[Mapping[str, Component]], None] = lambda components: None,
    on_fault: Callable[[], None] = lambda: None,
    over_sockets: bool = False,
) -> Outcome:
    """Runs the plan to its end, or until one worker has a fault. `ask` may request a last step, by what
    has happened so far. The run continues after the step `start`, by which the sources had produced `given` samples; `on_setup` is called
    with the components of each worker. Frames stay in memory without `over_sockets`.

    A fault ends all waits of the other workers; `on_fault` ends those of the caller's functions. Raises
    `TimeoutError` if the run does not end, which is a deadlock: a bug of the plan or of the runtime.
    """
    outcome, store = Outcome(), HashStore()
    waiting: Any = StoreOfWorkers(store, outcome)
    hub: dict[int, MemoryDataPlane] = {}
    store.set_timeout(timedelta(days=1))
    job_ranks = [group.first_job_rank + rank for group in plan.groups for rank in range(group.workers)]
    slots = {number * TAGS_PER_ROUTE: route.slots for number, route in enumerate(plan.routes)}
    data_planes: dict[int, DataPlane] = {}
    if not over_sockets:
        data_planes.update({job_rank: MemoryDataPlane(job_rank, slots, hub) for job_rank in job_ranks})

    def work(job_rank: int) -> None:
        group, rank = plan.group_and_rank(job_rank)
        try:
            components = {}
            for placed in plan.components_of(group):
                component = components[placed.name] = make(placed.name, rank)
                component._context = RankContext(
                    placed.name, placed.mesh.at(rank), rank, nodes=partial(ranks_by_node, plan, group)
                )
                component.setup()
            on_setup(components)
            if over_sockets:
                met: Any = StoreOfWorkers(PrefixStore("planes", store), outcome)
                data_planes[job_rank] = Handshake(
                    plan, job_rank, met, has_left=partial(has_left, store)
                ).connect()
                if outcome.faults:
                    raise PeerLost("a worker has a fault")
            agreement = StopAgreement(waiting, store, job_rank)
            for component in components.values():
                context_of(component).stop = agreement.ask
            context = LoopContext(
                plan,
                group,
                rank,
                components,
                data_planes[job_rank],
                agreement,
                KeptEvents(outcome.events, group, rank),
                save,
                recorder,
                recorded,
            )
            outcome.last[job_rank] = Loop(context).run(start, given)
            if over_sockets:
                data_planes[job_rank].close()
        except Exception as error:
            outcome.faults[job_rank] = error
            for data_plane in [*data_planes.values()]:
                data_plane.fail(PeerLost(str(error)))
            on_fault()
            if over_sockets and job_rank in data_planes:
                data_planes[job_rank].release()

    earlier = set(threading.enumerate())
    threads = [threading.Thread(target=work, args=(job_rank,), daemon=True) for job_rank in job_ranks]
    for thread in threads:
        thread.start()
    proposer = Proposer(store, job_ranks)
    try:
        _attend(proposer, threads, outcome, ask)
    finally:
        proposer.close()
        _join_listeners(earlier)
    return outcome


def _join_listeners(earlier: Set[threading.Thread]) -> None:
    """Waits for the threads in which workers listen to the launcher. One that returns from torch's store while
    the interpreter ends would abort the process."""
    for thread in threading.enumerate():
        if thread not in earlier and thread.name == "ending":
            thread.join(HANG_S)


def _attend(
    proposer: Proposer,
    threads: list[threading.Thread],
    outcome: Outcome,
    ask: Callable[[Outcome], StopRequest | None],
) -> None:
    """Acts as the launcher until all threads end: receives requests for a stop and announces the last
    step."""
    waited_s = 0.0
    while any(thread.is_alive() for thread in threads):
        if outcome.faults:
            proposer.propose(StopRequest("a fault", has_failed=True))  # nobody begins a further step
        if waited_s > HANG_S:
            raise TimeoutError("the run did not end")
        for request in (ask(outcome), proposer.asked()):
            if request is not None:
                outcome.note(request)
                proposer.propose(request)
        proposer.poll()
        for thread in threads:
            if thread.is_alive():
                thread.join(POLL_S)
                waited_s += POLL_S
                break
    while (request := proposer.asked()) is not None:  # by the last worker, just before its end
        outcome.note(request)
