"""For whom a worker waits, by the records of all."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshctl.engines.supervise.cause import position_of
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


def test_a_peer_on_a_route() -> None:
    found = wait(0, record(Activity.RECEIVING, peer=4, route=0))
    assert found.workers == (("other", 0),) and found.what == "data of `batch -> loss`"
    assert wait(0, record(Activity.SENDING, peer=1, route=0)).what == "free slot of `batch -> loss`"
    assert wait(0, record(Activity.SENDING, peer=0)).workers == (), "it waits for all, not for itself"


def test_who_has_not_reached_a_collective() -> None:
    behind = record(stage=1, calls={"actor:dp": Calls(1, (0,))})
    found = wait(0, inside(2), behind, behind, behind)
    assert found.workers == (("train", 2),), "rank 2 is its only peer of dp"
    assert found.what == "`all_reduce` at a.py:3"
    assert wait(0, inside(2), behind).workers == (("train", 2),), "a rank without a record moves"
    assert wait(0, inside(2), behind, record(step=2), behind).workers == (("train", 2),)
    assert wait(0, inside(2), behind, record(step=4), behind).workers == (), "it has left the step"


def test_ranks_in_the_same_collective_wait_for_each_other() -> None:
    both = [inside(2), record(), inside(2), record()]
    assert wait(0, *both).workers == (("train", 2),) and wait(2, *both).workers == (("train", 0),)


def test_a_collective_of_torch_that_only_the_stack_shows() -> None:
    records = [record(), record(Activity.RECEIVING, step=4), record(), record()]
    in_torch = frozenset({("train", 0), ("train", 2), ("train", 3)})
    assert wait(0, *records, in_torch=in_torch).workers == (("train", 1),)
    everybody = frozenset(BEGUN)
    assert wait(3, *records, in_torch=everybody).workers == (("train", 0),), "a circle"


def test_an_endpoint_that_runs_waits_for_nobody() -> None:
    assert wait(0, record()).workers == () == wait(0, record(Activity.SYNCING)).workers


def test_a_checkpoint_needs_all_ranks() -> None:
    saving = record(Activity.SAVING, stage=-1)
    assert wait(0, saving, saving, record(), saving).workers == (("train", 2),)
    assert wait(0, *[saving] * 4).workers == ()


def test_a_close_is_no_checkpoint() -> None:
    closing = record(Activity.CLOSING, stage=-1)
    assert wait(0, closing, closing, record(), closing).workers == ()
    assert (
        doing_of(PLAN, Known({("train", 0): closing}, begun=BEGUN), ("train", 0))
        == "`close`, after its last step"
    )
    assert position_of(PLAN, closing).doing == "close"


def test_the_agreement_on_a_last_step_needs_everybody_who_is_inside_of_one() -> None:
    between = record(Activity.BETWEEN_STEPS, stage=-1)
    records = [between, between, record(), between]
    assert wait(0, *records).workers == ()
    done = frozenset({("other", 0)})
    assert wait(0, *records, is_stopping=True, done=done).workers == (("train", 2),)


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
