"""The first cause among the faults of all groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.engines.supervise.cause import (
    ATTEMPT,
    POLL_S,
    READ_ONLY,
    Cause,
    Causes,
    Priority,
    last_words,
)
from meshctl.package import PACKAGE_DIR
from meshctl.run.events import Event
from meshctl.run.progress import Activity, Record
from tests.runtime.plans import call, plan

RAISED = Event(
    "fault",
    "train",
    1,
    3,
    "metrics",
    {"error": "ValueError: boom", "traceback": "Traceback...", "lost": False},
)
LOST = Event("fault", "rollout", 0, 3, "batch", {"error": "a peer is gone", "lost": True})


def lost(group: str, rank: int, peer: str, number: int) -> Event:
    return Event(
        "fault",
        group,
        rank,
        3,
        "batch",
        {"error": f"{peer}:{number} is gone", "lost": True, "peer": [peer, number]},
    )


def exited(rank: int, code: int, stopped: bool = False, group: str = "train") -> Event:
    return Event("exited", group, rank, value={"pid": 1, "code": code, "stopped": stopped})


def fault(rank: int, error: str, time: float = 0.0, **more: str) -> Event:
    return Event("fault", "train", rank, value={"error": error, **more}, time=time)


PLAN = plan(
    {"train": 2, "rollout": 1},
    {"actor": ("train", {"dp_size": 2}), "judge": ("rollout", {})},
    [call("batch", "judge.next", samples=4), call("update", "actor.update", "batch")],
)
OUT_OF_MEMORY = Event("exited", "train", 1, value={"pid": 1, "code": -9, "out_of_memory": True})


def head(path: Path) -> Causes:
    return Causes(PLAN, lambda group, rank: path)


Arrival = tuple[int, Event | Cause | Record]
"""The poll in which the head reads an event, finds a fault, or reads the record of train:1."""


def verdict(tmp_path: Path, *arrivals: Arrival, log: str = "", poll: int = 100) -> Cause | None:
    """Returns the settled cause after a poll."""
    path = tmp_path / "log"
    path.write_text(log)
    causes = head(path)
    for number in range(poll + 1):
        for one in [one for when, one in arrivals if when == number]:
            if isinstance(one, Event):
                causes.add(one)
            elif isinstance(one, Cause):
                causes.record(one)
            else:
                causes.place("train", 1, one)
        causes.end_poll(float(number))
    return causes.settled


@pytest.mark.parametrize(
    ("arrivals", "line"),
    [
        ([(1, LOST), (30, RAISED)], "train:1 failed in stage metrics, step 3: ValueError: boom"),
        (
            [(1, LOST), (30, exited(1, -9))],
            "train:1 failed: killed by SIGKILL",
        ),
        ([(1, OUT_OF_MEMORY)], "train:1 failed: killed by SIGKILL because memory ran out"),
        ([(1, exited(0, 3)), (2, exited(1, -11))], "train:1 failed: killed by SIGSEGV"),
        ([(1, exited(0, -6)), (2, exited(1, -11))], "train:1 failed: killed by SIGSEGV"),
        ([(1, exited(1, -11)), (2, RAISED)], "train:1 failed: killed by SIGSEGV"),
        ([(1, RAISED), (2, exited(1, 1))], "train:1 failed in stage metrics, step 3: ValueError: boom"),
        (
            [(1, Event("step", "train", 1, 7)), (2, exited(1, -11))],
            "train:1 failed: killed by SIGSEGV after step 7",
        ),
        (
            [(1, exited(1, -7))],
            "train:1 failed: killed by SIGBUS, which often means that shared memory is full",
        ),
        ([(1, exited(1, -11, group="program"))], "program:1 failed: killed by SIGSEGV"),
        ([(1, exited(1, 0))], "train:1 failed: ended before the run was over, with exit code 0"),
        ([(1, exited(1, 7))], "train:1 failed: exit code 7"),
        (
            [(1, Event("phase", "train", 1, value={"phase": "setup of `actor`"})), (2, exited(1, -11))],
            "train:1 failed in setup of `actor`: killed by SIGSEGV",
        ),
        (
            [(1, Event("phase", "train", 1, value={"phase": "connection"})), (2, exited(1, -11))],
            "train:1 failed in the connection: killed by SIGSEGV",
        ),
        ([(1, LOST)], "rollout:0 failed in stage batch, step 3: a peer is gone"),
        ([(1, fault(1, "later", 20.0)), (1, fault(0, "earlier", 10.0))], "train:0 failed: earlier"),
        ([(1, fault(1, "boom", doing="setup of `actor`"))], "train:1 failed in setup of `actor`: boom"),
        (
            [(1, LOST), (33, exited(1, 0))],
            "train:1 failed: ended before the run was over, with exit code 0",
        ),
        (
            [(1, lost("c", 0, "b", 1)), (30, lost("b", 1, "a", 0))],
            "b:1 failed in stage batch, step 3: a:0 is gone",
        ),
        (
            [(1, lost("c", 0, "b", 1)), (30, lost("b", 0, "a", 0))],
            "c:0 failed in stage batch, step 3: b:1 is gone",
        ),
        (
            [(1, lost("b", 0, "a", 0)), (30, lost("a", 0, "b", 0))],
            "b:0 failed in stage batch, step 3: a:0 is gone",
        ),
        (
            [(1, lost("b", 0, "a", 0)), (33, RAISED)],
            "train:1 failed in stage metrics, step 3: ValueError: boom",
        ),
    ],
)
def test_the_first_cause(tmp_path: Path, arrivals: list[Arrival], line: str) -> None:
    cause = verdict(tmp_path, *arrivals)
    assert cause is not None
    assert cause.line == line


DONE = Event("done", "train", 0)


@pytest.mark.parametrize(
    "arrivals",
    [
        [(1, exited(0, -15, stopped=True))],
        [(1, exited(0, 0, group="program"))],
        [(1, DONE)],
        [(1, DONE), (2, exited(0, 0))],
        [(1, exited(0, 0)), (2, DONE)],  # the file with the last event of a worker may be read later
    ],
)
def test_what_is_no_cause(tmp_path: Path, arrivals: list[Arrival]) -> None:
    assert verdict(tmp_path, *arrivals) is None


AGENT = Event("fault", "train", value={"error": "the fork server is gone", "lost": True})


@pytest.mark.parametrize(
    "victims", [(LOST,), (AGENT,), (exited(0, -6),), (lost("rollout", 0, "train", 1), AGENT)]
)
def test_the_loss_of_a_node_comes_before_what_follows_from_it(
    tmp_path: Path, victims: tuple[Event, ...]
) -> None:
    """Its connection ends before its processes, but the head may read what they and their peers report first."""
    lost_node = Cause(Priority.NODE, "the connection to node 1 is lost")
    cause = verdict(tmp_path, *((1, victim) for victim in victims), (5, lost_node))
    assert cause is not None and cause.line == lost_node.error


@pytest.mark.parametrize(
    ("activity", "stage", "line"),
    [
        (Activity.CALLING, 1, f"stage update, step 8: killed by SIGSEGV{READ_ONLY}"),
        (Activity.CALLING, 0, "stage batch, step 8: killed by SIGSEGV"),
        (Activity.RECEIVING, 1, "stage update, step 8: killed by SIGSEGV"),
        (Activity.SAVING, -1, "the checkpoint, step 8: killed by SIGSEGV"),
        (Activity.CLOSING, -1, "close, step 8: killed by SIGSEGV"),
    ],
)
def test_a_death_is_reported_with_what_the_worker_was_doing(
    tmp_path: Path, activity: Activity, stage: int, line: str
) -> None:
    """Only an endpoint that has received a batch can have written into one."""
    record = Record(activity, step=8, stage=stage)
    before = Event("phase", "train", 1, value={"phase": "first sync"}), Event("ready", "train", 1)
    arrivals = (*before, Event("step", "train", 1, 7), record, exited(1, -11))
    cause = verdict(tmp_path, *((0, one) for one in arrivals))
    assert cause is not None and cause.line == f"train:1 failed in {line}"


def test_who_knows_better_is_waited_for(tmp_path: Path) -> None:
    assert verdict(tmp_path, (1, LOST), poll=66) is None
    assert verdict(tmp_path, (1, LOST), poll=67) is not None
    assert verdict(tmp_path, (1, LOST), (8, exited(1, 3)), poll=10) is None
    assert verdict(tmp_path, (1, LOST), (8, exited(1, 3)), poll=11) is not None
    assert verdict(tmp_path, (1, LOST), (8, RAISED), poll=8) is not None


def test_a_head_that_stood_still_reads_what_arrived_meanwhile(tmp_path: Path) -> None:
    """Everything stands still for a minute after the victim's report. The exit of the worker that vanished is
    read in the next poll, and is decided in the one after that."""
    causes = head(tmp_path / "log")
    causes.add(LOST)
    causes.end_poll(0.0)
    causes.add(exited(1, 0))
    causes.end_poll(60.0)
    assert causes.settled is None
    for number in range(3):
        causes.end_poll(61.0 + number)
    assert causes.settled is not None
    assert causes.settled.line == "train:1 failed: ended before the run was over, with exit code 0"


def test_looks_that_something_wakes_early_count_as_one(tmp_path: Path) -> None:
    causes = head(tmp_path / "log")
    causes.add(LOST)
    for number in range(1000):
        causes.end_poll(number * POLL_S / 1000)
    assert causes.settled is None


SCRIPT = """hello
[rank1]: Traceback (most recent call last):
[rank1]:   File "x.py", line 1, in <module>
[rank1]:     main()
[rank1]: {}
goodbye
"""


TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    main()\nValueError: boom'


@pytest.mark.parametrize(
    ("error", "priority", "traceback"),
    [
        ("ValueError: boom", Priority.OWN, TRACE),
        ("RuntimeError: [gloo] Connection closed by peer", Priority.LOST, ""),
    ],
)
def test_a_script_that_raised_is_quoted_from_its_log_and_may_be_a_victim(
    tmp_path: Path, error: str, priority: Priority, traceback: str
) -> None:
    cause = verdict(tmp_path, (1, exited(1, 1)), log=SCRIPT.format(error))
    assert cause is not None and (cause.priority, cause.error) == (priority, error)
    assert not traceback or cause.traceback == traceback


def test_last_words_have_no_times_and_may_be_in_two_files(tmp_path: Path) -> None:
    log, mark = tmp_path / "0.log", "2026-11-23T13:14:15.123Z "
    log.with_name("0.log.1").write_text(
        f"{mark}Traceback (most recent call last):\n{mark}  File 'x', line 1\n"
    )
    log.write_text(f"{mark}==== meshctl: earlier lines are in 0.log.1 ====\n{mark}ValueError: boom\n")
    last, text = last_words(str(log))
    assert text.startswith("Traceback (most recent call last):\n  File 'x', line 1\n")
    assert last.endswith("boom")


def test_an_earlier_attempts_last_words_are_not_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(SCRIPT.format("ValueError: old") + f"{ATTEMPT}2 ====\nall is well\n")
    assert last_words(str(log)) == ("", "")
    assert last_words(str(tmp_path / "none")) == ("", "")


def test_the_stack_of_a_fatal_error_ends_where_the_user_code_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ours = f'  File "{PACKAGE_DIR}/runtime/loop.py", line 9 in run'
    user = ["Current thread 0x2 (most recent call first):", '  File "/home/me/parts.py", line 12 in take']
    report = [
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x1 (most recent call first):",
        ours,
        "",
        *user,
    ]
    log.write_text("\n".join([*report, ours, "", "Extension modules: numpy"]))
    assert last_words(str(log)) == (report[0], "\n".join([report[0], *user]))
    log.write_text("\n".join([report[0], user[0], ours]))
    assert last_words(str(log)) == (report[0], "\n".join([report[0], user[0], ours]))
