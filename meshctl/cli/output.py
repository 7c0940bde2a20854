"""How commands print: whoever reads may have seen enough, may not know every letter, or may have no room
left.

The first two are no errors. No room is the environment's refusal, wherever it shows, so `main` says it once
for all commands.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

REFUSED = 4


def write(text: str, out: TextIO) -> None:
    """All of it now. Raises `OSError` where there is no room."""
    try:
        if isinstance(out, TextIOWrapper):
            out.reconfigure(errors="replace")
        out.write(text)
        out.flush()
    except BrokenPipeError:
        silence(out)


def silence(out: TextIO) -> None:
    """What is left goes nowhere: Python flushes once more when it leaves."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def why(error: Exception) -> str:
    """What the system says of a file."""
    return ((error.strerror if isinstance(error, OSError) else "") or str(error)).lower()


def open_all() -> None:
    """A stream that is closed is one that goes nowhere; nothing that is opened later may stand in its place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def no_room(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def refused(error: OSError) -> int:
    """Says that there was no room; the exit code."""
    silence(sys.stdout)
    with suppress(OSError):
        print(f"error: not all was written: {why(error)}", file=sys.stderr)
    return REFUSED
