"""The relation of a process to its parent: it ends with it, and lets it read its stack."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SET_PDEATHSIG, SET_PTRACER = 1, 0x59616D61
"""Options of `prctl`, from linux/prctl.h."""


def die_with(parent: int, by: signal.Signals) -> None:
    """Makes the kernel send signal `by` to this process when its parent dies. Sends it at once if the parent
    has died. Does nothing on systems other than Linux. Raises OSError.

    The parent is the thread that started this process, so processes are started from the main thread.
    """
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None).prctl(SET_PDEATHSIG, ctypes.c_ulong(int(by)), 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before
        os.kill(os.getpid(), by)


def allow_tracing_by(parent: int) -> None:
    """Allows a process and its children to read the memory of this one, where only descendants may be read
    (the security module Yama)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PTRACER, ctypes.c_ulong(parent), 0, 0, 0)
