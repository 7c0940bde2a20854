"""Files of a run directory are read within bounds, and written whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from meshctl.run import reading
from meshctl.run.directory import RunDir, replaced, write_whole
from meshctl.run.metrics import end_of, last_row, rows_of
from meshctl.run.reading import MAX_DEPTH, decoded, lines_of


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1, 100_000])
def test_json_is_bounded_in_depth(depth: int) -> None:
    text = (
        '{"a":' * (depth // 2) + "[" * (depth - depth // 2) + "]" * (depth - depth // 2) + "}" * (depth // 2)
    )
    if depth == MAX_DEPTH:
        assert decoded(text)
        return
    with pytest.raises(ValueError, match="nested too deeply"):
        decoded(text)


def test_what_follows_json_is_an_error() -> None:
    assert decoded(' {"a": "[[["} \n') == {"a": "[[["}
    with pytest.raises(ValueError, match="goes on"):
        decoded("{} {}")


def test_a_line_without_end_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 300)
    path, row = tmp_path / "rows.jsonl", b'{"step":7,"time":1.0}\n'
    path.write_bytes(bytes(5000) + b"\n" + row + bytes(5000))
    parts = list(lines_of(path))
    assert max(map(len, parts)) < 1500 and b"".join(parts).startswith(bytes(5000) + b"\n" + row)
    assert [found["step"] for found in rows_of(path)] == [7]
    assert end_of(path, 7)[0] == 5001 + len(row) and last_row(path) == {"step": 7, "time": 1.0}


def test_a_file_that_cannot_be_written_leaves_no_part(tmp_path: Path) -> None:
    """A text that cannot be encoded stands for a full disk: in either case the writing fails midway."""
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "x" * 100_000 + "\ud800")
    with pytest.raises(OSError), replaced(path) as part:
        part.write_text("a part")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_parts_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    parts = [
        tmp_path / ".state.json.12",
        tmp_path / "media" / "step-1" / ".x.png.34",
        tmp_path / ".t.json.part",
    ]
    kept = [tmp_path / ".lock", tmp_path / "a.12", tmp_path / "checkpoints" / "step-1" / "m" / ".metadata"]
    for path in (*parts, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    run.forget_parts()
    assert not any(path.exists() for path in parts) and all(path.exists() for path in kept)
