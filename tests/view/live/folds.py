"""Folds of a run: written as its launcher writes them, and compared."""

from __future__ import annotations

import json
from typing import Any

from meshctl.run.directory import RunDir, write_whole
from meshctl.run.events import Event
from meshctl.run.launcher import Launcher
from meshctl.view.live.run_state import RunState
from meshctl.view.live.state_file import as_text, data_of

UNEQUAL = ("recent", "newest", "before")
"""Moving averages, and times of the end of a launch, which the launcher notes beside the event."""
DIGITS = 6
"""Sums of floats depend on their order in the last digits."""


def comparable(state: RunState) -> dict[str, Any]:
    """Returns a state as plain data, without moving averages, which depend on the order of the workers' events
    within a poll, and without the launcher's last report, which a fold of the disk has before the rows."""
    data = json.loads(as_text(data_of(state, None)))
    del data["notice"]
    return {name: _rounded(value) for name, value in data.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items() if key not in UNEQUAL}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def save(run: RunDir, state: RunState, launcher: Launcher | None = None) -> None:
    """Writes the file with the state, by this process or by another launcher."""
    write_whole(run.state, as_text(data_of(state, launcher or Launcher.present())))


def end(run: RunDir, state: RunState, code: int, reason: str = "") -> None:
    state.on_event(Event("over", value={"code": code, "reason": reason}, time=state.times.newest + 0.5))
    save(run, state)
