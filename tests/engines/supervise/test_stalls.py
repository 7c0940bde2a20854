"""When a stall is reported, when it ends the run, and who is named."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from meshctl.engines.node.progress import ProcessState
from meshctl.engines.supervise.cause import Cause
from meshctl.engines.supervise.stalls import (
    FIRST_STEP_S,
    FIRST_STEP_TIMES,
    JUMP_S,
    LONGEST_TIMES,
    REPORT_S,
    STOPPED_S,
    StallWatch,
    StoppedWatch,
    frames_of,
)
from meshctl.engines.supervise.waits import Worker
from meshctl.engines.supervise.watches import JUDGED_STEPS, JUDGEMENTS, LASTING_S, Fault, Note, Stragglers
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
        self.causes: list[Cause] = []
        """The reasons of the end of the run."""
        self.watch, self.now = StallWatch(placed, self._ask, Path("/dev/null"), **more), 0.0
        for number, (group, rank) in enumerate(WORKERS):
            self.watch.add(Event("started", group, rank, value={"pid": 100 + number}), 0.0)
            self.watch.add(Event("ready", group, rank), 0.0)
            for step in range(steps):
                self.step(group, rank, step + 1)

    def _ask(self, node: int, processes: Any) -> None:
        for group, rank, pid in processes:
            self.asked.append((group, rank))
            state = self.states.get((group, rank), ProcessState(state="S", stack=STACK))
            answer = [group, rank, asdict(replace(state, pid=pid))]
            self.watch.receive({"type": "stacks", "workers": [answer]}, self.now)

    def step(self, group: str, rank: int, number: int, **stages: float) -> None:
        self.watch.add(Event("step", group, rank, number, value={"stages": stages}), self.now)

    def stand(self, group: str, rank: int, **record: Any) -> None:
        kept = Record(**{"activity": Activity.CALLING, "step": 2, "stage": 1, **record})
        self.progress([[group, rank, kept.to_message(), 0.0]], [])

    def progress(self, workers: list[Any], moved: list[Any]) -> None:
        self.watch.receive({"type": "progress", "workers": workers, "moved": moved}, self.now)

    def until(self, now: float) -> list[list[str]]:
        """Returns the texts of the reports."""
        texts = []
        while self.now < now:
            self.now = min(now, self.now + 0.5)
            for found in self.watch.poll(self.now):
                if isinstance(found, Note):
                    texts.append([line.strip() for line in found.value["text"]])
                else:
                    self.causes.append(found.cause)
        return texts


def collective(count: int) -> dict[str, Any]:
    return {"collective": "actor:dp", "operation": "all_reduce", "calls": {"actor:dp": Calls(count)}}


def test_the_worker_that_waits_for_nobody_is_named_with_those_that_wait() -> None:
    run = Run()
    run.stand("train", 0, **collective(3))
    run.stand("train", 1, calls={"actor:dp": Calls(2)})
    run.stand("other", 0, activity=Activity.SENDING, stage=0, peer=0, route=0)
    assert run.until(8.5) == []
    assert run.until(12.0) == [
        [
            "stalled for 10 s: train:1 is in stage loss, step 2 and waits for nobody",
            "other:0 waits for train:0: free slot of `batch -> loss`",
            "train:0 waits for train:1: `all_reduce`",
            "train:1, innermost frame first:",
            "/home/me/parts.py:14 in helper",
            "/home/me/parts.py:20 in update",
        ]
    ]
    assert run.asked == [("train", 1)] and run.until(90.0) == [], "it is reported once"


def test_who_waits_for_a_worker_that_moves_is_no_stall() -> None:
    run = Run()
    run.stand("other", 0, activity=Activity.SENDING, stage=0, peer=0, route=0)
    assert run.until(1000.0) == [] and not run.causes


@pytest.mark.parametrize(
    ("times", "report_s"),
    [((20.0, 20.0), LONGEST_TIMES * 20.0), ((1000.0, 1.0), REPORT_S), ((), FIRST_STEP_S)],
    ids=["three times its longest time", "a slow first step is forgotten", "before a step is over"],
)
def test_when_a_stage_is_reported(times: tuple[float, ...], report_s: float) -> None:
    run = Run(steps=0)
    for number, seconds in enumerate(times, 1):
        for rank in (0, 1):
            run.step("train", rank, number, loss=seconds)
    run.stand("train", 1, step=len(times) + 1)
    assert run.until(report_s - 1) == []
    assert len(run.until(report_s + 2)) == 1


BATCH, LOSS = PLAN.stages


@pytest.mark.parametrize(
    ("own", "steps", "limit"),
    [(None, 1, 100.0), (200.0, 1, 200.0), (0.0, 1, math.inf), (None, 0, FIRST_STEP_TIMES * 100.0)],
)
def test_the_run_ends_after_its_patience_whatever_others_do(
    own: float | None, steps: int, limit: float
) -> None:
    run = Run(replace(PLAN, stages=(BATCH, replace(LOSS, patience=own))), steps)
    run.stand("train", 1)
    for step in range(2, int(min(limit, 5000.0)) - 1):
        run.until(step)
        run.step("other", 0, step)
    assert not run.causes
    run.until(min(limit, 5000.0) + 2)
    assert len(run.causes) == (limit < math.inf)
    if limit == 100.0:
        error = "it has not advanced for 100 s (`run.patience`)"
        assert run.causes[0].line == f"train:1 failed in stage loss, step 2: {error}"
        assert "parts.py:14 in helper" in run.causes[0].traceback


def test_stalls_are_found_again_after_a_group_has_restarted_for_one() -> None:
    run = Run()
    run.stand("other", 0)
    run.until(100.5)
    run.progress([], [["other", 0]])  # it was killed, and its exit is not known yet
    assert run.until(101.0) == []
    run.watch.forget("other")
    assert run.until(101.5) == []
    run.stand("train", 1)
    run.until(run.now + 100.5)
    assert [(cause.group, cause.rank) for cause in run.causes] == [("other", 0), ("train", 1)]


def test_a_worker_that_advances_again_is_reported_once() -> None:
    run = Run()
    run.stand("train", 1)
    assert len(run.until(20.0)) == 1
    run.progress([], [["train", 1]])
    assert run.until(22.0) == [["train:1 advances again, after 20 s"]]


def test_a_jump_of_the_clock_starts_all_limits_anew() -> None:
    run = Run()
    run.stand("train", 1)
    run.until(5.0)
    run.now += JUMP_S + 500
    assert run.until(run.now + 8.5) == [] and not run.causes
    assert len(run.until(run.now + 3.0)) == 1


def test_workers_that_are_done_wait_for_the_others() -> None:
    run = Run()
    run.watch.add(Event("done", "other", 0), 0.0)
    run.stand("other", 0, activity=Activity.BETWEEN_STEPS, stage=-1)
    assert run.until(1000.0) == [] and not run.causes
    for rank in range(2):
        run.watch.add(Event("done", "train", rank), run.now)
    assert run.until(1008.0) == []
    [lines] = run.until(1012.0)
    assert "other:0 is in the end, after its last step" in lines[0], "all others have ended"


def test_a_debugged_run_has_no_limits() -> None:
    run = Run(is_suspended=True)
    run.stand("train", 1)
    assert run.until(1000.0) == [] and not run.causes


def test_a_rank_in_a_collective_of_torch_waits_for_the_one_that_is_not() -> None:
    run = Run()
    frames = '  File "/venv/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n'
    run.states["train", 0] = ProcessState(state="S", stack=STACK.replace("  File", f"{frames}  File"))
    run.stand("train", 0)
    run.stand("train", 1)
    [lines] = run.until(15.0)
    assert "train:1 is in stage loss" in lines[0] and "train:0 waits for train:1" in lines[1]


@pytest.mark.parametrize("is_circle", [False, True])
def test_of_several_workers_the_one_that_is_stopped_or_waits_for_a_disk_is_named(is_circle: bool) -> None:
    record = collective(3) if is_circle else {}
    for state, first, line in (
        ("T", "train:1 is stopped (SIGSTOP) in", "train:1 is stopped; `kill -CONT 101` continues it"),
        ("D", "train:", "train:1 waits for a disk or a device in `nfs_wait_bit` (state D)"),
        ("S", "train:0 and train:1 wait for each other" if is_circle else "train:0 and train:1 are in", ""),
    ):
        run = Run()
        run.states |= {("train", 1): ProcessState(state=state, waits_in="nfs_wait_bit")}
        run.stand("train", 0, **record)
        run.stand("train", 1, **record)
        [lines] = run.until(12.0)
        assert lines[0].startswith(f"stalled for 10 s: {first}") and (not line or line in lines)
        run.until(200.0)
        assert ("it is stopped (SIGSTOP) and has not advanced for" in run.causes[0].line) == (state == "T")


def test_frames_of_libraries_come_last() -> None:
    library = '  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3 in all_reduce\n'
    found = frames_of(ProcessState(stack=STACK.replace('  File "/home', library + '  File "/home', 1)))
    assert found[:2] == ["/home/me/parts.py:14 in helper", "/home/me/parts.py:20 in update"]
    assert "all_reduce" in found[2] and len(found) == 3


# Processes that are stopped


@pytest.mark.parametrize("pids", [{}, {0: 1}, {0: 1, 1: 2}], ids=len)
def test_a_stopped_agent_or_node_process_is_reported_and_ends_a_run_that_stands(
    pids: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without node processes on this machine, an agent on another one is stopped."""
    monkeypatch.setattr("meshctl.engines.supervise.stalls.is_stopped", lambda pid: pid == 1)
    watch = StoppedWatch(100.0, lambda: pids)
    name = ("the agent of train", "the fork server", "the node process of node 0")[len(pids)]
    if not pids:
        watch.receive({"type": "stopped", "node": 3, "processes": [(name, 1)]}, 0.0)
    found = [(now, one) for now in range(300) for one in looked_at(watch, float(now), is_moving=now < 150)]
    (first, note), (last, fault) = found
    assert isinstance(note, Note) and isinstance(fault, Fault) and (first, last) == (STOPPED_S, 249)
    assert note.value["text"] == [
        f"stalled for 8 s: {name} is stopped (SIGSTOP); `kill -CONT 1` continues it"
    ]
    assert fault.cause.error.startswith(f"{name} is stopped (SIGSTOP), and no worker has advanced for 100 s")


def looked_at(watch: StoppedWatch, now: float, is_moving: bool) -> list[Any]:
    if is_moving:
        watch.add(Event("step", "train", 0, 1, value={}), now)
    return [*watch.poll(now)]


@pytest.mark.parametrize(
    ("state", "stopped", "is_named"),
    [("", True, False), ("Z", True, False), ("S", True, True), ("", False, True)],
)
def test_a_worker_that_has_ended_is_no_cause_while_its_agent_is_stopped(
    state: str, stopped: bool, is_named: bool
) -> None:
    run = Run(has_stopped=lambda: stopped)
    run.states = dict.fromkeys(WORKERS, ProcessState(state=state))
    run.stand("train", 0)
    assert bool(run.until(200.0)) == is_named == bool(run.causes)


# Ranks that are slower than their peers


ENOUGH = 1 + JUDGED_STEPS * (JUDGEMENTS + 1)


def texts_of(stragglers: Stragglers) -> list[str]:
    return [note.value["text"] for note in stragglers.poll(0.0)]


def warnings(
    *seconds: float,
    in_collectives: tuple[float, ...] = (),
    steps: int = ENOUGH,
    each: float = 1.0,
    slow_each: int = 1,
) -> list[str]:
    """Returns the warnings after some steps, which take `each` seconds. In one of `slow_each` of them the ranks
    take these seconds, and in the others as long as rank 0."""
    stragglers = Stragglers()
    for step in range(1, steps + 1):
        for rank, time in enumerate(seconds):
            time = time if step % slow_each == 0 else seconds[0]
            value: dict[str, Any] = {"stages": {"loss": time}, "seconds": each}
            if in_collectives:
                value["in_collectives"] = {"loss": in_collectives[rank]}
            stragglers.add(Event("step", "train", rank, step, value=value))
    found = texts_of(stragglers)
    assert texts_of(stragglers) == []
    return found


def test_a_slow_rank_is_named_with_its_time_and_that_of_its_peers() -> None:
    [text] = warnings(0.08, 0.8, 0.09, 0.08)
    assert text == ("train:1 is slow: stage loss takes 800 ms without collectives, and 80 ms on its peers")


@pytest.mark.parametrize(
    ("seconds", "more", "slow"),
    [
        ((0.8, 0.8, 0.8), {"in_collectives": (0.7, 0.7, 0.0)}, "train:2"),
        ((0.1, 0.8, 0.1), {"in_collectives": (0.0, 0.7, 0.0)}, ""),
        ((0.1, 0.15), {}, ""),
        ((0.001, 0.005), {}, ""),
        ((0.1,), {}, ""),
        ((0.1, 5.0), {"each": 5.0, "steps": 5 * ENOUGH, "slow_each": 3}, ""),
        ((0.1, 1.0), {"steps": JUDGED_STEPS}, ""),
        ((0.1, 1.0), {"each": LASTING_S / ENOUGH / 2}, ""),
        ((0.1, 1.0), {"each": LASTING_S / ENOUGH / 2, "steps": 3 * ENOUGH}, "train:1"),
    ],
)
def test_a_rank_is_slow_by_much_for_long_outside_of_collectives(
    seconds: tuple[float, ...], more: dict[str, Any], slow: str
) -> None:
    assert [text.partition(" is slow")[0] for text in warnings(*seconds, **more)] == ([slow] if slow else [])
