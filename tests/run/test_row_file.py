"""The file of the rows of metrics, read from its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.run import row_file
from meshctl.run.row_file import as_json, cut, has_all, last_row, read


@pytest.fixture(autouse=True, params=[7, 40, 1 << 16])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_file, "BLOCK_BYTES", request.param)


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


@pytest.mark.parametrize(
    ("steps", "is_whole"),
    [((1, 2, 3), True), ((0, 1, 2), True), ((1, 3), False), ((2, 3), False), ((1, 1, 2), False)],
)
def test_whether_each_step_has_a_row(path: Path, steps: tuple[int, ...], is_whole: bool) -> None:
    write(path, *steps)
    last = last_row(path)
    assert last and has_all(path, last) is is_whole
