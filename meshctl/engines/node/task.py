"""A child of a node process that does one task: an examination, a download, the call of other nodes. The node
process must not wait for a disk, a driver or a network itself. It reaps the child.

    task = Task("meshctl-check", log, call)      # forks a child, which calls `call(writer)`
    for message in task.receive(): ...           # what it has reported, whenever its pipe is readable

The child reports over a pipe, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from meshctl.engines.node import forkserver
from meshctl.run import process

BUG = 70
"""Exit code of a task that raises an exception."""


class Task:
    """The child, and the end of its pipe at which its reports arrive."""

    def __init__(self, title: str, log: str, call: Callable[[int], int]) -> None:
        """Forks the child, whose output goes to the file `log`. `call` gets the writing end of the pipe, and
        returns the exit code."""
        self._reader, writer = os.pipe()
        self._received = b""
        parent = os.getpid()
        forkserver.flush()
        with forkserver.blocked_signals():
            self.pid = os.fork()
            if not self.pid:
                become(title, parent, log, [writer], partial(call, writer))
        os.close(writer)
        self.is_open = True
        """True if the child may still report."""
        self.messages: list[dict[str, Any]] = []
        """All that it has reported."""

    def fileno(self) -> int:
        return self._reader

    def receive(self) -> list[dict[str, Any]]:
        """Returns the reports that have arrived. The caller waits until the pipe is readable or the child has
        ended."""
        if self.is_open:
            data = os.read(self._reader, 1 << 16)
            self._received += data
            if not data:
                self.close()
        *lines, self._received = self._received.split(b"\n")
        found = [json.loads(line) for line in lines]
        self.messages += found
        return found

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self._reader)


def report(writer: int, message: Mapping[str, Any]) -> None:
    """Sends a message from the child to the node process."""
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(writer, data) :]


def become(
    title: str,
    parent: int,
    log: str,
    keep: Sequence[int],
    task: Callable[[], int],
    by: signal.Signals = signal.SIGKILL,
) -> NoReturn:
    """Runs a task in a forked child, and exits with the code that it returns. Never returns.

    The child dies with `parent`, by the signal `by`; 0 for none. Its output goes to the file `log`; empty for
    that of the parent. Of the inherited files it keeps the descriptors `keep`.
    """
    code = BUG
    try:
        os.setsid()
        forkserver.default_signals()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if parent:
            process.die_with(parent, by)
        process.set_title(title)
        if log:
            forkserver.redirect_to_file(log)
        process.close_files(keep)
        code = task()
    except BaseException:
        traceback.print_exc()
    finally:
        forkserver.leave(code)
