"""For whom a worker waits, by the records of all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.engines.supervise.waits import Known, Wait, Waits, Worker, chain_to, doing_of, ends_of, waits_of
from meshctl.run.progress import Activity, Calls, Record
from tests.runtime.plans import call, plan

PLAN = plan(
    {"train": 4, "other": 1},
    {"actor": ("train", {"dp_size": 2, "tp_size": 2}), "judge": ("other", {})},
    [call("batch", "judge.next", samples=4), call("loss", "actor.update", "batch"), call("save", "actor.save")],
)  # fmt: skip
BEGUN = frozenset({*(("train", rank) for rank in range(4)), ("other", 0)})


def record(activity: Activity = Activity.CALLING, step: int = 3, stage: int = 1, **more: Any) -> Record:
    return Record(activity, step=step, stage=stage, **more)


def inside(count: int, **more: Any) -> Record:
    calls = {"actor:dp": Calls(count, tuple(range(count)))}
    return record(collective="actor:dp", operation="all_reduce", site="a.py:3", calls=calls, **more)


def wait(own: int, *records: Record, **more: Any) -> Wait:
    known = Known({("train", rank): one for rank, one in enumerate(records)}, begun=BEGUN, **more)
    return waits_of(PLAN, known, ("train", own))


BEHIND = record(calls={"actor:dp": Calls(1, (0,))})
SAVING, CLOSING = (record(one, stage=-1) for one in (Activity.SAVING, Activity.CLOSING))
BETWEEN = record(Activity.BETWEEN_STEPS, stage=-1)
ON_ROUTE = [record(), record(Activity.RECEIVING, step=4), record(), record()]
THREE = frozenset({("train", 0), ("train", 2), ("train", 3)})
STOPPING: dict[str, Any] = {"is_stopping": True, "done": frozenset({("other", 0)})}
WAITS: dict[str, tuple[list[Record], list[int], dict[str, Any]]] = {
    "not for itself": ([record(Activity.SENDING, peer=0)], [], {}),
    "rank 2 is its only peer of dp": ([inside(2), BEHIND, BEHIND, BEHIND], [2], {}),
    "a rank without a record moves": ([inside(2), BEHIND], [2], {}),
    "in an earlier step": ([inside(2), BEHIND, record(step=2), BEHIND], [2], {}),
    "it has left the step": ([inside(2), BEHIND, record(step=4), BEHIND], [], {}),
    "in the same collective": ([inside(2), record(), inside(2), record()], [2], {}),
    "a collective of torch that only the stack shows": (ON_ROUTE, [1], {"in_torch": THREE}),
    "all are in torch: a circle": (ON_ROUTE, [1], {"in_torch": BEGUN}),
    "an endpoint runs": ([record()], [], {}),
    "the devices are synchronized": ([record(Activity.SYNCING)], [], {}),
    "a checkpoint needs all ranks": ([SAVING, SAVING, record(), SAVING], [2], {}),
    "all ranks save": ([SAVING] * 4, [], {}),
    "a close is no checkpoint": ([CLOSING, CLOSING, record(), CLOSING], [], {}),
    "between steps": ([BETWEEN, BETWEEN, record(), BETWEEN], [], {}),
    "the last step is agreed with all who are inside of one": ([BETWEEN, BETWEEN, record(), BETWEEN], [2], STOPPING),
}  # fmt: skip
"""Records of the first ranks, the ranks for which rank 0 waits, and what else is known."""


@pytest.mark.parametrize(("records", "ranks", "known"), WAITS.values(), ids=WAITS)
def test_for_whom_rank_0_waits(records: list[Record], ranks: list[int], known: dict[str, Any]) -> None:
    assert wait(0, *records, **known).workers == tuple(("train", rank) for rank in ranks)


def test_what_is_waited_for() -> None:
    found = wait(0, record(Activity.RECEIVING, peer=4, route=0))
    assert found.workers == (("other", 0),) and found.what == "data of `batch -> loss`"
    assert wait(0, record(Activity.SENDING, peer=1, route=0)).what == "free slot of `batch -> loss`"
    assert wait(0, inside(2), BEHIND, BEHIND).what == "`all_reduce` at a.py:3"
    assert wait(2, inside(2), record(), inside(2)).workers == (("train", 0),), "each for the other"
    assert wait(3, *ON_ROUTE, in_torch=BEGUN).workers == (("train", 0),), "a circle"
    known = Known({("train", 0): CLOSING}, begun=BEGUN)
    assert doing_of(PLAN, known, ("train", 0)) == "`close`, after its last step"


def test_before_the_first_step_a_meeting_needs_those_in_earlier_phases() -> None:
    workers = [("train", rank) for rank in range(4)] + [("other", 0)]
    starting = dict.fromkeys(workers, Record())
    phases = dict.fromkeys(workers, "agreement on the last step")
    phases |= {("train", 1): "setup of `actor`", ("train", 2): "connection"}
    known = Known(starting, phases)
    assert waits_of(PLAN, known, ("train", 0)).workers == (("train", 1), ("train", 2))
    assert waits_of(PLAN, known, ("train", 1)).workers == (), "it runs the user's code"
    assert waits_of(PLAN, known, ("train", 2)).workers == ()
    assert doing_of(PLAN, known, ("train", 1)) == "setup of `actor`"
    assert doing_of(PLAN, known, ("train", 2)) == "the connection"


# Chains of waits, compared with a search of all paths


WORKERS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 4))
GRAPHS = st.dictionaries(WORKERS, st.lists(WORKERS, max_size=3), max_size=10)


def workers_of(waits: Waits) -> set[Worker]:
    return {*waits, *(target for targets in waits.values() for target in targets)}


def reachable(waits: Waits, start: Worker) -> set[Worker]:
    found, more = {start}, [start]
    while more:
        for target in waits.get(more.pop(), ()):
            if target not in found:
                found.add(target)
                more.append(target)
    return found


@given(GRAPHS)
def test_an_end_is_reached_by_everybody_who_is_reached_from_it(waits: Waits) -> None:
    expected = {
        frozenset(reachable(waits, worker))
        for worker in workers_of(waits)
        if all(worker in reachable(waits, other) for other in reachable(waits, worker))
    }
    ends = ends_of(waits)
    assert {frozenset(end) for end in ends} == expected and len(ends) == len(expected)
    for worker in workers_of(waits):
        assert any(set(end) & reachable(waits, worker) for end in ends), "every chain has an end"


@given(GRAPHS)
def test_a_chain_leads_from_each_worker_that_depends_on_an_end_to_it(waits: Waits) -> None:
    for end in ends_of(waits):
        chain = chain_to(waits, end)
        assert all(target in waits[worker] for worker, target in chain)
        outside = {worker: target for worker, target in chain if worker not in end}
        assert len(outside) == sum(worker not in end for worker, _ in chain), "each of them once"
        depends = {worker for worker in workers_of(waits) if set(end) & reachable(waits, worker)}
        assert outside.keys() == depends - {*end}
        place = {worker: number for number, (worker, _) in enumerate(chain)}
        for worker, target in outside.items():
            assert target in end or place[target] > place[worker], "the end comes last"
