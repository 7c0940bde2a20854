from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from meshctl.run import logs
from meshctl.run.directory import RunDir
from meshctl.run.logs import LogFile, LogLine, WorkerLog, as_time, lines_of_workers


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "logs" / "train").mkdir(parents=True)
    return RunDir(tmp_path)


def log(run: RunDir, rank: int, clock: Clock, keep: int = 0) -> LogFile:
    return LogFile(run.log("train", rank), keep=keep, now=clock)


def texts(lines: Sequence[LogLine]) -> list[str]:
    return [f"{line.worker} {line.text}" for line in lines]


def test_lines_of_several_ranks_are_in_the_order_of_their_times(run: RunDir, clock: Clock) -> None:
    files = [log(run, rank, clock) for rank in (0, 1)]
    for second, rank in enumerate((0, 1, 1, 0)):
        clock.seconds = float(second)
        files[rank].write(f"line {second}\n".encode())
    lines = list(lines_of_workers(run, [("train", 0), ("train", 1), ("train", 2)]))
    assert texts(lines) == ["train:0 line 0", "train:1 line 1", "train:1 line 2", "train:0 line 3"]
    assert lines[1].time == "1970-01-01T00:00:01.000Z" == as_time(1.0)


def test_a_line_without_a_time_follows_the_one_before_it(run: RunDir, clock: Clock) -> None:
    log(run, 0, clock).write(b"first\n")
    with run.log("train", 0).open("a") as file:
        file.write("==== meshctl: attempt 1 ====\n")
    clock.seconds = 5.0
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
        clock.seconds = float(number)
        file.write(f"line {number}\nanother\n".encode())
    lines = lines_of_workers(run, [("train", 0)], as_time(since))
    assert [line.text for line in lines if line.text != "another"] == [
        f"line {number}" for number in range(since, 100)
    ]
