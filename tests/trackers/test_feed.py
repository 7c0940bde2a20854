"""Trackers that hang, fail or die in their process: each is stopped with a message, and the others go on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.settings import Track
from meshctl.trackers import feed
from meshctl.trackers.feed import Feeds
from tests.hang import HANG_S

OWN = """
import json, os, signal, subprocess, sys, time

def forever():
    while True:
        time.sleep(1)

class Keeping:
    def __init__(self, run, file):
        self.file = run.path / file
    def on_attempt(self, number, step): self.write("attempt", number, step)
    def on_event(self, event): self.write("event", event.name, event.step)
    def on_row(self, row): self.write("row", row)
    def on_end(self, code, reason): self.write("end", code, reason)
    def write(self, *what):
        with self.file.open("a") as file:
            file.write(json.dumps(what) + "\\n")

class HangsAtFirst(Keeping):
    def __init__(self, run): forever()

class HangsInRow(Keeping):
    def on_row(self, row):
        child = subprocess.Popen(["sleep", "1000"])
        self.write("child", child.pid)
        forever()

class HangsAtEnd(Keeping):
    def on_end(self, code, reason):
        self.write("hangs")
        forever()

class Waits(Keeping):
    def on_attempt(self, number, step):
        while not self.file.with_name("go").exists():
            time.sleep(0.01)
        super().on_attempt(number, step)

class Fails(Keeping):
    def on_row(self, row):
        print("hello from a library")
        raise ValueError("the key " + os.environ["WANDB_API_KEY"] + " is refused\\nby the server")

class Killed(Keeping):
    def on_row(self, row): os.kill(os.getpid(), signal.SIGKILL)

class Ends(Keeping):
    def on_row(self, row): sys.exit("no")
"""
KEY = "0123456789abcdef-my-key"


class Clock:
    """Seconds of `patience`, which pass only when a test sets them, however slow the machine is."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = lambda: 0.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(feed, "time", made)
    monkeypatch.setattr(feed, "EXIT_S", HANG_S)
    return made


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "lacking.py").write_text("import no_such_library\n")
    return RunDir(tmp_path)


def lines(path: Path) -> list[list[object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def own(name: str, **options: object) -> Track:
    return Track(f"own:{name}", options)


def test_a_tracker_that_fails_is_stopped_and_the_others_get_everything(run: RunDir, clock: Clock) -> None:
    """All trackers run at the same time, because each takes an interpreter."""
    tracks = [
        own("Keeping", file="kept.jsonl"),
        own("HangsAtFirst", patience=2),
        own("HangsInRow", file="hangs.jsonl", patience=4),
        own("HangsAtEnd", file="end.jsonl", patience=4),
        own("Fails", file="fails.jsonl"),
        own("Killed", file="killed.jsonl"),
        own("Ends", file="ends.jsonl"),
        own("Missing"),
        Track("lacking:Tracker"),
    ]
    warnings: list[str] = []
    feeds = Feeds(run, tracks, [str(run.path)], warnings.append, environ={**os.environ, "WANDB_API_KEY": KEY})
    feeds.start()
    processes = feeds.pids

    def seconds() -> float:
        names = {(file, line[0]) for file in ("hangs", "end") for line in lines(run.path / f"{file}.jsonl")}
        return 10.0 if {("hangs", "child"), ("end", "hangs")} <= names else 0.0

    clock.monotonic = seconds
    feeds.on_attempt(0, None)
    for step in (1, 2):
        feeds.on_row({"step": step, "time": 0.1, "m.loss": None})
    feeds.on_event(Event("step", "train", 0, 2))  # one of thousands, which no tracker needs
    feeds.on_event(Event("checkpoint", step=2, value={"path": "x"}))
    feeds.on_end(5, "train:1 failed")
    kept = [["attempt", 0, None], *(["row", {"step": n, "time": 0.1, "m.loss": None}] for n in (1, 2))]
    assert lines(run.path / "kept.jsonl") == [*kept, ["event", "checkpoint", 2], ["end", 5, "train:1 failed"]]
    assert len(lines(run.path / "end.jsonl")) == 5
    stopped = {
        one.split("`")[1]: one.partition(" is stopped: ")[2].partition("; log: ")[0] for one in warnings
    }
    assert len(stopped) == len(warnings)
    assert stopped.pop("own:HangsAtFirst") == "it has not answered for 2s (its `patience`)"
    assert {stopped.pop(name).split("(")[1] for name in ("own:HangsInRow", "own:HangsAtEnd")} == {
        "its `patience`)"
    }
    assert stopped == {
        "own:Fails": "ValueError: the key <redacted> is refused",
        "own:Killed": "its process has ended",
        "own:Ends": "SystemExit: no",
        "own:Missing": "AttributeError: module 'own' has no attribute 'Missing'",
        "lacking:Tracker": "no_such_library is not installed",
    }
    log = run.tracker_log("own:Fails").read_text()
    assert "hello from a library" in log and "by the server" in log and KEY not in log
    [[_, child]] = [one for one in lines(run.path / "hangs.jsonl") if one[0] == "child"]
    assert not [pid for pid in processes if is_running(pid)]
    while is_running(int(str(child))):  # the launcher has killed it, and nobody waits for it
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_rows_that_a_tracker_does_not_take_are_left_out(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls that are no rows stay."""
    monkeypatch.setattr(feed, "MAX_WAITING", 20)
    warnings: list[str] = []
    feeds = Feeds(run, [own("Waits", file="kept.jsonl")], [str(run.path)], warnings.append).start()
    feeds.on_attempt(0, None)
    for step in range(100):
        feeds.on_row({"step": step})
    (run.path / "go").touch()
    feeds.on_end(0, "")
    kept = lines(run.path / "kept.jsonl")
    assert kept[0] == ["attempt", 0, None] and kept[-1] == ["end", 0, ""]
    steps = [
        row["step"] for name, row in (line[:2] for line in kept) if name == "row" and isinstance(row, dict)
    ]
    assert len(steps) < 25 and steps == list(range(100 - len(steps), 100))
    assert warnings == [
        "tracker `own:Waits` is too slow: rows are left out of it",
        f"tracker `own:Waits` lacks {100 - len(steps)} rows",
    ]


def test_a_second_signal_does_not_wait_for_trackers(run: RunDir) -> None:
    tracks = [own("HangsAtEnd", file="end.jsonl", patience=0)]
    warnings: list[str] = []
    feeds = Feeds(run, tracks, [str(run.path)], warnings.append, is_hurried=lambda: True).start()
    feeds.on_attempt(0, None)
    feeds.on_end(130, "SIGINT")
    assert ["its process has ended" in one for one in warnings] == [True]
