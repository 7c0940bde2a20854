"""The file of the rows of metrics, read from its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshctl.run import metrics
from meshctl.run.directory import RunDir
from meshctl.run.events import Event
from meshctl.run.metrics import PastAttempts, Row, as_json, continue_rows, cut, last_row, read


@pytest.fixture(autouse=True, params=[7, 40, 1 << 16])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "BLOCK_BYTES", request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, *steps: int, end: str = "") -> None:
    path.write_text("".join(as_json({"step": step, "time": 0.5 * step}) for step in steps) + end)


@pytest.mark.parametrize("end", ["", '{"step":9,"ti', '{"step":9,"time":4.5}', "\n", "[1]\n"])
def test_the_last_row_is_found_from_the_end(path: Path, end: str) -> None:
    write(path, *range(1, 9), end=end)
    assert last_row(path) == {"step": 8, "time": 4.0}


@pytest.mark.parametrize("after", [-1, 0, 3, 8, 20])
def test_later_rows_are_cut(path: Path, after: int) -> None:
    write(path, *range(1, 9), end='{"step":9,"ti')
    assert cut(path, after) == 0.5 * max(0, min(after, 8))
    assert [row["step"] for row in read(path)] == list(range(1, min(after, 8) + 1))
    assert not path.stat().st_size or path.read_bytes().endswith(b"\n")


def test_a_file_without_rows(path: Path) -> None:
    assert last_row(path) is None and cut(path, 3) == 0.0 and read(path) == []
    path.touch()
    assert last_row(path) is None and cut(path, 3) == 0.0 and read(path) == []


# The rows when a run continues


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
