"""What an examination of a machine found, as data: `Check`s, whose look is the business of `view/checks.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "warning", "failure"]
STATES: tuple[State, ...] = ("ok", "warning", "failure")
VERSION = 1
"""Of the JSON form."""


@dataclass(frozen=True)
class Check:
    subject: str
    """Where it belongs: `network`."""
    name: str
    """What was looked at: `localhost`; once in a subject."""
    state: State
    """A failure stops a run, or makes it hang; a warning makes it slow, or stops some runs."""
    found: str
    remedy: str = ""
    """What to do about it; empty where nothing is to be done."""


def tally(checks: Sequence[Check]) -> dict[State, int]:
    return {state: sum(check.state == state for check in checks) for state in STATES}


def as_data(checks: Sequence[Check]) -> dict[str, Any]:
    """Plain data, for JSON."""
    return {"version": VERSION, "counts": tally(checks), "checks": [asdict(check) for check in checks]}
