"""The pipes of a node's workers, as the node process and its agents see them.

logs = WorkerLogs(scratch)                       # starts the process that writes logs
outputs = logs.open([(path, keep), ...])         # before an agent is forked: a pipe for each worker
outputs.wait_written(number)                     # in the agent, once a worker has ended
logs.end_attempt()                               # once no process of the attempt is left
"""

from __future__ import annotations

import array
import fcntl
import json
import mmap
import os
import signal
import socket
import termios
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.engines.node import forkserver, log_pump, stacks
from meshctl.engines.node.scratch import Scratch

PIPE_BYTES = 1 << 18
"""Size of a pipe: what a worker can write while the disk, or the process that writes logs, is slow."""
SLOTS = 1 << 14
"""Maximum number of workers of a node."""
WRITTEN_S = 2.0
"""Time limit for the output of a worker that has ended to be in its log."""
LOOK_S = 1.0
"""Seconds between two looks at the process that writes logs."""
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


@dataclass(frozen=True)
class _Pipe:
    reader: int
    path: str
    keep: int


class WorkerLogs:
    def __init__(self, scratch: Scratch) -> None:
        """`scratch` is the folder that the process releases at its end."""
        self._scratch = scratch
        self._states = mmap.mmap(-1, SLOTS)
        self._pipes: list[_Pipe] = []
        """The pipes of the attempt. The index is the slot."""
        self._looked = 0.0
        self._start()

    def _start(self) -> None:
        self._socket, theirs = forkserver.agent_sockets()
        forkserver.flush()
        with forkserver.blocked_signals():
            self.pid = os.fork()
            if not self.pid:
                log_pump.become(theirs, self._states, self._scratch)
        theirs.close()
        self.has_ended = False
        """True if the process has ended; the owner, its parent, sets it."""
        for slot in range(len(self._pipes)):
            self._send(slot)

    def _restart(self) -> None:
        self._socket.close()
        self._start()

    def keep_alive(self, now: float) -> None:
        """Starts another process in place of one that has ended, which continues with the same pipes. Kills
        one that is stopped (SIGSTOP), because workers would wait for it. At most once a second."""
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        if self.has_ended:
            self._restart()
        elif stacks.is_stopped(self.pid):
            os.kill(self.pid, signal.SIGKILL)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[tuple[str, str]]:
        """Returns the path of a log that cannot be written and the reason, each reason once."""
        problems = []
        with suppress(BlockingIOError, ConnectionResetError):
            while packet := self._socket.recv(log_pump.PACKET_BYTES_MAX, socket.MSG_DONTWAIT):
                message = json.loads(packet)
                problems.append((message["path"], message["error"]))
        return problems

    def open(self, paths: Sequence[Path], keep: int) -> Outputs:
        """Makes a pipe for each log. `keep` bounds the bytes of each one; 0 for no limit. Raises
        `OSError`."""
        begin, writers = len(self._pipes), list[int]()
        try:
            for path in paths:
                reader, writer = os.pipe2(os.O_CLOEXEC)
                writers.append(writer)
                os.set_blocking(reader, False)
                with suppress(OSError):  # the user has too many large pipes
                    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
                self._pipes.append(_Pipe(reader, str(path), keep))
                self._send(len(self._pipes) - 1)
        except OSError:
            for writer in writers:
                os.close(writer)
            raise
        return Outputs(tuple(writers), tuple(range(begin, len(self._pipes))), self._states)

    def _send(self, slot: int) -> None:
        pipe = self._pipes[slot]
        message = {"path": pipe.path, "keep": pipe.keep, "slot": slot}
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, and `restart` sends it again
            socket.send_fds(self._socket, [json.dumps(message).encode()], [pipe.reader])

    def end_attempt(self) -> None:
        """Waits until all output is in the logs, and closes the pipes."""
        if self.has_ended and self._pipes:
            self._restart()
        _wait_written(self._states, [(pipe.reader, slot) for slot, pipe in enumerate(self._pipes)])
        for pipe in self._pipes:
            os.close(pipe.reader)
        self._pipes = []

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
    while any(not _is_written(states, *pipe) for pipe in pipes) and time.monotonic() < end:
        time.sleep(POLL_S)


def _is_written(states: mmap.mmap, descriptor: int, slot: int) -> bool:
    unread = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, unread)
    return not unread[0] and not states[slot]  # in this order: the state is set before bytes are read
