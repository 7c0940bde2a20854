"""The log of a worker: every byte of its output, stamped, within its bound, and on a disk that becomes full."""

from __future__ import annotations

import re
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshctl.run import logs
from meshctl.run.directory import RunDir
from meshctl.run.logs import (
    RETRY_S,
    LogFile,
    LogLine,
    WorkerLog,
    as_time,
    lines_of_workers,
    older,
    read_tail,
    stamp,
    without_stamps,
)

NOTE = re.compile(rb"^(\d{4}-\S+Z )?==== meshctl: .* ====\n", re.MULTILINE)
MARK = stamp(0.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "logs" / "train").mkdir(parents=True)
    return RunDir(tmp_path)


def output(path: Path) -> bytes:
    """Returns what the worker wrote, of both files."""
    files = [file.read_bytes() for file in (older(path), path) if file.exists()]
    return b"".join(NOTE.sub(b"", text) for text in files).replace(MARK, b"")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0.log"


def test_each_line_begins_with_the_time_of_its_first_byte(path: Path) -> None:
    clock = Clock()
    log = LogFile(path, now=clock)
    for clock.now, data in [(1.5, b"one\ntw"), (86400.0, b"o\n"), (86400.9999, b"\nthree")]:
        log.write(data)
    assert path.read_bytes() == (
        b"1970-01-01T00:00:01.500Z one\n1970-01-01T00:00:01.500Z two\n"
        b"1970-01-02T00:00:00.999Z \n1970-01-02T00:00:00.999Z three"
    )
    assert without_stamps(path.read_text()) == "one\ntwo\n\nthree"


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"\n", b"a\r\n", b"\r 10%\r 20%", b"\xff\xfe\n"])))
def test_every_byte_survives(tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    log = LogFile(path, now=lambda: 0.0)
    log.write(b"")
    for data in chunks:
        log.write(data)
    assert output(path) == b"".join(chunks)
    lines = b"".join(chunks).split(b"\n")
    assert path.read_bytes().count(MARK) == len([*lines[:-1], *filter(None, lines[-1:])])


def test_a_log_continues_a_line_that_another_process_has_begun(path: Path) -> None:
    LogFile(path, now=lambda: 0.0).write(b"one\nhalf a")
    LogFile(path, now=lambda: 0.0).write(b" line\nnext\n")
    assert path.read_bytes() == b"".join(MARK + line for line in (b"one\n", b"half a line\n", b"next\n"))


@given(
    st.integers(400, 900),
    st.lists(st.integers(0, 60).map(lambda size: b"x" * size + b"\n") | st.just(b"\xff" * 300), max_size=60),
)
def test_a_bounded_log_has_the_newest_lines(
    tmp_path_factory: pytest.TempPathFactory, keep: int, chunks: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    log = LogFile(path, keep, now=lambda: 0.0)
    log.write(b"")
    for number, data in enumerate(chunks):
        log.write(b"%d " % number + data)
    written = b"".join(b"%d " % number + data for number, data in enumerate(chunks))
    files = [file.stat().st_size for file in (path, older(path)) if file.exists()]
    assert all(size <= keep // 2 for size in files)
    assert written.endswith(output(path))
    assert output(path) == written or sum(files) >= keep // 4


def test_a_bounded_log_states_that_lines_were_dropped(path: Path) -> None:
    log = LogFile(path, 600, now=lambda: 0.0)
    for number in range(30):
        log.write(b"line %d\n" % number)
    assert path.read_bytes().startswith(
        MARK
        + b"==== meshctl: earlier lines are in 0.log.1, and lines before it were dropped (run.logs) ====\n"
    )
    assert b"line 29" in path.read_bytes()
    assert read_tail(path, 100) == path.read_bytes()[-100:]
    assert read_tail(path, 10**6).split(MARK)[-5:] == [b"line %d\n" % number for number in range(25, 30)]


def test_bytes_that_a_full_disk_does_not_take_are_counted(path: Path) -> None:
    clock, (soft, hard) = Clock(), resource.getrlimit(resource.RLIMIT_FSIZE)
    log = LogFile(path, now=lambda: 0.0, clock=clock)
    log.write(b"first\n")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (61, hard))
        log.write(b"0123456789\n")  # the stamp and 5 bytes of it still fit
        assert path.read_bytes() == MARK + b"first\n" + MARK + b"01234"
        assert log.problem is not None and log.problem.strerror == "File too large"
        log.write(b"lost\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.write(b"too early\n")
    assert path.stat().st_size == 61 and log.problem is not None
    clock.now = RETRY_S
    log.write(b"again\n")
    assert log.problem is None
    note = b"==== meshctl: 21 bytes are missing here: File too large ====\n"
    assert path.read_bytes()[61:] == b"\n" + MARK + note + MARK + b"again\n"


def test_the_end_of_a_log_states_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "none" / "0.log"
    log = LogFile(path, now=lambda: 0.0, clock=lambda: 5.0)
    log.write(b"one\n")
    path.parent.mkdir()
    log.close()
    note = b"==== meshctl: 4 bytes are missing here: No such file or directory ====\n"
    assert path.read_bytes() == MARK + note


def log(run: RunDir, rank: int, clock: Clock, keep: int = 0) -> LogFile:
    return LogFile(run.log("train", rank), keep=keep, now=clock)


def texts(lines: Sequence[LogLine]) -> list[str]:
    return [f"{line.worker} {line.text}" for line in lines]


def test_lines_of_several_ranks_are_in_the_order_of_their_times(run: RunDir, clock: Clock) -> None:
    files = [log(run, rank, clock) for rank in (0, 1)]
    for second, rank in enumerate((0, 1, 1, 0)):
        clock.now = float(second)
        files[rank].write(f"line {second}\n".encode())
    lines = list(lines_of_workers(run, [("train", 0), ("train", 1), ("train", 2)]))
    assert texts(lines) == ["train:0 line 0", "train:1 line 1", "train:1 line 2", "train:0 line 3"]
    assert lines[1].time == "1970-01-01T00:00:01.000Z" == as_time(1.0)


def test_a_line_without_a_time_follows_the_one_before_it(run: RunDir, clock: Clock) -> None:
    log(run, 0, clock).write(b"first\n")
    with run.log("train", 0).open("a") as file:
        file.write("==== meshctl: attempt 1 ====\n")
    clock.now = 5.0
    log(run, 0, clock).write(b"\nunfinished")
    lines = list(lines_of_workers(run, [("train", 0)]))
    assert [(line.time[17:19], line.text) for line in lines] == [
        ("00", "first"),
        ("00", "==== meshctl: attempt 1 ===="),
        ("05", ""),
        ("05", "unfinished"),
    ]


def test_a_log_that_grows_and_is_rotated_meanwhile(run: RunDir, clock: Clock) -> None:
    file, reader = log(run, 0, clock, keep=600), WorkerLog(run, "train", 0)
    found = list[str]()
    for number in range(40):
        file.write(f"line {number}\nhal".encode())
        found += texts(list(reader.new(is_last=False)))
        file.write(b"f\n")
        found += texts(list(reader.new(is_last=False)))
    assert found == [f"train:0 {text}" for number in range(40) for text in (f"line {number}", "half")]


@pytest.mark.parametrize("block_bytes", [64, 1 << 16])
@pytest.mark.parametrize("since", [0, 1, 57, 99, 100])
def test_from_a_time_on(
    since: int, block_bytes: int, run: RunDir, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "BLOCK_BYTES", block_bytes)
    file = log(run, 0, clock)
    for number in range(100):
        clock.now = float(number)
        file.write(f"line {number}\nanother\n".encode())
    lines = lines_of_workers(run, [("train", 0)], as_time(since))
    assert [line.text for line in lines if line.text != "another"] == [
        f"line {number}" for number in range(since, 100)
    ]
