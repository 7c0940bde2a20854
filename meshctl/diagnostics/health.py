"""The results of examining a machine, as data. `view/reports/health.py` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from meshctl.dataclass import dataclass

State = Literal["ok", "warning", "failure"]
STATES: tuple[State, ...] = ("ok", "warning", "failure")
"""The states, from the best to the worst."""
VERSION = 1
"""The version of the JSON form."""


@dataclass(frozen=True)
class Check:
    subject: str
    """The topic, e.g. `network`."""
    name: str
    """The examined item, unique within its subject, e.g. `loopback`."""
    state: State
    """A failure prevents a run or makes it hang. A warning is about something that slows runs down, or
    prevents some of them."""
    found: str
    remedy: str = ""
    """Advice. Empty if and only if the state is ok."""


def tally(checks: Sequence[Check]) -> dict[State, int]:
    """Returns the number of checks for each state."""
    return {state: sum(check.state == state for check in checks) for state in STATES}


def as_data(checks: Sequence[Check]) -> dict[str, Any]:
    """Returns the checks as plain data for JSON."""
    return {"version": VERSION, "counts": tally(checks), "checks": [asdict(check) for check in checks]}
