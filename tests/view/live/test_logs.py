"""The lines of log files: complete, printable and bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from meshctl.run.logs import LogFile
from meshctl.view.live.output import MAX_LINE_LETTERS, LogTail, printable

MAX = 1 << 10
"""Maximum number of bytes per call."""


def log(run: RunDir, group: str, rank: int, text: str | bytes) -> Path:
    path = run.log(group, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def test_complete_lines_once_each(run: RunDir) -> None:
    assert LogTail(run.log("train", 0)).new_lines(MAX) == [], "a file that is missing"
    assert LogTail(run.path).new_lines(MAX) == [], "a folder"
    tail = LogTail(log(run, "train", 0, "one\ntw"))
    assert tail.new_lines(MAX) == ["one"] and tail.new_lines(MAX) == []
    later = LogTail(run.log("train", 0), from_end=True)
    log(run, "train", 0, "o\n\n  \n2026-11-23T13:14:15.123Z three\n2026-11-23T13:14:15.124Z \n")
    assert tail.new_lines(MAX) == ["two", "three"], "without times and empty lines"
    assert later.new_lines(MAX) == ["o", "three"], "what an earlier attempt has written is skipped"


def test_a_call_reads_a_bounded_amount(run: RunDir) -> None:
    tail = LogTail(log(run, "train", 0, "x\n" * MAX))
    assert 0 < len(tail.new_lines(MAX)) <= MAX
    log(run, "train", 0, b"y" * 3 * MAX)
    assert [len(line) for line in tail.new_lines(MAX)] == [MAX], "a line without an end is shown too"
    log(run, "train", 0, "\nlast\n")
    assert tail.new_lines(MAX) == ["last"]


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


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_bounded_log_is_read_across_its_files(run: RunDir, is_complete: bool) -> None:
    path = run.log("train", 0)
    path.parent.mkdir(parents=True)
    file, tail, read = LogFile(path, 1000), LogTail(path), list[str]()
    for number in range(100):
        file.write(b"line %d\n" % number)
        if number % 7 == 0:
            while lines := tail.new_lines(MAX, is_complete=is_complete):
                read += lines
    assert read == [f"line {number}" for number in range(99)]
