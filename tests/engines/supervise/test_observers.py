"""No error of an observer affects a run."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import pytest

from meshctl.engines.supervise.session import Observers
from meshctl.run.events import Event


class Recording:
    """Records its calls. Raises `error` at the first row."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.seen: list[object] = []

    def on_attempt(self, number: int, step: int | None) -> None:
        self.seen.append((number, step))

    def on_event(self, event: Event) -> None:
        self.seen.append(event.name)

    def on_row(self, row: Mapping[str, Any]) -> None:
        if self.error:
            raise self.error
        self.seen.append(dict(row))

    def on_end(self, code: int, reason: str) -> None:
        self.seen.append(code)


@pytest.mark.parametrize(
    ("error", "warning"),
    [
        (ValueError("boom"), "warning: Recording is stopped: ValueError: boom\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/runs/metrics.jsonl"),
            "warning: Recording is stopped: OSError: No space left on device: /runs/metrics.jsonl\n",
        ),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), ""),
    ],
)
def test_an_observer_that_fails_is_dropped_and_the_others_go_on(
    error: Exception, warning: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = Recording(), Recording(error)
    observers = Observers([bad, good])
    observers.on_attempt(0, None)
    observers.on_event(Event("ready"))
    for step in (1, 2):
        observers.on_row({"step": step})
    observers.on_end(0, "")
    assert good.seen == [(0, None), "ready", {"step": 1}, {"step": 2}, 0]
    assert bad.seen == [(0, None), "ready"]
    assert capsys.readouterr().err == warning
