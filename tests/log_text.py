"""The logs of workers without the time of each line, and the errors of a command without those of libraries."""

from __future__ import annotations

import re
from pathlib import Path

from meshctl.run.logs import without_stamps


def without_warnings_of_torch(text: str) -> str:
    """Returns the output of a process without the lines that the C++ part of torch prints, e.g. about a host name
    that takes long to be resolved: `[W1128 16:07:36.123456789 socket.cpp:767] [c10d] ...`."""
    return re.sub(r"^\[[IWE]\d{4} [\d:.]+ [\w./]+:\d+\].*\n", "", text, flags=re.MULTILINE)


def output_of(log: Path) -> str:
    """Returns the text that a worker has written into its log."""
    return without_stamps(log.read_text())


def own_lines(errors: str) -> list[str]:
    """Returns the lines of meshctl itself, each with its indented lines. Torch may warn of the name of a host at any
    time."""
    found: list[str] = []
    is_own = False
    for line in errors.splitlines():
        is_own = line.startswith(("error", "warning", "note", "help")) or (is_own and line.startswith(" "))
        found += [line] if is_own else []
    return found
