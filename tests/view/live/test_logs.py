"""The newest lines of log files: complete, printable, bounded, and without an effect on the run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from meshctl.run.directory import RunDir, Start
from meshctl.run.events import Event
from meshctl.view.live import for_terminal
from meshctl.view.live.dashboard import Picture, newest_logs
from meshctl.view.live.logs import MAX_LINE_LETTERS, MAX_READ_BYTES, GroupLogs, LogTail, printable
from meshctl.view.live.plain import MAX_LOG_LINES, PlainOutput
from meshctl.view.live.run_state import RunState
from tests.view.conftest import Pinned
from tests.view.live.test_dashboard import drawn
from tests.view.recorded import make_plan


def log(run: RunDir, group: str, rank: int, text: str | bytes) -> Path:
    path = run.log(group, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def test_complete_lines_once_each(run: RunDir) -> None:
    tail = LogTail(log(run, "train", 0, "one\ntw"))
    assert tail.new_lines() == ["one"] and tail.new_lines() == []
    log(run, "train", 0, "o\n\n  \nthree\n")
    assert tail.new_lines() == ["two", "three"]


def test_a_file_that_is_missing_or_no_file_has_no_lines(run: RunDir) -> None:
    assert LogTail(run.log("train", 0)).new_lines() == []
    run.path.joinpath("folder").mkdir(parents=True)
    assert LogTail(run.path / "folder").new_lines() == []


def test_what_an_earlier_attempt_has_written_is_skipped(run: RunDir) -> None:
    tail = LogTail(log(run, "train", 0, "old\n"), from_end=True)
    log(run, "train", 0, "new\n")
    assert tail.new_lines() == ["new"]


@pytest.mark.parametrize(("attempt", "shown"), [(0, ["old", "new"]), (1, ["new"])])
def test_a_run_that_continues_shows_new_lines_only(run: RunDir, attempt: int, shown: list[str]) -> None:
    run.write_start(Start((), attempt))
    log(run, "train", 0, "old\n")
    stream = io.StringIO()
    view = for_terminal(make_plan(), run, stream, {})
    log(run, "train", 0, "new\n")
    view.on_end(0, "")
    assert stream.getvalue().splitlines() == [f"train:0: {line}" for line in shown]


def test_a_call_reads_a_bounded_amount(run: RunDir) -> None:
    tail = LogTail(log(run, "train", 0, "x\n" * MAX_READ_BYTES))
    assert 0 < len(tail.new_lines()) <= MAX_READ_BYTES
    log(run, "train", 0, b"y" * 3 * MAX_READ_BYTES)
    assert [len(line) for line in tail.new_lines()] == [MAX_LINE_LETTERS], (
        "a line without an end is shown too"
    )
    log(run, "train", 0, "\nlast\n")
    assert tail.new_lines() == ["last"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone\x1b(B", "gone"),
        (" 10%|#\r 20%|##\r", " 20%|##"),
        ("windows\r", "windows"),
        ("a\tb\x07\u202e", "a   b??"),
        ("\ufffd", "\ufffd"),
        ("z" * 1000, "z" * MAX_LINE_LETTERS),
    ],
)
def test_a_line_as_a_terminal_may_show_it(line: str, shown: str) -> None:
    assert printable(line) == shown


def test_the_newest_line_of_a_group_is_that_of_any_rank(run: RunDir) -> None:
    logs = GroupLogs(make_plan(), run)
    log(run, "rollout", 1, "warning: slow\n")
    log(run, "train", 0, "loading\n")
    assert logs.newest() == {"rollout": (1, "warning: slow"), "train": (0, "loading")}
    log(run, "rollout", 0, "ready\n")
    assert logs.newest()["rollout"] == (0, "ready")


def test_the_dashboard_shows_it_until_a_group_has_run_a_step(run: RunDir, pinned: Pinned) -> None:
    state = RunState(make_plan())
    newest = {"rollout": (1, "loading [bold]1.2 GB[/bold]"), "train": (0, "x" * 99)}
    hint = "follow a rank: tail -f RUN/logs/GROUP/RANK.log"
    pinned("dashboard_logs.txt", drawn(Picture.of(state, 4.25, "", newest_logs(state, newest, hint))))
    state.on_event(Event("step", "train", 0, 1, value={"seconds": 1.0}))
    assert "xxx" not in drawn(Picture.of(state, 4.25, "", newest_logs(state, newest, hint)))


@pytest.mark.parametrize("width", [40, 80])
def test_the_dashboard_shows_the_whole_path_to_follow(width: int) -> None:
    state = RunState(make_plan())
    hint = "follow a rank: tail -f /home/somebody/jobs/runs/name/20261122-161855/logs/GROUP/RANK.log"
    lines = drawn(
        Picture.of(state, 4.25, "", newest_logs(state, {"train": (0, "x" * 99)}, hint)), width
    ).splitlines()
    assert "".join(hint.split()) in "".join("".join(lines).split())
    assert sum("xx" in line for line in lines) == 1 and max(map(len, lines)) <= width


def test_plain_output_prints_lines_of_rank_0_until_the_first_step(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(), run, stream, GroupLogs(make_plan(), run))
    log(run, "rollout", 0, "loading\n")
    log(run, "rollout", 1, "of rank 1\n")
    view.print_logs()
    log(run, "train", 0, "late\n")
    view.on_row({"step": 1, "time": 1.0})
    log(run, "train", 0, "too late\n")
    view.on_row({"step": 2, "time": 1.1})
    view.on_end(0, "")
    assert stream.getvalue().splitlines() == [
        "rollout:0: loading",
        "train:0: late",
        "step 1/12  1.0 s",
        "step 2/12  1.1 s",
    ]


def test_plain_output_prints_so_many_lines_and_names_the_file(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(), run, stream, GroupLogs(make_plan(), run))
    path = log(run, "train", 0, "again\n" * 500)
    view.on_end(0, "")
    assert stream.getvalue().splitlines() == ["train:0: again"] * MAX_LOG_LINES + [f"train:0: more in {path}"]


def test_plain_output_leaves_tracebacks_of_components_to_the_launcher(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(), run, stream, GroupLogs(make_plan(), run))
    log(run, "train", 0, "loading\nTraceback (most recent call last):\n  File x\nValueError: y\n")
    view.on_end(0, "")
    assert stream.getvalue().splitlines() == ["train:0: loading"]


def test_plain_output_shows_how_to_follow_a_rank(run: RunDir) -> None:
    stream = io.StringIO()
    view = PlainOutput(make_plan(), run, stream, GroupLogs(make_plan(), run))
    view.on_attempt(0, None)
    view.on_end(0, "")
    assert f"follow a rank: tail -f '{run.path}/logs/GROUP/RANK.log'" in stream.getvalue()
