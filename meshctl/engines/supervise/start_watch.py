"""Watches a launcher while it writes the first files of a run directory, before it has started a process.

    with watched(plan.run.dir):
        begin(...)

A disk that does not answer holds such a write in state D, in which the launcher cannot report anything and no
signal reaches it. There must be no thread before the fork, so another process watches: it names the disk as
`launcher_watch` does later, and confirms a signal.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from meshctl.engines.node.waiting_file import file_of
from meshctl.engines.supervise import stalls
from meshctl.engines.supervise.signals import Signals

POLL_S = 0.5
SIGNALS_S = 2.0
"""Seconds in state D after which signals are answered for the launcher."""


@contextmanager
def watched(folder: str) -> Iterator[None]:
    """Context manager during which a fork of this process watches it. `folder` is what it writes to, for a
    kernel that does not show the file. To be used by a process without other threads."""
    parent, (reader, writer) = os.getpid(), os.pipe()
    child = os.fork()
    if not child:
        _become(parent, reader, writer, folder)
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def _become(parent: int, reader: int, writer: int, folder: str) -> NoReturn:
    """Turns this forked process into the one that watches. It ends with the block or with its parent, which
    closes the pipe."""
    try:
        os.close(writer)
        for number in Signals.NUMBERS:
            signal.signal(number, signal.SIG_IGN)  # a terminal sends them to both
        _watch(parent, reader, folder)
    finally:
        os._exit(0)


def _watch(parent: int, reader: int, folder: str) -> None:
    sleep, seconds, has_reported, confirmed = "", 0.0, False, set[int]()
    while not select.select([reader], [], [], POLL_S)[0]:
        status = status_of(parent)
        sleeps = status.get("voluntary_ctxt_switches", "")
        if not status.get("State", "").startswith("D") or sleeps != sleep:
            sleep, seconds = sleeps, 0.0
            continue
        seconds += POLL_S
        if seconds >= stalls.LIMITS.report_s and not has_reported:
            has_reported = True
            file = file_of(parent) or folder
            announce(f"stalled for {seconds:.0f} s: the launcher waits for the disk of {file} (state D)")
            announce("  it goes on once the disk answers: look at it (df, mount, dmesg)")
        for number in _pending(status) - confirmed if seconds >= SIGNALS_S else ():
            confirmed.add(number)
            announce(f"{signal.Signals(number).name}: the launch ends once the disk answers")


def status_of(pid: int, task: int = 0) -> dict[str, str]:
    """Returns the lines of the kernel's status of a thread, 0 for the main one, by their names."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{task or pid}/status").read_text()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    return {}


def _pending(status: dict[str, str]) -> set[int]:
    """Returns the signals of an end that wait for a process."""
    bits = int(status.get("ShdPnd", "0"), 16) | int(status.get("SigPnd", "0"), 16)
    return {int(number) for number in Signals.NUMBERS if bits >> (number - 1) & 1}


def announce(text: str) -> None:
    """Writes a line to standard error, of which nobody may be the reader any more."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
