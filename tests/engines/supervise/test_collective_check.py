"""Reports and records of ranks that contradict each other are found, and ranks that are only slow are not."""

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
"""Ranks 0, 2 and 1, 3 are process groups of `dp`, ranks 0, 1 and 2, 3 of `tp`."""
Key = dict[str, Any]


def step(rank: int, number: int = 1, **calls: Key) -> Event:
    value = {"collectives": {f"actor:{dims}": one for dims, one in calls.items()}} if calls else {}
    return Event("step", "train", rank, number, value=value)


def counts(count: int, digest: int = 1, **sites: int) -> Key:
    return {"count": count, "digest": digest, **({"sites": sites} if sites else {})}


def record(number: int, stage: int, visit: int = 0, **calls: Calls) -> Record:
    found = {f"actor:{dims}": one for dims, one in calls.items()}
    return Record(Activity.CALLING, step=number, visit=visit, stage=stage, calls=found)


def calls(count: int, *digests: int) -> Calls:
    return Calls(count, digests or tuple(range(1, count + 1)))


def fault(rank: int, digest: int) -> Event:
    return Event(
        "fault", "train", rank, 1, value={"progress": record(1, 1, dp=calls(1, digest)).to_message()}
    )


def named(rank: int, *operations: str) -> Event:
    names = {"operations": [*operations]}
    return step(rank, dp={**counts(len(operations), digest=rank % 2 or rank), **names})


Arrival = Event | tuple[int, Record]
"""A report, or a rank and its record."""
IN_UPDATE = record(1, 1, dp=calls(7))
"""A rank that waits in its seventh collective."""


def checked(*arrivals: Arrival, check: CollectiveCheck | None = None) -> CollectiveCheck:
    check = check or CollectiveCheck(PLAN)
    for one in arrivals:
        if isinstance(one, Event):
            check.add(one)
        else:
            check.stand("train", *one)
    return check


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param(
            [
                step(rank, n, dp=counts(3), tp=counts(rank // 2, digest=rank // 2))
                for n in (1, 2)
                for rank in range(4)
            ],
            id="ranks that agree",
        ),
        pytest.param(
            [step(rank, tp=counts(5 if rank < 2 else 2)) for rank in range(4)], id="two groups of one dim"
        ),
        pytest.param(
            [step(rank, dp=counts(count)) for count in (3, 1) for rank in range(4)],
            id="a step that ends twice",
        ),
        pytest.param(
            [step(1, dp=counts(2)), (0, IN_UPDATE), (3, record(1, 1, dp=calls(1, 99)))], id="another group"
        ),
        pytest.param(
            [step(0, dp=counts(7)), step(0, 2), (0, IN_UPDATE), step(2, dp=counts(7))],
            id="a record after the report: its rank has left the step",
        ),
        pytest.param(
            [
                *(step(rank, dp=counts(3)) for rank in range(4)),
                step(2, 2, dp=counts(1)),
                (0, record(1, 2, visit=1, dp=calls(2))),
            ],
            id="stages after the last step and a dropped step",
        ),
        pytest.param(
            [
                Event("step", "nobody", 0, 1),
                Event("fault", "train", 0, 1, value={"error": "x"}),
                Event("fault", "train", None, 1, value={"error": "x"}),
            ],
            id="other events",
        ),
        *(
            pytest.param([(0, IN_UPDATE), (2, slow), (0, IN_UPDATE)], id=f"slow: {name}")
            for name, slow in {
                "fewer calls in the same stage": record(1, 1, dp=calls(6)),
                "an earlier stage": record(1, 0, dp=calls(3)),
                "an earlier step": record(0, -1, visit=1),
                "a later stage with as many calls": record(1, 2, dp=calls(7)),
                "a later stage with more calls": record(1, 2, dp=calls(9)),
                "another process group": record(1, 2, dp=calls(7), tp=calls(1, 5)),
            }.items()
        ),
    ],
)
def test_ranks_that_do_not_contradict_each_other(arrivals: list[Arrival]) -> None:
    check = checked(*arrivals)
    assert check.found is None and check.allows(1) and not check.poll(0.0)


@pytest.mark.parametrize(
    ("before", "last", "words"),
    [
        pytest.param(
            [
                *(step(rank, dp=counts(3)) for rank in range(4)),
                *(step(rank, 2, dp=counts(3, **{"a.py:1": 2, "a.py:7": 1})) for rank in range(3)),
            ],
            step(3, 2, dp=counts(2, **{"a.py:1": 2, "a.py:7": 0})),
            ["ranks 1 and 3", "step 2", "rank 1 called 3, rank 3 called 2", "a.py:7"],
            id="one was skipped",
        ),
        pytest.param(
            [step(0, tp=counts(1)), step(1), step(2)],
            step(3),
            ["rank 0 called 1, rank 1 called 0"],
            id="none",
        ),
        pytest.param(
            [step(rank, dp=counts(3, **{"a.py:3": 3})) for rank in (0, 1, 3)],
            step(2, dp=counts(3, digest=0, **{"a.py:3": 3})),
            ["ranks 0 and 2 called 3", "a.py:3"],
            id="another operation",
        ),
        pytest.param(
            [
                step(3, dp=counts(1, **{"a.py:1": 1})),
                step(3, 2, dp=counts(1, **{"b.py:2": 1})),
                *(step(rank, dp=counts(2, **{"a.py:1": 1, "a.py:9": 1})) for rank in (0, 2)),
            ],
            step(1, dp=counts(2, **{"a.py:1": 1, "a.py:9": 1})),
            ["a.py:9"],
            id="the sites are those of the step",
        ),
        pytest.param(
            [named(rank, "`a` at x.py:1", "`b` at x.py:2", "`c` at x.py:3") for rank in (0, 1, 3)],
            named(2, "`a` at x.py:9", "`c` at x.py:3"),
            ["number 2 differs: rank 0 called `b` at x.py:2, rank 2 called `c` at x.py:3"],
            id="the first that differs",
        ),
        pytest.param([step(2, dp=counts(6))], (0, IN_UPDATE), [], id="a peer has left the step"),
        pytest.param([(0, IN_UPDATE)], step(2, dp=counts(6)), [], id="a peer leaves the step"),
        pytest.param(
            [(2, record(1, 2, dp=calls(6)))],
            (0, IN_UPDATE),
            ["rank 2 is in stage `save`"],
            id="a later stage",
        ),
        pytest.param([(0, record(0, -1, dp=calls(2)))], step(2, dp=counts(1)), [], id="in setup"),
        pytest.param(
            [(0, record(1, 1, dp=calls(96))), (2, record(2, 0))],
            step(2, dp=counts(95)),
            ["step 1"],
            id="a record before the report of the step before",
        ),
        pytest.param(
            [(0, record(1, 1, dp=calls(3, 1, 2, 3)))],
            (2, record(1, 1, dp=calls(4, 1, 2, 9, 10))),
            ["number 3 differs"],
            id="both wait in different ones",
        ),
        pytest.param(
            [
                (2, record(3, 1, dp=calls(1, 9))),
                *(step(rank, n, dp=counts(2)) for n in (1, 2) for rank in range(4)),
            ],
            (0, record(3, 1, dp=calls(1, 8))),
            ["number 1 differs"],
            id="a record before the reports of earlier steps",
        ),
        pytest.param([fault(0, 5)], fault(2, 6), ["number 1 differs"], id="in faults"),
    ],
)
def test_ranks_that_contradict_each_other(before: list[Arrival], last: Arrival, words: list[str]) -> None:
    check = checked(*before)
    assert check.found is None and not check.poll(0.0)
    checked(last, check=check)
    assert check.found is not None
    text = check.found.cause.error
    assert all(word in text for word in words) and "a.py:1 " not in text and "b.py" not in text, text
    assert check.poll(0.0) == [check.found] and not check.poll(0.0)
    step = check.found.step or 0
    assert check.allows(step - 1) and not check.allows(step)


def test_a_peer_in_a_later_pass_has_skipped_it() -> None:
    block = tuple(replace(stage, block="eval" * (stage.name != "save")) for stage in PLAN.stages)
    check = CollectiveCheck(replace(PLAN, stages=block))
    slow = replace(IN_UPDATE, repeat_pass=2)
    checked((0, slow), (2, record(1, 2, dp=calls(9))), check=check)
    assert check.found is None, "it has left the block, with more calls"
    checked((2, replace(slow, repeat_pass=3, stage=0, calls={"actor:dp": calls(6)})), check=check)
    assert check.found is not None


@pytest.mark.parametrize("resumed_step", [0, 7])
def test_a_peer_in_the_first_step_skipped_a_collective_of_setup(resumed_step: int) -> None:
    for first, has_passed in ((resumed_step + 1, True), (resumed_step + 2, False)):
        check = CollectiveCheck(PLAN, resumed_step)
        checked((0, record(0, -1, dp=calls(2))), (2, record(first, 1, dp=calls(1))), check=check)
        assert (check.found is not None) == has_passed
