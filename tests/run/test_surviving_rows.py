"""The rows of metrics when a run continues: those that survive, those that are lost, and missing ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from meshctl.run.events import Event, Journal
from meshctl.run.row_file import Row, as_json, read
from meshctl.run.surviving_rows import PastAttempts, continue_rows, folded_again


def attempts(*begun: int | None) -> PastAttempts:
    """Attempts that have begun after these steps; None for the beginning of the run."""
    found = PastAttempts()
    for number, step in enumerate(begun):
        found.add(Event("launched", value={"attempt": number}))
        if step is not None:
            found.add(Event("resumed", step=step))
    return found


def with_rows(folder: Path, *steps: int) -> RunDir:
    run = RunDir(folder)
    rows = [{"step": step, "time": 1.0 * step, "metrics.loss": 0.5 * step} for step in steps]
    run.metrics.write_text("".join(map(as_json, rows)))
    return run


def steps_of(rows: list[Row]) -> list[int]:
    return [row["step"] for row in rows]


def test_lost_rows_move_to_a_file_of_their_own_with_their_attempt(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 0, 1, 2, 3, 4)
    assert continue_rows(run, 2, attempts(None)) == 2.0 and steps_of(read(run.metrics)) == [0, 1, 2]
    with run.metrics.open("a") as file:
        file.write(as_json({"step": 3, "time": 9.0, "metrics.loss": 7.0}))
    assert continue_rows(run, 1, attempts(None, 2)) == 1.0 and steps_of(read(run.metrics)) == [0, 1]
    lost = [json.loads(line) for line in run.lost_metrics.read_text().splitlines()]
    assert [(row["step"], row["attempt"]) for row in lost] == [(3, 0), (4, 0), (2, 0), (3, 1)]
    assert continue_rows(run, None, attempts(None, 2, 1)) == 0.0 and not read(run.metrics)


def test_a_row_that_was_cut_by_a_kill_is_no_row(tmp_path: Path) -> None:
    run = with_rows(tmp_path, 1, 2)
    with run.metrics.open("a") as file:
        file.write('{"step":3,"ti')
    assert continue_rows(run, 2, attempts(None)) == 2.0 and steps_of(read(run.metrics)) == [1, 2]
    assert run.metrics.read_text().endswith("}\n") and not run.lost_metrics.exists()


def report(run: RunDir, rank: int, start: int, *losses: float, late: float | None = None) -> None:
    """Writes the events of an attempt of a worker, which begins after step `start`."""
    journal = Journal(run.journal(f"train-{rank}"), "train", rank)
    journal.write("phase", phase="connection")
    journal.write("metric", step=start, stage="setup", values={"size": 3.0}, weight=1.0, collect="mean")
    journal.write("ready", step=start)
    for step, loss in enumerate(losses, start + 1):
        values = {"loss": loss}
        journal.write("metric", step=step, stage="metrics", values=values, weight=1.0, collect="mean")
        journal.write("step", step=step, seconds=0.1)
    if late is not None:
        step = start + len(losses)
        journal.write("metric", step=step, stage="close", values={"x": late}, weight=1.0, collect="sum")
    journal.close()


@pytest.mark.parametrize("present", [(0, 1, 2, 3), (0, 1, 3), (0,), ()])
def test_missing_rows_are_folded_again_from_the_last_run_of_each_step(
    tmp_path: Path, present: tuple[int, ...]
) -> None:
    run = with_rows(tmp_path, *present)
    for rank in (0, 1):
        report(run, rank, 0, 1.0, 2.0 + rank, 30.0, 40.0)
        report(run, rank, 2, 3.0 + rank, 4.0, late=5.0)
    elapsed = continue_rows(run, 4, attempts(None, 2))
    rows = read(run.metrics)
    expected = [("setup.size", 3.0), ("metrics.loss", 1.0), ("metrics.loss", 2.5), ("metrics.loss", 3.5)]
    found = {row["step"]: row for row in rows}
    assert list(found) == [0, 1, 2, 3, 4]
    for step, (name, value) in enumerate(expected):
        assert found[step].get(name) == value or step in present
    assert (found[4]["metrics.loss"], found[4]["close.x"]) == (4.0, 10.0)
    assert "setup.size" not in found[2]
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert elapsed == rows[-1]["time"]


def test_a_step_without_events_is_left_out(tmp_path: Path) -> None:
    report(RunDir(tmp_path), 0, 0, 1.0)
    assert [row["step"] for row, _ in folded_again(RunDir(tmp_path), {1, 2})] == [1]
