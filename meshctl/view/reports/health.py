"""The checks of `doctor` as a table: a line for each check, wrapped to the width, and the remedy below a
problem.

network
  ok       loopback      127.0.0.1 answers
  warning  host name     `box` is not found
                         -> add `127.0.1.1 box` to /etc/hosts
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from meshctl.diagnostics import STATES, Check, tally
from meshctl.view.reports.text import shown

COLORS = {"ok": "32", "warning": "33;1", "failure": "31;1"}
INDENT, GAP = "  ", 2
MIN_WIDTH = 20
"""Minimum width of the column with findings."""


def table(checks: Sequence[Check], *, width: int = 80, color: bool = False) -> str:
    """Returns the table. Its last line has the number of checks with each result."""
    names = max((len(check.name) for check in checks), default=0)
    lines = []
    for subject, found in groupby(checks, lambda check: check.subject):
        lines += [subject, *(line for check in found for line in _rows(check, names, width, color)), ""]
    return "\n".join([*lines, summary(checks), ""])


def _rows(check: Check, names: int, width: int, color: bool) -> Iterator[str]:
    state = max(map(len, STATES))
    before = len(INDENT) + state + GAP + names + GAP
    room = max(MIN_WIDTH, width - before)
    lines = _wrapped(check.found, room) or [""]
    mark = f"\x1b[{COLORS[check.state]}m{check.state}\x1b[0m" if color else check.state
    gap = " " * (state - len(check.state) + GAP)
    yield f"{INDENT}{mark}{gap}{check.name:{names + GAP}}{lines[0]}".rstrip()
    yield from (" " * before + line for line in lines[1:])
    for number, line in enumerate(_wrapped(check.remedy, room - 3)):
        yield " " * before + ("   " if number else "-> ") + line


def _wrapped(text: str, room: int) -> list[str]:
    """Returns lines without breaking long words, so that a path or a command can be copied."""
    return wrap(shown(text), room, break_long_words=False, break_on_hyphens=False)


def summary(checks: Sequence[Check]) -> str:
    counts = tally(checks)
    lines = [f"{len(checks)} check{'' if len(checks) == 1 else 's'}: {counts['ok']} ok"]
    for state in ("warning", "failure"):
        if count := counts[state]:
            lines.append(f"{count} {state}{'' if count == 1 else 's'}")
    return ", ".join(lines)
