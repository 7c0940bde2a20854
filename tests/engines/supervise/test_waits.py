"""For whom a worker waits, by the records of all."""

from __future__ import annotations

from typing import Any

from meshctl.engines.supervise.cause import position_of
from meshctl.engines.supervise.waits import Known, Wait, doing_of, waits_of
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
