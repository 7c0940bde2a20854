"""The process of a node that writes the logs of its workers.

    worker --pipe of its stdout and stderr--> `meshctl-logs` --> logs/GROUP/RANK.log

A worker never writes to a file itself, so a full disk cannot fail its `print`. The node process keeps a copy
of the reading end of each pipe: if this process dies, workers go on, the bytes in the pipe stay, and the node
process starts another one (`worker_logs`).

    node process to this one     {"path": FILE, "keep": bytes, "slot": n} with the reading end of the pipe
    this one to the node process {"path": FILE, "error": TEXT}     the file cannot be written; once a reason

It ends when the socket to the node process is closed and every pipe is at its end. If the node process was
killed together with the process that adopts its orphans, this one is left: it kills the children of workers,
which still have a pipe or the mark of the run in their environment, and removes the folder of sockets
(`scratch`).
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import select
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from meshctl.dataclass import dataclass
from meshctl.engines.node import forkserver, termination
from meshctl.engines.node.scratch import Scratch
from meshctl.run import process
from meshctl.run.log_files import LogFile

TITLE = "meshctl-logs"
READ_BYTES = 1 << 18
BATCH_S = 0.01
"""Seconds between two rounds of reading. Lines that arrive in between are written together."""
BUSY_BYTES = 1 << 16
"""Size of one read from which on the next round begins at once."""
END_S = 1.0
"""Time limit for the end of all pipes once the socket of the node process is closed, and again when the
processes that have them were killed."""
PACKET_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class _Source:
    slot: int
    file: LogFile


class LogPump:
    def __init__(self, control: socket.socket, states: mmap.mmap) -> None:
        """`states` has one byte for each pipe: 1 while bytes were read that are not written yet."""
        self._control, self._states = control, states
        self._sources: dict[int, _Source] = {}
        """Reading end of a pipe -> its log."""
        self._reported: set[int] = set()
        """The numbers of the errors that the node process knows."""
        self._poller = select.epoll()
        self._poller.register(control.fileno(), select.EPOLLIN)
        self._is_closed = False
        """True if the node process has closed its socket."""

    def run(self) -> float:
        """Writes logs until the node process has closed its socket and every pipe is at its end. Returns when
        the socket was closed, in seconds since the machine was started."""
        while not self._is_closed:
            is_busy = self._round(-1)
            if not is_busy and not self._is_closed:
                select.select([self._control], [], [], BATCH_S)
        closed = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._drain()
        if self._sources:
            termination.kill_writers(list(self._sources))
            self._drain()
        return closed

    def _drain(self) -> None:
        """Writes the data of the pipes until all pipes have ended or `END_S` is over."""
        end = time.monotonic() + END_S
        while self._sources and (seconds := end - time.monotonic()) > 0:
            self._round(seconds)

    def _round(self, seconds: float) -> bool:
        """Waits for output and writes it. Returns whether there is probably more."""
        is_busy = False
        for number, _ in self._poller.poll(seconds):
            if number == self._control.fileno():
                self._receive()
            else:
                is_busy |= self._pump(number) >= BUSY_BYTES
        return is_busy

    def _receive(self) -> None:
        packet, descriptors = b"", list[int]()
        with suppress(ConnectionResetError):
            packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES_MAX, 1)
        if not packet:
            self._is_closed = True
            self._poller.unregister(self._control.fileno())
            return
        message, number = json.loads(packet), descriptors[0]
        file = LogFile(Path(message["path"]), message["keep"])
        self._sources[number] = _Source(message["slot"], file)
        self._poller.register(number, select.EPOLLIN)
        file.write(b"")
        self._report(file)

    def _pump(self, number: int) -> int:
        """Writes the data of a pipe, and closes the log at its end. Returns the number of bytes."""
        source = self._sources[number]
        self._states[source.slot] = 1
        try:
            data = os.read(number, READ_BYTES)
        except BlockingIOError:  # the pump before this one was still reading
            data = None
        if data:
            source.file.write(data)
            self._report(source.file)
        self._states[source.slot] = 0
        if data == b"":
            self._poller.unregister(number)
            del self._sources[number]
            source.file.close()
            os.close(number)
        return len(data or b"")

    def _report(self, file: LogFile) -> None:
        number = file.problem.errno if file.problem else None
        if file.problem is None or number in self._reported:
            return
        self._reported.add(number or 0)
        text = {"path": str(file.path), "error": file.problem.strerror or os.strerror(number or errno.EIO)}
        with suppress(OSError):
            self._control.send(json.dumps(text).encode())


def become(control: socket.socket, states: mmap.mmap, scratch: Scratch) -> NoReturn:
    """Turns a forked copy of the node process into the process that writes logs. Never returns."""
    code = 70
    try:
        os.setsid()
        forkserver.default_signals()
        process.set_title(TITLE)
        process.close_files([control.fileno(), scratch.descriptor])
        states[:] = bytes(len(states))
        termination.kill_marked(scratch.mark, LogPump(control, states).run())
        scratch.release()
        code = 0
    finally:
        forkserver.leave(code)
