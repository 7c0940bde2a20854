"""The first cause, of everything that was said."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.engines.supervise.cause import ATTEMPT, READ_ONLY, Cause, Causes, Priority, last_words
from meshctl.run.events import Event

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


def verdict(tmp_path: Path, *heard: tuple[float, Event], log: str = "", at: float = 100.0) -> Cause | None:
    """What is settled at a time, of events that were heard at theirs."""
    path = tmp_path / "log"
    path.write_text(log)
    causes = Causes(frozenset({"train", "rollout"}), lambda group, rank: path)
    for now, event in heard:
        causes.add(event, now)
        causes.classify_exits()
        causes.classify_exits()  # after the next reading
    return causes.settled(at)


@pytest.mark.parametrize(
    ("heard", "line"),
    [
        ([(1, LOST), (1.5, RAISED)], "train:1 failed in stage metrics, step 3: ValueError: boom"),
        (
            [(1, LOST), (1.9, exited(1, -9))],
            "train:1 failed: killed by SIGKILL, which is often the kernel's when memory runs out",
        ),
        ([(1, exited(0, 3)), (1.1, exited(1, -11))], f"train:1 failed: killed by SIGSEGV{READ_ONLY}"),
        ([(1, exited(0, -6)), (1.1, exited(1, -11))], f"train:1 failed: killed by SIGSEGV{READ_ONLY}"),
        ([(1, exited(1, -11)), (1.1, RAISED)], f"train:1 failed: killed by SIGSEGV{READ_ONLY}"),
        ([(1, RAISED), (1.1, exited(1, 1))], "train:1 failed in stage metrics, step 3: ValueError: boom"),
        (
            [(1, Event("step", "train", 1, 7)), (2, exited(1, -11))],
            f"train:1 failed: killed by SIGSEGV after step 7{READ_ONLY}",
        ),
        ([(1, exited(1, -7))], "train:1 failed: killed by SIGBUS, which is often shared memory that is full"),
        ([(1, exited(1, -11, group="program"))], "program:1 failed: killed by SIGSEGV"),
        ([(1, exited(1, 0))], "train:1 failed: ended before the run was over, with exit code 0"),
        ([(1, exited(1, 7))], "train:1 failed: exit code 7"),
        ([(1, LOST)], "rollout:0 failed in stage batch, step 3: a peer is gone"),
        (
            [(1, lost("c", 0, "b", 1)), (1.5, lost("b", 1, "a", 0))],
            "b:1 failed in stage batch, step 3: a:0 is gone",
        ),
        (
            [(1, lost("c", 0, "b", 1)), (1.5, lost("b", 0, "a", 0))],
            "c:0 failed in stage batch, step 3: b:1 is gone",
        ),
        (
            [(1, lost("b", 0, "a", 0)), (1.5, lost("a", 0, "b", 0))],
            "b:0 failed in stage batch, step 3: a:0 is gone",
        ),
        (
            [(1, lost("b", 0, "a", 0)), (1.9, RAISED)],
            "train:1 failed in stage metrics, step 3: ValueError: boom",
        ),
    ],
)
def test_the_first_cause(tmp_path: Path, heard: list[tuple[float, Event]], line: str) -> None:
    cause = verdict(tmp_path, *heard)
    assert cause is not None
    assert cause.line == line


@pytest.mark.parametrize(
    "event", [exited(0, -15, stopped=True), exited(0, 0, group="program"), Event("done", "train", 0)]
)
def test_what_is_no_cause(tmp_path: Path, event: Event) -> None:
    assert verdict(tmp_path, (1, event)) is None


def test_an_end_after_the_last_step_is_no_cause(tmp_path: Path) -> None:
    assert verdict(tmp_path, (1, Event("done", "train", 0)), (2, exited(0, 0))) is None


def test_who_knows_better_is_waited_for(tmp_path: Path) -> None:
    assert verdict(tmp_path, (1, LOST), at=2.9) is None
    assert verdict(tmp_path, (1, LOST), at=3.1) is not None
    assert verdict(tmp_path, (1, LOST), (1.2, exited(1, 3)), at=1.25) is None
    assert verdict(tmp_path, (1, LOST), (1.2, RAISED), at=1.25) is not None


def test_faults_heard_together_go_by_their_own_time(tmp_path: Path) -> None:
    late = Event("fault", "rollout", 0, value={"error": "later"}, time=20.0)
    cause = verdict(
        tmp_path, (1, late), (1, Event("fault", "train", 1, value={"error": "earlier"}, time=10.0))
    )
    assert cause is not None
    assert cause.error == "earlier"


def test_setup_is_named(tmp_path: Path) -> None:
    cause = verdict(
        tmp_path, (1, Event("fault", "train", 1, value={"error": "boom", "doing": "setup of `actor`"}))
    )
    assert cause is not None
    assert cause.line == "train:1 failed in setup of `actor`: boom"


SCRIPT = """hello
[rank1]: Traceback (most recent call last):
[rank1]:   File "x.py", line 1, in <module>
[rank1]:     main()
[rank1]: {}
goodbye
"""


def test_a_script_that_raised_is_quoted_from_its_log(tmp_path: Path) -> None:
    cause = verdict(tmp_path, (1, exited(1, 1)), log=SCRIPT.format("ValueError: boom"))
    assert cause is not None
    assert (cause.priority, cause.error) == (Priority.OWN, "ValueError: boom")
    assert (
        cause.traceback
        == 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    main()\nValueError: boom'
    )


def test_a_script_that_lost_a_peer_is_a_victim(tmp_path: Path) -> None:
    cause = verdict(
        tmp_path, (1, exited(1, 1)), log=SCRIPT.format("RuntimeError: [gloo] Connection closed by peer")
    )
    assert cause is not None
    assert cause.priority == Priority.LOST


def test_an_earlier_attempts_last_words_are_not_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(SCRIPT.format("ValueError: old") + f"{ATTEMPT}2 ====\nall is well\n")
    assert last_words(str(log)) == ("", "")
    assert last_words(str(tmp_path / "none")) == ("", "")


def test_an_exit_is_classified_after_the_next_reading(tmp_path: Path) -> None:
    """The file with the last event of a worker may be read after that with its exit."""
    causes = Causes(frozenset({"train"}), lambda group, rank: tmp_path / "log")
    causes.add(exited(0, 0), 1)
    causes.classify_exits()
    causes.add(Event("done", "train", 0), 2)
    causes.classify_exits()
    assert causes.settled(100.0) is None
