"""When a stall is reported, when it ends the run, and who is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshctl.engines.node.stacks import ProcessState
from meshctl.engines.supervise.stalls import (
    FIRST_STEP_TIMES,
    JUMP_S,
    LONGEST_TIMES,
    Limits,
    Stall,
    StallWatch,
    cause_of,
    frames_of,
    report_of,
)
from meshctl.engines.supervise.waits import Worker
from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan
from meshctl.run.events import Event
from meshctl.run.progress import Activity, Calls, Record
from tests.runtime.plans import call, plan

PLAN = plan(
    {"train": 2, "other": 1},
    {"actor": ("train", {"dp_size": 2}), "judge": ("other", {})},
    [call("batch", "judge.next", samples=4), call("loss", "actor.update", "batch")],
    patience=100.0,
)
WORKERS = [("train", 0), ("train", 1), ("other", 0)]
LIMITS = Limits(10.0, 60.0)
STACK = """Thread 0x00007f14915076c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f149226eb80 (most recent call first):
  File "/home/me/parts.py", line 14 in helper
  File "/home/me/parts.py", line 20 in update
"""


class Run:
    """A watch whose clock is stepped by hand, and whose workers answer at once."""

    def __init__(self, placed: Plan = PLAN, steps: int = 1, **more: Any) -> None:
        self.asked: list[Worker] = []
        self.states: dict[Worker, ProcessState] = {}
        self.watch, self.now = StallWatch(placed, self._ask, LIMITS, **more), 0.0
        for number, (group, rank) in enumerate(WORKERS):
            self.watch.add(Event("started", group, rank, value={"pid": 100 + number}), 0.0)
            self.watch.add(Event("ready", group, rank), 0.0)
            for step in range(steps):
                self.step(group, rank, step + 1)

    def _ask(self, node: int, processes: Any) -> None:
        for group, rank, pid in processes:
            self.asked.append((group, rank))
            state = self.states.get((group, rank), ProcessState(state="S", stack=STACK))
            self.watch.answer(group, rank, replace(state, pid=pid))

    def step(self, group: str, rank: int, number: int, **stages: float) -> None:
        self.watch.add(Event("step", group, rank, number, value={"stages": stages}), self.now)

    def stand(self, group: str, rank: int, **record: Any) -> None:
        kept = {"activity": Activity.CALLING, "step": 2, "stage": 1, **record}
        self.watch.stand(group, rank, Record(**kept), self.now)

    def until(self, now: float) -> list[Stall]:
        found = []
        while self.now < now:
            self.now = min(now, self.now + 0.5)
            found += self.watch.poll(self.now)
        return found


def collective(count: int) -> dict[str, Any]:
    return {"collective": "actor:dp", "operation": "all_reduce", "calls": {"actor:dp": Calls(count)}}


def test_the_worker_that_waits_for_nobody_is_named_with_those_that_wait() -> None:
    run = Run()
    run.stand("train", 0, **collective(3))
    run.stand("train", 1, calls={"actor:dp": Calls(2)})
    run.stand("other", 0, activity=Activity.SENDING, stage=0, peer=0, route=0)
    assert run.until(9.5) == []
    [stall] = run.until(12.0)
    assert stall.workers == (("train", 1),) and run.asked == [("train", 1)]
    assert stall.chain == [(("other", 0), ("train", 0)), (("train", 0), ("train", 1))]
    lines = report_of(PLAN, stall)
    assert lines[0] == "stalled for 10 s: train:1 is in stage loss, step 2 and waits for nobody"
    assert "other:0 waits for train:0: free slot of `batch -> loss`" in lines[1]
    assert [line.strip() for line in lines[-2:]] == [
        "/home/me/parts.py:14 in helper",
        "/home/me/parts.py:20 in update",
    ]
    assert run.until(90.0) == [], "it is reported once"


def test_who_waits_for_a_worker_that_moves_is_no_stall() -> None:
    run = Run()
    run.stand("other", 0, activity=Activity.SENDING, stage=0, peer=0, route=0)
    assert run.until(1000.0) == [] and run.watch.take_expired() is None


def test_a_stage_has_three_times_as_long_as_it_has_taken() -> None:
    run = Run()
    run.step("train", 0, 2, loss=20.0)
    run.step("train", 0, 3, loss=20.0)
    run.stand("train", 1)
    assert run.until(LONGEST_TIMES * 20.0 - 1) == []
    assert len(run.until(LONGEST_TIMES * 20.0 + 2)) == 1


def test_a_slow_first_step_is_forgotten() -> None:
    run = Run(steps=0)
    run.step("train", 0, 1, loss=1000.0)
    run.step("train", 0, 2, loss=1.0)
    run.step("train", 1, 1, loss=1000.0)
    run.step("train", 1, 2, loss=1.0)
    run.stand("train", 1)
    assert len(run.until(12.0)) == 1


def test_before_the_first_step_is_over_there_is_more_time() -> None:
    run = Run(steps=0)
    run.stand("train", 1, step=1)
    assert run.until(59.0) == []
    assert len(run.until(62.0)) == 1
    assert run.until(FIRST_STEP_TIMES * 100.0 - 2) == [] and run.watch.take_expired() is None
    run.until(FIRST_STEP_TIMES * 100.0 + 2)
    assert run.watch.take_expired() is not None


def test_the_run_ends_after_its_patience_whatever_others_do() -> None:
    run = Run()
    run.stand("train", 1)
    for step in range(2, 100):
        run.until(step)
        run.step("other", 0, step)
    assert run.watch.take_expired() is None
    run.until(102.0)
    stall = run.watch.take_expired()
    assert stall is not None and run.watch.take_expired() is None
    cause = cause_of(PLAN, stall, "stalls.log")
    assert (
        cause.line == "train:1 failed in stage loss, step 2: it has not advanced for 100 s (`run.patience`)"
    )
    assert "parts.py:14 in helper" in cause.traceback


def test_stalls_are_found_again_after_a_group_has_restarted_for_one() -> None:
    run = Run()
    run.stand("other", 0)
    run.until(100.5)
    stall = run.watch.take_expired()
    assert stall is not None and stall.workers == (("other", 0),)
    run.watch.move("other", 0)  # it was killed, and its exit is not known yet
    assert run.watch.take_continued() == []
    run.watch.forget("other")
    assert run.watch.take_continued() == []
    run.stand("train", 1)
    run.until(run.now + 100.5)
    stall = run.watch.take_expired()
    assert stall is not None and stall.workers == (("train", 1),)


@pytest.mark.parametrize(("own", "limit"), [(200.0, 200.0), (0.0, None), (None, 100.0)])
def test_a_stage_has_its_own_patience(own: float | None, limit: float | None) -> None:
    batch, loss = PLAN.stages
    run = Run(replace(PLAN, stages=(batch, replace(loss, patience=own))))
    run.stand("train", 1)
    run.until((limit or 5000.0) - 1)
    assert run.watch.take_expired() is None
    run.until((limit or 5000.0) + 2)
    assert (run.watch.take_expired() is None) == (limit is None)


def test_a_worker_that_advances_again_is_reported_once() -> None:
    run = Run()
    run.stand("train", 1)
    assert len(run.until(12.0)) == 1 and run.watch.take_continued() == []
    run.until(20.0)
    run.watch.move("train", 1)
    assert run.watch.take_continued() == [(("train", 1), 20.0)] and run.watch.take_continued() == []


def test_a_jump_of_the_clock_starts_all_limits_anew() -> None:
    run = Run()
    run.stand("train", 1)
    run.until(5.0)
    run.now += JUMP_S + 500
    assert run.until(run.now + 9.0) == [] and run.watch.take_expired() is None
    assert len(run.until(run.now + 3.0)) == 1


def test_workers_that_are_done_wait_for_the_others() -> None:
    run = Run()
    run.watch.add(Event("done", "other", 0), 0.0)
    run.stand("other", 0, activity=Activity.BETWEEN_STEPS, stage=-1)
    assert run.until(1000.0) == [] and run.watch.take_expired() is None
    for rank in range(2):
        run.watch.add(Event("done", "train", rank), run.now)
    assert run.until(1009.0) == []
    [stall] = run.until(1012.0)
    assert stall.workers == (("other", 0),), "all others have ended"
    assert "the end, after its last step" in report_of(PLAN, stall)[0]


def test_a_debugged_run_has_no_limits() -> None:
    run = Run(is_suspended=True)
    run.stand("train", 1)
    assert run.until(1000.0) == [] and run.watch.take_expired() is None


def test_workers_in_the_same_stage_are_one_report_and_the_stopped_one_is_first() -> None:
    run = Run()
    run.states["train", 1] = ProcessState(state="T")
    run.stand("train", 0)
    run.stand("train", 1)
    [stall] = run.until(12.0)
    assert stall.workers == (("train", 1), ("train", 0))
    lines = report_of(PLAN, stall)
    assert lines[0] == "stalled for 10 s: train:1 is stopped (SIGSTOP) in stage loss, step 2"
    assert lines[1].strip() == "train:1 is stopped; `kill -CONT 101` continues it"


def test_a_rank_in_a_collective_of_torch_waits_for_the_one_that_is_not() -> None:
    run = Run()
    frames = '  File "/venv/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n'
    run.states["train", 0] = ProcessState(state="S", stack=STACK.replace("  File", f"{frames}  File"))
    run.stand("train", 0)
    run.stand("train", 1)
    [stall] = run.until(15.0)
    assert stall.workers == (("train", 1),) and stall.chain == [(("train", 0), ("train", 1))]


def test_a_circle_is_one_stall() -> None:
    run = Run()
    run.stand("train", 0, **collective(3))
    run.stand("train", 1, **collective(3))
    [stall] = run.until(12.0)
    assert {*stall.workers} == {("train", 0), ("train", 1)}
    assert "wait for each other" in report_of(PLAN, stall)[0]


def test_a_stopped_worker_in_a_circle_is_the_cause() -> None:
    run = Run()
    run.states["train", 0] = ProcessState(state="T")
    run.stand("train", 0, **collective(3))
    run.stand("train", 1, **collective(3))
    [stall] = run.until(12.0)
    assert report_of(PLAN, stall)[0] == "stalled for 10 s: train:0 is stopped (SIGSTOP) in stage loss, step 2"
    run.until(200.0)
    expired = run.watch.take_expired()
    assert expired is not None
    error = "it is stopped (SIGSTOP) and has not advanced for 100 s (`run.patience`)"
    assert cause_of(PLAN, expired, "log").line == f"train:0 failed in stage loss, step 2: {error}"


def test_a_worker_that_waits_for_a_disk_is_first() -> None:
    run = Run()
    run.states["train", 1] = ProcessState(state="D", waits_in="nfs_wait_bit")
    run.states["train", 0] = ProcessState(state="S")
    run.stand("train", 0)
    run.stand("train", 1)
    [stall] = run.until(12.0)
    assert stall.workers[0] == ("train", 1)
    assert [line.strip() for line in report_of(PLAN, stall)[1:]] == [
        "train:1 waits for a disk or a device in `nfs_wait_bit` (state D)"
    ]


def test_frames_of_libraries_come_last() -> None:
    library = '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n'
    found = frames_of(ProcessState(stack=STACK.replace('  File "/home', library + '  File "/home', 1)))
    assert found[:2] == ["/home/me/parts.py:14 in helper", "/home/me/parts.py:20 in update"]
    assert "all_reduce" in found[2] and len(found) == 3


def test_a_worker_that_waits_for_a_checkpoint_shows_the_thread_that_writes_it() -> None:
    background = f'  File "{PACKAGE_DIR}/runtime/background.py", line'
    disk = '  File "/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py", line 9 in write\n'
    main = f'Current thread 0x3 (most recent call first):\n  File "/lib/python3.11/threading.py", line 1 in join\n{background} 3 in wait\n'
    stack = f"Thread 0x1 (most recent call first):\n{disk}{background} 4 in _run\n\n{main}"
    assert frames_of(ProcessState(stack=stack)) == [
        "/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/filesystem.py:9 in write"
    ]
    assert frames_of(ProcessState(stack=main))[0] == "/lib/python3.11/threading.py:1 in join"
