"""The event file of a process: whole lines, one write for each event and for all events of a step."""

from __future__ import annotations

import json
import math
import os
import resource
import time
from pathlib import Path

import pytest

from meshctl.run import clock
from meshctl.run import events as events_module
from meshctl.run.events import Event, Follower, Journal, StepReport


def report() -> StepReport:
    made = StepReport(17, seconds=0.25)
    made.stages, made.waits = {"loss": 0.125, '50% "odd"\n': 2.0}, {"loss": 0.0, '50% "odd"\n': 1e-7}
    made.routes = {"a -> b": 1 << 40}
    made.add_metric("loss", {"value": 1.5}, 4.0, "mean")
    made.add_metric("loss", {"value": math.nan}, 1.0, "sum")
    return made


def events(path: Path) -> list[Event]:
    return list(Follower(path.parent).new())


def test_a_step_is_reported_as_the_same_events_one_by_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "train-3.jsonl", "train", 3)
    journal.write_step(report())
    first, second, step = events(tmp_path / "train-3.jsonl")
    assert (first.name, second.name, step.name) == ("metric", "metric", "step")
    assert first.value == {"values": {"value": 1.5}, "weight": 4.0, "collect": "mean"}
    assert math.isnan(second.value["values"]["value"])
    assert (step.group, step.rank, step.step, step.stage) == ("train", 3, 17, "")
    made = report()
    assert step.value == {
        "seconds": 0.25,
        "stages": made.stages,
        "waits": made.waits,
        "routes": made.routes,
    }


def test_collectives_and_times_are_part_of_the_step_where_there_are_any(tmp_path: Path) -> None:
    journal, made = Journal(tmp_path / "train-3.jsonl", "train", 3), report()
    made.collectives, made.in_collectives = {"actor:dp": {"count": 2, "digest": 7}}, {"loss": 0.1}
    made.sends, made.peers = {"loss": 0.5}, {"a -> b": 0.25}
    journal.write_step(made)
    made.awaited, made.full, made.sends = {"a -> b": 0.75}, {"loss -> c": 1.0}, {}
    made.stages, made.collectives, made.in_collectives = {"other": 1.0}, {}, {}
    journal.write_step(made)
    first, second = [event.value for event in events(tmp_path / "train-3.jsonl") if event.name == "step"]
    assert first["collectives"] == {"actor:dp": {"count": 2, "digest": 7}}
    assert (first["in_collectives"], first["sends"], first["peers"]) == (
        *({"loss": 0.1}, {"loss": 0.5}),
        {"a -> b": 0.25},
    )
    assert not {"awaited", "full"} & {*first} and not {"sends", "collectives"} & {*second}
    assert (second["awaited"], second["full"]) == ({"a -> b": 0.75}, {"loss -> c": 1.0})
    assert second["stages"] == {"other": 1.0} and second["waits"] == made.waits


def test_the_events_of_a_step_are_one_write_with_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of one time keep their order when events are sorted by time."""
    journal, writes = Journal(tmp_path / "train-0.jsonl", "train", 0), list[bytes]()
    monkeypatch.setattr(os, "write", lambda file, data: writes.append(data) or len(data))
    journal.write_step(report())
    [data] = writes
    found = [json.loads(line) for line in data.splitlines()]
    assert [event["name"] for event in found] == ["metric", "metric", "step"] and data.endswith(b"\n")
    assert len({event["time"] for event in found}) == 1


def test_a_full_disk_loses_no_event(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    journal, (soft, hard) = Journal(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (250, hard))
        for step in range(5):
            journal.write("saved", step=step)
        with pytest.raises(OSError, match=r"File too large: .*one\.jsonl"):
            journal.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == 250
    journal.write("saved", step=5)
    journal.flush()
    journal.close()
    assert [event.step for event in Follower(tmp_path).new()] == [0, 1, 2, 3, 4, 5]


def test_a_cut_line_is_skipped_and_the_next_writer_begins_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    for step in (1, 2):
        journal = Journal(path)
        journal.write("saved", step=step)
        journal.close()
        os.truncate(path, path.stat().st_size - 20 * (step == 1))
    journal = Journal(path)
    journal.write("saved", step=3)
    journal.close()
    assert [event.step for event in Follower(tmp_path).new()] == [2, 3]


def test_events_are_skipped_as_a_whole(tmp_path: Path) -> None:
    journal, follower = Journal(tmp_path / "train-0.jsonl", "train", 0), Follower(tmp_path)
    journal.write("ready")
    follower.skip()
    journal.write("step")
    assert [event.name for event in follower.new()] == ["step"]


def test_events_continue_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "SEGMENT_BYTES", 250)
    journal, follower = Journal(tmp_path / "train-0.jsonl", "train", 0), Follower(tmp_path)
    found = list[Event]()
    for step in range(1, 12):
        journal.write_step(StepReport(step))
        found += follower.in_order() if step % 3 else ()
    journal.close()
    Journal(tmp_path / "train-0.jsonl", "train", 0).write("done", step=12)
    found += follower.new()
    assert [event.step for event in found] == list(range(1, 13))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"train-0.jsonl", *(f"train-0.{number}.jsonl" for number in range(1, len(names)))}
    assert len(names) > 2
    assert [event.step for event in Follower(tmp_path).in_order()] == list(range(1, 13))


def test_all_files_are_read_in_the_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [(0, 1.0), (1, 2.0), (0, 3.0), (2, 2.5), (1, 4.0), (2, 3.5)]
    journals = [Journal(tmp_path / f"train-{rank}.jsonl", "train", rank) for rank in range(3)]
    for rank, now in written:
        monkeypatch.setattr(clock, "now", lambda now=now: now)
        journals[rank].write("step")
    found = [(event.rank, event.time) for event in Follower(tmp_path).in_order()]
    assert found == sorted(written, key=lambda one: one[1])


def test_a_clock_that_steps_does_not_change_the_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: before + 3600.0)
    Journal(tmp_path / "one.jsonl").write("over", code=0)
    [event] = Follower(tmp_path).new()
    assert before <= event.time < before + 3600.0
