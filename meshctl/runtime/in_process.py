"""A whole plan in the threads of one process: for tests and notebooks. The same loop, with frames in memory
and no torch.distributed.

Threads share torch's generators, so what a run draws at random is not reproducible here; everything else is
as in processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from torch.distributed import HashStore

from meshctl.plan.model import Plan
from meshctl.run.directory import Recorded
from meshctl.run.events import Event
from meshctl.run.shutdown import Proposer, StopAgreement, StopRequest
from meshctl.runtime.component import Component
from meshctl.runtime.loop import CheckpointHook, Loop, LoopContext
from meshctl.runtime.rank_context import RankContext
from meshctl.runtime.routes.end import TAGS_PER_ROUTE
from meshctl.runtime.routes.record import Recorder
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.memory import MemoryDataPlane
from meshctl.runtime.world import ranks_by_node

Make = Callable[[str, int], Component]
"""(component's name, rank) -> the object; `setup()` is called on it."""


@dataclass
class Outcome:
    last: dict[int, int] = field(default_factory=dict)
    """Place -> the last step that it ran."""
    faults: dict[int, Exception] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


def run(
    plan: Plan,
    make: Make,
    *,
    save: CheckpointHook = lambda step, given: None,
    recorder: Recorder | None = None,
    recorded: Mapping[str, Recorded] = MappingProxyType({}),
    stop: threading.Event | None = None,
    timeout: float = 60.0,
) -> Outcome:
    """Runs the plan to its end, or until one worker has a fault; setting `stop` asks all for a last step.

    Raises `TimeoutError` where it does not end: what waits for what is a bug of the plan or of the runtime.
    """
    outcome, store = Outcome(), HashStore()
    hub: dict[int, MemoryDataPlane] = {}
    store.set_timeout(timedelta(days=1))
    places = [group.first_place + rank for group in plan.groups for rank in range(group.workers)]
    slots = {number * TAGS_PER_ROUTE: route.slots for number, route in enumerate(plan.routes)}
    transports = {place: MemoryDataPlane(place, slots, hub) for place in places}

    def work(place: int) -> None:
        group, rank = plan.at_place(place)

        def say(name: str, *, step: int | None = None, stage: str = "", **value: Any) -> None:
            outcome.events.append(Event(name, group, rank, step, stage, value))

        try:
            components = {}
            for placed in plan.components_of(group):
                components[placed.name] = make(placed.name, rank)
                components[placed.name]._context = RankContext(
                    placed.name, placed.mesh.at(rank), rank, nodes=partial(ranks_by_node, plan, group)
                )
                components[placed.name].setup()
            ending = StopAgreement(store, store, place, places, transports[place].notify)
            for component in components.values():
                component.place.stop = ending.ask
            context = LoopContext(
                plan, group, rank, components, transports[place], ending, say, save, recorder, recorded
            )
            outcome.last[place] = Loop(context).run()
        except Exception as error:
            outcome.faults[place] = error
            for transport in transports.values():
                transport.fail(PeerLost(str(error)))

    threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in places]
    for thread in threads:
        thread.start()
    proposer = Proposer(store, places)
    try:
        _attend(proposer, threads, stop, timeout)
    finally:
        proposer.close()
    return outcome


def _attend(
    proposer: Proposer, threads: list[threading.Thread], stop: threading.Event | None, timeout: float
) -> None:
    """What a launcher does meanwhile: hears what workers ask for, and tells the last step."""
    waited = 0.0
    while any(thread.is_alive() for thread in threads):
        if waited > timeout:
            raise TimeoutError(f"the run did not end within {timeout:.0f} s")
        if asked := StopRequest("stop") if stop is not None and stop.is_set() else proposer.asked():
            proposer.propose(asked)
        proposer.poll()
        for thread in threads:
            if thread.is_alive():
                thread.join(0.005)
                waited += 0.005
                break
