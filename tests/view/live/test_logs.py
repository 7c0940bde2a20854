"""The lines of log files: complete, printable and bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from meshctl.run.logs import LogFile, WorkerLog
from meshctl.view.live.output import MAX_LINE_LETTERS, RankOutput, printable

MAX = 1 << 10
"""Maximum number of bytes per call."""


def log(run: RunDir, group: str, rank: int, text: str | bytes) -> Path:
    path = run.log(group, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def output(run: RunDir, *, is_followed: bool = False) -> RankOutput:
    return RankOutput("train:0", WorkerLog(run, "train", 0), is_followed, False, set(), 0)


def test_complete_lines_once_each(run: RunDir) -> None:
    assert output(run).new_lines(MAX) == [], "a file that is missing"
    log(run, "train", 0, "one\ntw")
    seen, later = output(run), output(run)
    assert seen.new_lines(MAX) == ["one"] and seen.new_lines(MAX) == []
    later.log.skip()
    log(run, "train", 0, "o\n\n  \n2026-11-23T13:14:15.123Z three\n2026-11-23T13:14:15.124Z \n")
    assert seen.new_lines(MAX) == ["two", "three"], "without times and empty lines"
    assert later.new_lines(MAX) == ["o", "three"], "what an earlier attempt has written is skipped"


def test_a_call_reads_a_bounded_amount(run: RunDir) -> None:
    log(run, "train", 0, "x\n" * MAX)
    seen = output(run)
    assert 0 < len(seen.new_lines(MAX)) <= MAX
    log(run, "train", 0, b"y" * 3 * MAX + b"\nlast\n")
    assert [len(line) for line in seen.new_lines(MAX)] == [MAX - len("\nlast\n"), len("last")]


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


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_bounded_log_is_read_across_its_files(run: RunDir, is_followed: bool) -> None:
    path = run.log("train", 0)
    path.parent.mkdir(parents=True)
    file, seen, read = LogFile(path, 1000), output(run, is_followed=is_followed), list[str]()
    for number in range(100):
        file.write(b"line %d\n" % number)
        if number % 7 == 0:
            read += seen.new_lines(MAX)
    assert read == [f"line {number}" for number in range(99)]
