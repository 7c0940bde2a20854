"""The files of images, histograms and tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.media import (
    forget_media,
    media_at,
    media_of,
    media_path,
    png,
    size_of,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


@pytest.mark.parametrize("name", ["m.x", "eval.exam.a/b c", "m.ü@2", "m.../..", "m.x.table.json", "m.%20"])
@pytest.mark.parametrize("number", [1, 12])
def test_a_path_names_what_the_file_contains(run: RunDir, name: str, number: int) -> None:
    path = media_path(run, 7, name, "histogram", number)
    assert path.parent == run.media / "step-7"
    found = media_at(path)
    assert found and (found.step, found.name, found.kind, found.number) == (7, name, "histogram", number)


def test_the_media_of_a_run(run: RunDir) -> None:
    for step in (10, 9):
        for number in (2, 1):
            write_whole(media_path(run, step, "m.x", "table", number), b'{"columns":["a"],"rows":[[1]]}')
    write_whole(media_path(run, 9, "m.board", "image"), png(1, 1, 1, b"\0\7", "a ü"))
    (run.media / "step-9" / ".1234.part").write_text("half")
    assert [(one.step, one.name, one.number) for one in media_of(run)] == [
        *[(9, "m.board", 1), (9, "m.x", 1), (9, "m.x", 2), (10, "m.x", 1), (10, "m.x", 2)]
    ]
    assert media_of(run, "m.x")[0].read() == {"columns": ["a"], "rows": [[1]]}
    assert media_of(run, "m.board")[0].caption == "a ü" and media_of(run, "m.x")[0].caption == ""
    forget_media(run, 9)
    assert {one.step for one in media_of(run)} == {9}


def test_png(run: RunDir) -> None:
    content = png(2, 1, 3, b"\0" + bytes(6))
    write_whole(path := media_path(run, 1, "m.x", "image"), content)
    found = media_at(path)
    assert size_of(content) == (2, 1) and found and found.caption == ""
