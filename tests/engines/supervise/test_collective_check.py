"""Which reports and records of ranks contradict each other, and which are only slow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshctl.engines.supervise.collective_check import CollectiveCheck
from meshctl.run.events import Event
from meshctl.run.progress import Activity, Calls, Record
from tests.runtime.plans import call, plan

PLAN = plan(
    {"train": 4, "other": 1},
    {"actor": ("train", {"dp_size": 2, "tp_size": 2}), "judge": ("other", {})},
    [call("batch", "actor.next", samples=4), call("loss", "actor.update", "batch"), call("save", "actor.save", "loss")],
)  # fmt: skip
DP, TP = "actor:dp", "actor:tp"
"""Ranks 0, 2 and 1, 3 are process groups of `dp`, ranks 0, 1 and 2, 3 of `tp`."""
Key = dict[str, Any]


def step(rank: int, number: int, **calls: Key) -> Event:
    value = {"collectives": {f"actor:{dims}": one for dims, one in calls.items()}} if calls else {}
    return Event("step", "train", rank, number, value=value)


def counts(count: int, digest: int = 1, **sites: int) -> Key:
    return {"count": count, "digest": digest, **({"sites": sites} if sites else {})}


def record(number: int, stage: int, visit: int = 0, **calls: Calls) -> Record:
    found = {f"actor:{dims}": one for dims, one in calls.items()}
    return Record(Activity.CALLING, step=number, visit=visit, stage=stage, calls=found)


def calls(count: int, *digests: int) -> Calls:
    return Calls(count, digests or tuple(range(1, count + 1)))


@pytest.fixture
def check() -> CollectiveCheck:
    return CollectiveCheck(PLAN)


def message(check: CollectiveCheck) -> str:
    assert check.found is not None
    return check.found.message


def test_ranks_that_agree(check: CollectiveCheck) -> None:
    for number in (1, 2):
        for rank in range(4):
            check.add(step(rank, number, dp=counts(3), tp=counts(rank // 2, digest=rank // 2)))
    assert check.found is None and check.allows(2)


def test_process_groups_of_one_dim_may_call_different_collectives(check: CollectiveCheck) -> None:
    for rank in range(4):
        check.add(step(rank, 1, tp=counts(5 if rank < 2 else 2)))
    assert check.found is None


def test_a_skipped_collective_is_found_at_the_end_of_the_step(check: CollectiveCheck) -> None:
    for rank in range(4):
        sites = {"a.py:1": 2, "a.py:7": 1 if rank != 3 else 0}
        check.add(step(rank, 1, dp=counts(3)))
        check.add(step(rank, 2, dp=counts(3 if rank != 3 else 2, **sites)))
    text = message(check)
    assert "ranks 1, 3" in text and "step 2" in text and "rank 1 called 3, rank 3 called 2" in text
    assert "a.py:7" in text and "a.py:1 " not in text
    assert check.allows(1) and not check.allows(2) and not check.allows(3)


def test_a_rank_that_called_none_has_no_entry(check: CollectiveCheck) -> None:
    check.add(step(0, 1, tp=counts(1)))
    for rank in (1, 2, 3):
        check.add(step(rank, 1))
    assert "rank 0 called 1, rank 1 called 0" in message(check)


def test_other_operations_are_found(check: CollectiveCheck) -> None:
    for rank in range(4):
        check.add(step(rank, 1, dp=counts(3, digest=rank == 2, **{"a.py:3": 3})))
    assert "ranks 0, 2 called 3" in message(check) and "a.py:3" in message(check)


def test_call_sites_are_those_of_the_step(check: CollectiveCheck) -> None:
    """Rank 3 reports step 2 before the others report step 1."""
    check.add(step(3, 1, dp=counts(1, **{"a.py:1": 1})))
    check.add(step(3, 2, dp=counts(1, **{"b.py:2": 1})))
    for rank in (0, 1, 2):
        check.add(step(rank, 1, dp=counts(2, **{"a.py:1": 1, "a.py:9": 1})))
    assert "a.py:9" in message(check) and "b.py" not in message(check)


def test_the_first_operation_that_differs_is_named_where_all_are_reported(check: CollectiveCheck) -> None:
    for rank in range(4):
        names = ["`a` at x.py:1", "`b` at x.py:2", "`c` at x.py:3"]
        if rank == 2:
            names = ["`a` at x.py:9", "`c` at x.py:3"]
        check.add(step(rank, 1, dp={**counts(len(names), digest=rank % 2 or rank), "operations": names}))
    assert "number 2 differs: rank 0 called `b` at x.py:2, rank 2 called `c` at x.py:3" in message(check)


def test_a_step_that_ends_twice_is_compared_twice(check: CollectiveCheck) -> None:
    for number, count in ((1, 3), (1, 1)):
        for rank in range(4):
            check.add(step(rank, number, dp=counts(count)))
    assert check.found is None
    for rank in range(4):
        check.add(step(rank, 1, dp=counts(1 + rank // 2)))
    assert check.found is not None


def test_it_is_reported_once(check: CollectiveCheck) -> None:
    assert not list(check.poll())
    for rank in range(4):
        check.add(step(rank, 1, dp=counts(1 + rank // 2)))
    [found] = check.poll()
    assert check.found and found.cause.error == check.found.message and not list(check.poll())


def test_a_rank_waits_in_a_collective_that_a_peer_skipped(check: CollectiveCheck) -> None:
    check.add(step(2, 1, dp=counts(6)))
    check.stand("train", 0, Record(
        Activity.CALLING, step=1, stage=1, collective=DP, site="a.py:30", operation="all_gather float32 3",
        calls={DP: calls(7)},
    ))  # fmt: skip
    text = message(check)
    assert "rank 0 called 7, rank 2 called 6" in text
    assert (
        "rank 0 is in `all_gather float32 3` at a.py:30 in stage `loss`, and rank 2 has ended the step"
        in text
    )


def test_the_order_of_record_and_report_does_not_matter(check: CollectiveCheck) -> None:
    check.stand("train", 0, record(1, 1, dp=calls(7)))
    assert check.found is None
    check.add(step(2, 1, dp=counts(6)))
    assert check.found is not None


def test_a_peer_that_waits_in_a_later_stage_has_skipped_it(check: CollectiveCheck) -> None:
    check.stand("train", 2, record(1, 2, dp=calls(6)))
    check.stand("train", 0, record(1, 1, dp=calls(7)))
    assert "rank 2 is in stage `save`" in message(check)


def test_a_peer_in_a_later_pass_has_skipped_it() -> None:
    block = tuple(replace(stage, block="eval" * (stage.name != "save")) for stage in PLAN.stages)
    check = CollectiveCheck(replace(PLAN, stages=block))
    slow = Record(Activity.CALLING, step=1, repeat_pass=2, stage=1, calls={DP: calls(7)})
    check.stand("train", 0, slow)
    check.stand("train", 2, Record(Activity.CALLING, step=1, stage=2, calls={DP: calls(9)}))
    assert check.found is None, "it has left the block, with more calls"
    check.stand("train", 2, replace(slow, repeat_pass=3, stage=0, calls={DP: calls(6)}))
    assert check.found is not None


def test_a_collective_of_setup_that_a_peer_skipped(check: CollectiveCheck) -> None:
    check.stand("train", 0, record(0, -1, dp=calls(2)))
    check.add(step(2, 1, dp=counts(1)))
    assert check.found is not None


def test_a_record_may_arrive_before_the_report_of_the_step_that_its_rank_has_ended(
    check: CollectiveCheck,
) -> None:
    """The record counts from the beginning of the next step."""
    check.stand("train", 0, record(1, 1, dp=calls(96)))
    check.stand("train", 2, record(2, 0))
    assert check.found is None
    check.add(step(2, 1, dp=counts(95)))
    assert check.found is not None and check.found.step == 1


@pytest.mark.parametrize("resumed_step", [0, 7])
def test_a_peer_in_the_first_step_skipped_a_collective_of_setup(resumed_step: int) -> None:
    for first, has_passed in ((resumed_step + 1, True), (resumed_step + 2, False)):
        check = CollectiveCheck(PLAN, resumed_step)
        check.stand("train", 0, record(0, -1, dp=calls(2)))
        check.stand("train", 2, record(first, 1, dp=calls(1)))
        assert (check.found is not None) == has_passed


def test_ranks_in_different_collectives_of_one_process_group(check: CollectiveCheck) -> None:
    check.stand("train", 0, record(1, 1, dp=calls(3, 1, 2, 3)))
    check.stand("train", 2, record(1, 1, dp=calls(4, 1, 2, 9, 10)))
    assert "number 3 differs" in message(check)


def test_a_record_may_arrive_before_the_reports_of_earlier_steps(check: CollectiveCheck) -> None:
    check.stand("train", 2, record(3, 1, dp=calls(1, 9)))
    for rank in range(4):
        check.add(step(rank, 1, dp=counts(2)))
        check.add(step(rank, 2, dp=counts(2)))
    check.stand("train", 0, record(3, 1, dp=calls(1, 8)))
    assert "number 1 differs" in message(check)


def test_a_fault_is_compared_too(check: CollectiveCheck) -> None:
    for rank, digest in ((0, 5), (2, 6)):
        value = {"progress": record(1, 1, dp=calls(1, digest)).to_message()}
        check.add(Event("fault", "train", rank, 1, value=value))
    assert "number 1 differs" in message(check)


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param(record(1, 1, dp=calls(6)), id="fewer calls in the same stage"),
        pytest.param(record(1, 0, dp=calls(3)), id="an earlier stage"),
        pytest.param(record(0, -1, visit=1), id="an earlier step"),
        pytest.param(record(1, 2, dp=calls(7)), id="a later stage with as many calls"),
        pytest.param(record(1, 2, dp=calls(9)), id="a later stage with more calls"),
        pytest.param(record(1, 2, dp=calls(7), tp=calls(1, 5)), id="another process group"),
    ],
)
def test_a_peer_that_is_only_slow(check: CollectiveCheck, slow: Record) -> None:
    check.stand("train", 0, record(1, 1, dp=calls(7)))
    check.stand("train", 2, slow)
    check.stand("train", 0, record(1, 1, dp=calls(7)))
    assert check.found is None


def test_a_peer_of_another_process_group_may_do_anything(check: CollectiveCheck) -> None:
    check.add(step(1, 1, dp=counts(2)))
    check.stand("train", 0, record(1, 1, dp=calls(7)))
    check.stand("train", 3, record(1, 1, dp=calls(1, 99)))
    assert check.found is None


def test_a_record_that_arrives_after_the_report_is_ignored(check: CollectiveCheck) -> None:
    """Its rank has left the step since, and what was counted there was dropped by its peer."""
    check.add(step(0, 1, dp=counts(7)))
    check.add(step(0, 2))
    check.stand("train", 0, record(1, 1, dp=calls(7)))
    check.add(step(2, 1, dp=counts(7)))
    assert check.found is None


def test_stages_after_the_last_step_are_not_compared_with_a_dropped_one(check: CollectiveCheck) -> None:
    for rank in range(4):
        check.add(step(rank, 1, dp=counts(3)))
    check.add(step(2, 2, dp=counts(1)))
    check.stand("train", 0, record(1, 2, visit=1, dp=calls(2)))
    assert check.found is None


def test_other_events_and_groups_are_ignored(check: CollectiveCheck) -> None:
    check.add(Event("step", "nobody", 0, 1))
    check.add(Event("fault", "train", 0, 1, value={"error": "x"}))
    check.add(Event("fault", error := "train", None, 1, value={"error": error}))
    check.stand("nobody", 0, record(1, 1))
    assert check.found is None
