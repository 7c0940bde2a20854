"""The progress record as a worker writes it, and as its node process reads it."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from time import perf_counter

import pytest
import torch

from meshctl.engines.node.progress import POLL_S, Records, recorded_workers
from meshctl.plan.model import Plan
from meshctl.run.progress import DIGESTS, RECORD_BYTES, ROWS, VARIABLE, Activity, Calls, Record
from meshctl.runtime.progress import Form, Progress
from tests.runtime.plans import call, plan

SUM = ("all_reduce", "sum", torch.float32, 4)
MAX = ("all_reduce", "max", torch.float32, 4)


def two_groups() -> Plan:
    return plan(
        {"one": 2, "two": 3},
        {"maker": ("one", {}), "taker": ("two", {})},
        [call("batch", "maker.next", samples=6), call("loss", "taker.update", "batch")],
    )


def test_a_record_has_the_position_of_the_worker() -> None:
    progress = Progress(attempt=2)
    progress.begin_step(7)
    progress.next_pass("eval")
    progress.enter(Activity.CALLING, 3, 12.5)
    assert progress.record == Record(Activity.CALLING, 2, 7, 0, 1, 3, 12.5)
    assert progress.end_step() == {}
    record = progress.record
    assert (record.step, record.visit, record.stage, record.activity) == (7, 1, -1, Activity.BETWEEN_STEPS)
    progress.begin_step(7)
    assert progress.record.visit == 1, "a step that runs again, at the end of the run"
    progress.begin_step(8)
    assert progress.record.visit == 0


def test_the_counts_of_a_dropped_step_are_discarded_at_the_end_of_the_run() -> None:
    progress = Progress()
    calls = progress.calls_of("actor:dp")
    progress.begin_step(3)
    with calls.call(SUM):
        pass
    assert progress.record.calls["actor:dp"].count == 1
    progress.begin_end(2, visit=1)
    record = progress.record
    assert (record.activity, record.step, record.visit) == (Activity.BETWEEN_STEPS, 2, 1)
    assert not record.calls


def test_the_running_collective_is_in_the_record() -> None:
    progress = Progress()
    calls = progress.calls_of("actor:dp")
    before = perf_counter()
    with calls.call(SUM):
        record = progress.record
        assert record.collective == "actor:dp" and record.operation == "all_reduce sum float32 4"
        assert record.site.rpartition(":")[0].endswith("test_progress.py")
        assert before <= record.collective_since <= perf_counter()
        assert record.calls["actor:dp"].count == 1
    assert progress.record.collective == ""
    with suppress(ConnectionError), calls.call(SUM):
        raise ConnectionError
    assert progress.record.collective == "actor:dp", "the record of a fault names it"


def test_counts_and_digests_begin_anew_with_each_step() -> None:
    progress = Progress()
    calls = progress.calls_of("actor:dp")
    found = []
    for _ in range(2):
        for form in (SUM, MAX):
            with calls.call(form):
                pass
        found.append(progress.end_step()["actor:dp"])
    assert found[0]["count"] == found[1]["count"] == 2
    assert found[0]["digest"] == found[1]["digest"]
    assert list(found[0]["sites"].values()) == [2]
    assert "sites" not in found[1], "they have not changed"


@pytest.mark.parametrize(
    "others",
    [
        [MAX, SUM],
        [SUM, ("all_reduce", "max", torch.int32, 4)],
        [SUM, ("all_reduce", "sum", torch.float32, 4)],
        [SUM, ("all_reduce", "max", torch.float32, (2, 2))],
    ],
    ids=["order", "dtype", "operation", "shape"],
)
def test_what_differs_is_in_the_digest(others: list[Form]) -> None:
    digests = []
    for forms in ([SUM, MAX], others):
        progress = Progress()
        for form in forms:
            with progress.calls_of("actor:dp").call(form):
                pass
        digests.append(progress.end_step()["actor:dp"]["digest"])
    assert digests[0] != digests[1]


def test_the_first_call_that_differs_is_known_while_the_record_has_its_digest() -> None:
    one, other = Progress(), Progress()
    for number in range(DIGESTS + 3):
        with one.calls_of("actor:dp").call(SUM):
            pass
        with other.calls_of("actor:dp").call(MAX if number == 5 else SUM):
            pass
    own, theirs = one.record.calls["actor:dp"], other.record.calls["actor:dp"]
    assert own.first_difference(theirs) == theirs.first_difference(own) == 6
    assert own.first_difference(own) == 0
    assert own.first_difference(Calls(4, (17,))) == 4 and own.first_difference(Calls(3, (17,))) == 0


def test_process_groups_without_room_are_counted_and_not_recorded() -> None:
    progress = Progress()
    for number in range(ROWS + 2):
        with progress.calls_of(f"c{number}:dp").call(SUM):
            pass
    assert len(progress.record.calls) == ROWS
    assert len(progress.end_step()) == ROWS + 2


def test_the_node_process_reads_what_stands() -> None:
    records = Records()
    records.begin(two_groups(), 0)
    assert recorded_workers(two_groups(), 0) == [("one", 0), ("one", 1), ("two", 0), ("two", 1), ("two", 2)]
    shared = memoryview(mmap.mmap(records.descriptor, 0))
    progress = Progress(shared[3 * RECORD_BYTES : 4 * RECORD_BYTES])
    progress.begin_step(1)
    assert records.changes(POLL_S) == ([], []), "one poll knows nothing"
    progress.enter(Activity.CALLING, 1, 1.25 * POLL_S)
    found = records.changes(2 * POLL_S)[0]
    assert {seconds for *_, seconds in found} == {POLL_S}, "those that have not begun, since the first poll"
    standing = {(group, rank) for group, rank, *_ in found}
    assert standing == {("one", 0), ("one", 1), ("two", 0), ("two", 2)}, "two:1 has moved"
    [[group, rank, message, seconds]] = records.changes(3 * POLL_S)[0]
    assert (group, rank, Record.of_message(message)) == ("two", 1, progress.record)
    assert seconds == 1.75 * POLL_S, "since it has entered the stage"
    assert records.changes(4 * POLL_S) == ([], []), "it was reported"
    progress.wait_for(2, 0)
    assert records.changes(5 * POLL_S) == ([], [("two", 1)]), "it has moved"
    [[*_, seconds]] = records.changes(6 * POLL_S)[0]
    assert seconds == POLL_S, "since the change was seen"
    records.begin(two_groups(), 0)
    assert records.of_failed([3])[0][2]["stage"] == -1, "a new attempt begins with empty records"


def test_another_process_writes_its_record() -> None:
    records = Records()
    records.begin(two_groups(), 0)
    if not (pid := os.fork()):
        Progress.from_environ({VARIABLE: f"{records.descriptor}:2"}, 5).begin_step(9)
        os._exit(0)
    os.waitpid(pid, 0)
    [[group, rank, message, _]] = records.of_failed([2])
    assert (group, rank, message["attempt"], message["step"]) == ("two", 0, 5, 9)
