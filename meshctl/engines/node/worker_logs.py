"""The logs of a node's workers, and the process that writes them.

    worker --pipe of its stdout and stderr--> `meshctl-logs` --> logs/GROUP/RANK.log

    logs = WorkerLogs(scratch)                       # starts the process that writes logs
    outputs = logs.open([path, ...], keep)           # before an agent is forked: a pipe for each worker
    outputs.wait_written(number)                     # in the agent, once a worker has ended
    logs.end_attempt()                               # once no process of the attempt is left

A worker never writes to a file itself, so a full disk cannot fail its `print`. If the log process dies, the
node process ends with all workers.

    node process to this one     {"path": FILE, "keep": bytes, "slot": n} with the reading end of the pipe
    this one to the node process {"path": FILE, "error": TEXT}     the file cannot be written; once a reason

It ends when the socket to the node process is closed and every pipe is at its end. If the node process was
killed together with the process that adopts its orphans, this one is left: it kills the children of workers,
which have the mark of the run in their environment, and removes the folder of sockets (`scratch`).
"""

from __future__ import annotations

import array
import errno
import fcntl
import json
import mmap
import os
import select
import socket
import termios
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.engines.node import forkserver, termination
from meshctl.engines.node.scratch import VARIABLE, Scratch
from meshctl.run.logs import LogFile

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


class LogPump:
    def __init__(self, control: socket.socket, states: mmap.mmap) -> None:
        """`states` has one byte for each pipe: 1 while bytes were read that are not written yet."""
        self._control, self._states = control, states
        self._sources: dict[int, tuple[int, LogFile]] = {}
        """Reading end of a pipe -> its slot in `states`, and its log."""
        self._reported: set[int] = set()
        """The numbers of the errors that the node process knows."""
        self._poller = select.epoll()
        self._poller.register(control.fileno(), select.EPOLLIN)
        self._is_closed = False
        """True if the node process has closed its socket."""

    def run(self) -> float:
        """Writes logs until the node process has closed its socket. Returns when that was, in seconds since
        the machine was started."""
        while not self._is_closed:
            is_busy = self._round(-1)
            if not is_busy and not self._is_closed:
                select.select([self._control], [], [], BATCH_S)
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def drain(self) -> None:
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
        self._sources[number] = message["slot"], file
        self._poller.register(number, select.EPOLLIN)
        file.write(b"")
        self._report(file)

    def _pump(self, number: int) -> int:
        """Writes the data of a pipe, and closes the log at its end. Returns the number of bytes."""
        slot, file = self._sources[number]
        self._states[slot] = 1
        if data := os.read(number, READ_BYTES):
            file.write(data)
            self._report(file)
        self._states[slot] = 0
        if not data:
            self._poller.unregister(number)
            del self._sources[number]
            file.close()
            os.close(number)
        return len(data)

    def _report(self, file: LogFile) -> None:
        number = file.problem.errno if file.problem else None
        if file.problem is None or number in self._reported:
            return
        self._reported.add(number or 0)
        text = {"path": str(file.path), "error": file.problem.strerror or os.strerror(number or errno.EIO)}
        with suppress(OSError):
            self._control.send(json.dumps(text).encode())


def _pump(control: socket.socket, states: mmap.mmap, scratch: Scratch) -> int:
    """Writes logs until the end of the node process, in a process of its own. Returns its exit code."""
    pump = LogPump(control, states)
    closed = pump.run()
    pump.drain()
    termination.kill_marked(f"{VARIABLE}={scratch.folder}", closed)
    pump.drain()
    scratch.release()
    return 0


PIPE_BYTES = 1 << 18
"""Size of a pipe: what a worker can write while the disk, or the process that writes logs, is slow."""
SLOTS = 1 << 14
"""Maximum number of workers of a node."""
WRITTEN_S = 2.0
"""Time limit for the output of a worker that has ended to be in its log."""
POLL_S = 0.001


@dataclass(frozen=True)
class Outputs:
    """The writing ends of the pipes of an agent's workers, in their order."""

    descriptors: tuple[int, ...]
    slots: tuple[int, ...]
    states: mmap.mmap

    def wait_written(self, worker: int) -> None:
        """Waits until the log of a worker contains all output of the worker."""
        _wait_written(self.states, [(self.descriptors[worker], self.slots[worker])])

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class WorkerLogs:
    def __init__(self, scratch: Scratch) -> None:
        """`scratch` is the folder that the process releases at its end."""
        self._states = mmap.mmap(-1, SLOTS)
        self._readers: list[int] = []
        """The reading ends of the pipes of the attempt. The index is the slot."""
        self._socket, theirs = forkserver.agent_sockets()
        forkserver.flush()
        with forkserver.blocked_signals():
            self.pid = os.fork()
            if not self.pid:
                keep = [theirs.fileno(), scratch.descriptor]
                forkserver.become(TITLE, 0, "", keep, partial(_pump, theirs, self._states, scratch))
        theirs.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[tuple[str, str]]:
        """Returns the path of a log that cannot be written and the reason, each reason once."""
        problems = []
        with suppress(BlockingIOError, ConnectionResetError):
            while packet := self._socket.recv(PACKET_BYTES_MAX, socket.MSG_DONTWAIT):
                message = json.loads(packet)
                problems.append((message["path"], message["error"]))
        return problems

    def open(self, paths: Sequence[Path], keep: int) -> Outputs:
        """Makes a pipe for each log. `keep` bounds the bytes of each one; 0 for no limit. Raises
        `OSError`."""
        begin, writers = len(self._readers), list[int]()
        try:
            for path in paths:
                reader, writer = os.pipe2(os.O_CLOEXEC)
                writers.append(writer)
                with suppress(OSError):  # the user has too many large pipes
                    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
                self._readers.append(reader)
                message = {"path": str(path), "keep": keep, "slot": len(self._readers) - 1}
                with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, as this process will
                    socket.send_fds(self._socket, [json.dumps(message).encode()], [reader])
        except OSError:
            for writer in writers:
                os.close(writer)
            raise
        return Outputs(tuple(writers), tuple(range(begin, len(self._readers))), self._states)

    def end_attempt(self) -> None:
        """Waits until all output is in the logs, and closes the pipes."""
        _wait_written(self._states, [(reader, slot) for slot, reader in enumerate(self._readers)])
        for reader in self._readers:
            os.close(reader)
        self._readers = []

    def close(self) -> None:
        """Ends the process, once it has written all output. To be called when all workers have ended."""
        self.end_attempt()
        self._socket.close()
        end = time.monotonic() + WRITTEN_S
        with suppress(ChildProcessError):
            while not os.waitpid(self.pid, os.WNOHANG)[0] and time.monotonic() < end:
                time.sleep(POLL_S)


def _wait_written(states: mmap.mmap, pipes: Collection[tuple[int, int]]) -> None:
    """Waits until each pipe, given with its slot, is empty and all that was read from it is written."""
    end = time.monotonic() + WRITTEN_S
    unread = array.array("i", [0])
    for descriptor, slot in pipes:
        while time.monotonic() < end:
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
            if not unread[0] and not states[slot]:  # in this order: the state is set before bytes are read
                break
            time.sleep(POLL_S)
