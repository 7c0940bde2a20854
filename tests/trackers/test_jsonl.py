"""The metrics file, and the table of trackers."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import pytest

from meshctl.run.directory import RunDir
from meshctl.trackers import TRACKERS, tracker_named


def rows(run: RunDir, whole: int | None = None) -> list[tuple[int, float]]:
    """Returns the rows of the first `whole` lines."""
    lines = run.metrics.read_text().splitlines()[:whole]
    return [(row["step"], row["loss"]) for row in map(json.loads, lines)]


def test_rows_wait_for_a_full_disk(tmp_path: Path) -> None:
    """They are written with a later one, or lost with an error at the end."""
    tracker = tracker_named("jsonl", run := RunDir(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for attempt, first in ((0, 1), (1, 5)):
        tracker.on_attempt(attempt, first - 1)
        tracker.on_row({"step": first, "time": 1.0, "loss": 5.0})
        resource.setrlimit(resource.RLIMIT_FSIZE, (run.metrics.stat().st_size + 10, before[1]))
        try:
            for step, loss in ((first + 1, 4.0), (first + 2, 3.5), (first + 2, 3.0)):
                tracker.on_row({"step": step, "time": 1.0 * step, "loss": loss})
            assert rows(run, whole=first) == [(1, 5.0), (2, 4.0), (3, 3.0), (4, 2.0), (5, 5.0)][:first]
            if attempt == 1:
                with pytest.raises(OSError, match=str(run.metrics)):
                    tracker.on_end(0, "")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        if attempt == 0:
            tracker.on_row({"step": 4, "time": 3.0, "loss": 2.0})
            assert rows(run) == [(1, 5.0), (2, 4.0), (3, 3.0), (4, 2.0)]


def test_a_tracker_is_imported_on_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tracker.py").write_text(
        "class Mine:\n    def __init__(self, run, color):\n        self.color = color\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(TRACKERS, "mine", "my_tracker:Mine")
    assert "my_tracker" not in sys.modules
    tracker = tracker_named("mine", RunDir(tmp_path), color="red")
    assert getattr(tracker, "color") == "red"  # noqa: B009
