"""Sets up a forked process: its attributes in Linux, its title and its open files."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection

SET_NAME, SET_CHILD_SUBREAPER = 15, 36
"""Options of `prctl`, from linux/prctl.h."""
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int | bytes) -> None:
    """Sets an attribute of this process, see prctl(2). Raises OSError."""
    argument = value if isinstance(value, bytes) else ctypes.c_ulong(value)
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def set_title(title: str) -> None:
    """Sets the name that `ps` and `top` show. The kernel cuts it to 15 bytes."""
    prctl(SET_NAME, title.encode() + b"\0")


def close_files(but: Collection[int] = ()) -> None:
    """Closes every descriptor from 3 on, except those in `but`."""
    start = 3
    for number in sorted(fd for fd in but if fd >= start):
        os.closerange(start, number)
        start = number + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))
