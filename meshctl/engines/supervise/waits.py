"""Finds the workers for which a standing worker waits, from its progress record and the records of its peers,
and the workers that hold up others.

    known = Known(records, phases, done)
    waits_of(plan, known, worker)         # a `Wait`: the awaited workers, and the reason
    doing_of(plan, known, worker)         # what it is doing, in words
    ends_of(waits)                        # the ends of chains: workers that wait for no other, and circles
    chain_to(waits, end)                  # pairs (waiting worker, awaited worker) on all paths to `end`

A worker waits for a peer on a route, for the ranks that have not reached its collective or its checkpoint,
or, before the first step, for workers in an earlier phase. Every other worker waits for no other. A worker
without a record advances.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import field
from itertools import chain

from meshctl.dataclass import dataclass
from meshctl.engines.supervise.collective_check import place_of, ranks_of
from meshctl.plan.model import Plan, Stage
from meshctl.run.progress import Activity, Record
from meshctl.run.shutdown import ENDLESS
from meshctl.text.english import in_words

Worker = tuple[str, int]
"""Group and rank."""
Waits = Mapping[Worker, Collection[Worker]]
"""Worker -> the workers for whom it waits."""


def name_of(worker: Worker) -> str:
    return f"{worker[0]}:{worker[1]}"


def ends_of(waits: Waits) -> list[tuple[Worker, ...]]:
    """Returns the ends of all chains. A worker that is not a key of `waits` waits for no other. An end is one
    worker that waits for no other, or a circle whose workers only wait for each other. From every worker at
    least one end can be reached."""
    waiting, found, searched = _waiting(waits), list[tuple[Worker, ...]](), set[Worker]()
    for worker in [*waits, *waiting]:
        while worker not in searched:
            ahead, behind = _reached(waits, worker), _reached(waiting, worker)
            searched |= behind.keys()
            beyond = [one for one in ahead if one not in behind]
            if not beyond:  # all whom it waits for wait for it
                found.append(tuple(ahead))
                break
            worker = beyond[0]
    return found


def _reached(graph: Waits, start: Worker) -> dict[Worker, None]:
    """Returns a worker and all that can be reached from it."""
    found, queue = {start: None}, [start]
    for worker in queue:
        new = [one for one in dict.fromkeys(graph.get(worker, ())) if one not in found]
        found |= dict.fromkeys(new)
        queue += new
    return found


def chain_to(waits: Waits, end: Sequence[Worker]) -> list[tuple[Worker, Worker]]:
    """Returns the waits by which workers depend on an end, as pairs (waiting worker, awaited worker). They
    are a tree whose root is the end, the pairs furthest from the root first. Each worker waits in one pair
    only, for a worker nearer to the end. Waits inside of a circle come last."""
    waiting = _waiting(waits)
    found, seen, queue = list[tuple[Worker, Worker]](), set(end), deque(end)
    while queue:
        target = queue.popleft()
        for worker in waiting.get(target, ()):
            if worker not in seen:
                seen.add(worker)
                found.append((worker, target))
                queue.append(worker)
    inside = [[(worker, one) for one in waits.get(worker, ()) if one in end][:1] for worker in end]
    return [*reversed(found), *chain.from_iterable(inside)]


def _waiting(waits: Waits) -> Waits:
    """Returns for each worker the workers that wait for it."""
    found: dict[Worker, list[Worker]] = {}
    for worker, targets in waits.items():
        for target in targets:
            found.setdefault(target, []).append(worker)
    return found


PHASES = ("connection", "imports", "setup", "resume", "first sync", "agreement")
"""The first words of the phases before the first step, in order. Setup and imports alternate."""
MEETINGS = ("connection", "first sync", "agreement")
"""The phases in which a worker waits for all workers in earlier phases."""


@dataclass(frozen=True)
class Known:
    """The progress records and events of the workers of components, at one moment."""

    records: Mapping[Worker, Record]
    """The records of the workers that stand."""
    phases: Mapping[Worker, str] = field(default_factory=dict)
    """The phases of workers before their first step. A worker that is missing here and in `begun` has not
    begun any."""
    begun: Set[Worker] = frozenset()
    """The workers that are ready for their first step, or beyond."""
    done: Set[Worker] = frozenset()
    """The workers that take part in no further step."""
    in_torch: Set[Worker] = frozenset()
    """The workers whose stacks end in a collective of torch that no record contains."""
    is_stopping: bool = False
    """True if the workers agree on a last step."""


@dataclass(frozen=True)
class Wait:
    """The workers for which a worker waits. It is empty for a worker that waits for no other."""

    workers: tuple[Worker, ...] = ()
    what: str = ""
    """The reason of the wait. It follows "waits for train:1" in a message."""


NOBODY = Wait()


def waits_of(plan: Plan, known: Known, worker: Worker) -> Wait:
    """Returns the wait of a standing worker."""
    record = known.records[worker]
    if record.peer >= 0:
        return _on_route(plan, worker, record)
    if record.collective:
        return _in_collective(plan, known, worker, record)
    if worker in known.in_torch:
        return _in_torch(plan, known, worker)
    match record.activity:
        case Activity.STARTING | Activity.BETWEEN_STEPS if worker not in known.begun:
            return _in_phase(plan, known, worker)
        case Activity.RECEIVING:
            return _for_stream(plan, known, worker, record)
        case Activity.SAVING:
            peers = [(worker[0], rank) for rank in range(plan.group(worker[0]).workers)]
            return _behind(plan, known, worker, peers, "in the checkpoint")
        case Activity.BETWEEN_STEPS if known.is_stopping:
            return _for_last_step(plan, known, worker)
    return NOBODY


def _on_route(plan: Plan, worker: Worker, record: Record) -> Wait:
    peer = plan.group_and_rank(record.peer)
    if peer == worker:
        return NOBODY
    name = plan.routes[record.route % len(plan.routes)].name if record.route >= 0 and plan.routes else ""
    what = "free slot" if record.activity == Activity.SENDING else "data"
    return Wait((peer,), f"{what} of `{name}`" if name else what)


def _in_collective(plan: Plan, known: Known, worker: Worker, record: Record) -> Wait:
    """A rank in a collective waits for the ranks that have made fewer calls. If there are none, the ranks in
    the same collective wait for each other, in a circle."""
    group, own = worker
    key, count = record.collective, record.calls[record.collective].count if record.calls else 0
    site = f" at {record.site}" if record.site else ""
    absent, inside = list[Worker](), list[Worker]()
    for rank in ranks_of(plan, group, key, own):
        peer = known.records.get((group, rank))
        if rank == own or (group, rank) in known.done:
            continue
        if peer is None or place_of(plan, peer) < place_of(plan, record):
            absent.append((group, rank))
        elif place_of(plan, peer)[0] == place_of(plan, record)[0]:
            calls = peer.calls[key].count if key in peer.calls else 0
            if calls < count:
                absent.append((group, rank))
            elif calls == count and peer.collective == key:
                inside.append((group, rank))
    after = [peer for peer in inside if peer[1] > own] + inside
    return Wait(tuple(absent or after[:1]), f"`{record.operation}`{site}")


def _in_torch(plan: Plan, known: Known, worker: Worker) -> Wait:
    """A rank in a collective of torch whose process group is not known waits for the ranks of its group that
    are elsewhere. If there are none, the ranks wait for each other, in a circle."""
    group, own = worker
    others = [(group, rank) for rank in range(plan.group(group).workers) if rank != own]
    others = [other for other in others if other not in known.done]
    absent = [other for other in others if other not in known.in_torch]
    following = [other for other in others if other[1] > own] + others
    return Wait(tuple(absent or following[:1]), "collective of torch")


def _in_phase(plan: Plan, known: Known, worker: Worker) -> Wait:
    phase = known.phases.get(worker, "")
    if not phase.startswith(MEETINGS):
        return NOBODY
    earlier = [
        other
        for other in workers_of(plan)
        if other not in known.begun and _phase_number(known, other) < _phase_number(known, worker)
    ]
    return Wait(tuple(earlier), "connection" if phase == "connection" else "setup")


def _phase_number(known: Known, worker: Worker) -> int:
    phase = known.phases.get(worker, "")
    return next((number for number, name in enumerate(PHASES) if phase.startswith(name)), -1)


def _for_stream(plan: Plan, known: Known, worker: Worker, record: Record) -> Wait:
    """A worker that does not receive the value of a stream waits for its producers."""
    stage = plan.stages[record.stage]
    group = plan.group_of(stage)
    if group == worker[0] or not stage.is_source:
        return NOBODY
    producers = [(group, rank) for rank in range(plan.group(group).workers)]
    return _behind(plan, known, worker, producers, f"end of `{stage.name}`")


def _behind(plan: Plan, known: Known, worker: Worker, others: Iterable[Worker], what: str) -> Wait:
    """Returns a wait for the `others` that have not come as far as the worker."""
    place = place_of(plan, known.records[worker])
    behind = []
    for other in others:
        record = known.records.get(other)
        is_known = record is not None or other in known.done
        if other != worker and (not is_known or (record is not None and place_of(plan, record) < place)):
            behind.append(other)
    return Wait(tuple(behind), what)


def _for_last_step(plan: Plan, known: Known, worker: Worker) -> Wait:
    """While the workers agree on a last step, a worker between two steps waits for the workers inside a
    step."""
    others = []
    for other in workers_of(plan):
        record = known.records.get(other)
        if other not in known.done and (record is None or record.activity != Activity.BETWEEN_STEPS):
            others.append(other)
    return Wait(tuple(others), "agreement on the last step")


def workers_of(plan: Plan) -> list[Worker]:
    """Returns all workers of components."""
    return [
        (group.name, rank) for group in plan.groups if group.program is None for rank in range(group.workers)
    ]


# Words


def doing_of(plan: Plan, known: Known, worker: Worker) -> str:
    """Returns where a worker stands: `stage update, step 12`, or `setup of actor`."""
    record = known.records.get(worker)
    if record is None:
        return "moving"
    stage = stage_of(plan, record)
    step = f"step {record.step}" if 0 < record.step < ENDLESS else "before step 1"
    if record.activity == Activity.SAVING:
        return f"the checkpoint of step {record.step}"
    if record.activity == Activity.CLOSING:
        return "`close`, after its last step"
    if worker in known.done:
        return "the end, after its last step"
    if worker not in known.begun and stage is None:
        phase = known.phases.get(worker, "")
        return f"the {phase}" if " of " not in phase and phase else phase or "the start of its process"
    if stage is None:
        return f"between two stages, {step}"
    what = {Activity.SYNCING: "sync", Activity.SENDING: "sending of"}.get(Activity(record.activity), "stage")
    return f"{what} {stage.name}, {step}"


def stage_of(plan: Plan, record: Record) -> Stage | None:
    return plan.stages[record.stage] if 0 <= record.stage < len(plan.stages) else None


def names_of(workers: Sequence[Worker]) -> str:
    """Returns `train:0, train:1 and 6 more`."""
    return in_words([name_of(worker) for worker in workers])
