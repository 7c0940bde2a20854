"""Output of all commands.

A closed pipe or terminal and characters that the stream's encoding lacks are not errors. A full disk is:
`main` reports it for all commands, with exit code 4.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

from meshctl.text.redaction import redact
from meshctl.view.reports.text import shown

USAGE = 2
REFUSED = 4


def write(text: str, out: TextIO) -> None:
    """Writes a text and flushes the stream. Raises `OSError` if the disk is full."""
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        if not is_closed(error, out):
            raise
        silence(out)


def is_closed(error: OSError, out: TextIO) -> bool:
    """Returns whether a stream has no reader any more: the reader of a pipe has ended, or the terminal was
    closed."""
    is_device = stat.S_ISCHR(os.fstat(out.fileno()).st_mode)
    return isinstance(error, BrokenPipeError) or (error.errno == errno.EIO and is_device)


def silence(out: TextIO) -> None:
    """Discards the buffered output of a stream, which Python would otherwise try to flush at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def why(error: Exception) -> str:
    """Returns the system's message about a file."""
    return ((error.strerror if isinstance(error, OSError) else "") or str(error)).lower()


def open_all() -> None:
    """Opens closed standard streams as /dev/null, so that files opened later do not get their descriptors.
    Characters that the encoding of the others lacks become `?`."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def refuse(message: object, code: int = USAGE) -> int:
    """Prints one error line to stderr and returns the exit code."""
    print(f"error: {shown(redact(str(message)))}", file=sys.stderr)
    return code


def no_room(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def refused(error: OSError) -> int:
    """Reports that the output could not be written, and returns the exit code."""
    silence(sys.stdout)
    with suppress(OSError):
        refuse(f"the output was not written completely: {why(error)}")
    return REFUSED
