"""The checks of `doctor` as a table for people: a line each, wrapped to the width; below what is not well,
what to do about it.

network
  ok       loopback      127.0.0.1 answers
  warning  host name     `box` is not found
                         -> add `127.0.1.1 box` to /etc/hosts
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from meshctl.diagnostics.health import STATES, Check, tally
from meshctl.view.reports.text import shown

COLOURS = {"ok": "32", "warning": "33;1", "failure": "31;1"}
INDENT, GAP = "  ", 2
NARROWEST = 20
"""Columns for what was found."""


def table(checks: Sequence[Check], *, width: int = 80, colour: bool = False) -> str:
    """Ends with a line that counts."""
    names = max((len(check.name) for check in checks), default=0)
    lines = []
    for subject, found in groupby(checks, lambda check: check.subject):
        lines += [subject, *(line for check in found for line in _rows(check, names, width, colour)), ""]
    return "\n".join([*lines, summary(checks), ""])


def _rows(check: Check, names: int, width: int, colour: bool) -> Iterator[str]:
    state = max(map(len, STATES))
    before = len(INDENT) + state + GAP + names + GAP
    room = max(NARROWEST, width - before)
    said = _wrapped(check.found, room) or [""]
    mark = f"\x1b[{COLOURS[check.state]}m{check.state}\x1b[0m" if colour else check.state
    yield f"{INDENT}{mark}{' ' * (state - len(check.state) + GAP)}{check.name:{names + GAP}}{said[0]}".rstrip()
    yield from (" " * before + line for line in said[1:])
    for number, line in enumerate(_wrapped(check.remedy, room - 3)):
        yield " " * before + ("   " if number else "-> ") + line


def _wrapped(text: str, room: int) -> list[str]:
    """Words longer than a line stand out of it: a path or a command is copied whole."""
    return wrap(shown(text), room, break_long_words=False, break_on_hyphens=False)


def summary(checks: Sequence[Check]) -> str:
    counts = tally(checks)
    said = [f"{len(checks)} check{'' if len(checks) == 1 else 's'}: {counts['ok']} ok"]
    for state in ("warning", "failure"):
        if count := counts[state]:
            said.append(f"{count} {state}{'' if count == 1 else 's'}")
    return ", ".join(said)
