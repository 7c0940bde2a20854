"""The signals that request a launcher or a node process to end: SIGINT, SIGTERM, SIGHUP and SIGUSR2.
Schedulers send the last one some time before they end a job. SIGUSR1 requests a checkpoint, and the run goes
on."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import ClassVar

from meshctl.run.process import ENDED_BY_SCHEDULER

DUPLICATE_S = 0.2
"""Two equal signals within this time count as one, because some senders signal both the process and its
process group."""


class Signals:
    """Counts the signals that request this process to end. The first one determines the exit code."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
    CODES: ClassVar[Mapping[int, int]] = {signal.SIGINT: 130, signal.SIGHUP: 129}
    """Signal -> exit code, where it is not `ENDED_BY_SCHEDULER`."""

    def __init__(self) -> None:
        self.count = 0
        self.first: signal.Signals | None = None
        self._last = 0, -math.inf
        self._has_save_request = False
        """True if SIGUSR1 was received and nobody has taken the request."""
        self._arrived: list[int] = []
        """The reading end of a pipe that receives the number of each signal, while signals are handled."""

    @contextmanager
    def handled(self, numbers: Collection[signal.Signals] = NUMBERS) -> Iterator[Signals]:
        """Context manager that handles these signals and SIGUSR1. A signal that was ignored before, as under
        nohup, stays ignored."""
        before = {number: signal.getsignal(number) for number in (*numbers, signal.SIGUSR1)}
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        old_writer = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._arrived = [reader]
        for number, old in before.items():
            if old is not signal.SIG_IGN:
                signal.signal(number, self.receive)
        try:
            yield self
        finally:
            for number, old in before.items():
                signal.signal(number, old)
            signal.set_wakeup_fd(old_writer)
            self._arrived = []
            os.close(reader)
            os.close(writer)

    def wait(self, files: Iterable[int], seconds: float) -> set[int]:
        """Waits until a descriptor is readable or a signal arrives, for at most `seconds`. Returns those that
        are readable, and one more for a signal. Unlike `select.select`, it accepts descriptors above 1023."""
        poller = select.poll()
        for number in (*files, *self._arrived):
            poller.register(number, select.POLLIN)
        ready = {file for file, _ in poller.poll(1000 * seconds)}
        self.arrived()
        return ready

    def fileno(self) -> int:
        """Returns a descriptor that is readable once a signal has arrived, while signals are handled."""
        return self._arrived[0]

    def arrived(self) -> bytes:
        """Returns the numbers of the signals that have arrived since the last call or wait, one byte each."""
        with suppress(BlockingIOError):
            return b"".join(os.read(number, 4096) for number in self._arrived)
        return b""

    @property
    def code(self) -> int:
        """The exit code of an interrupted run."""
        return self.CODES.get(self.first or 0, ENDED_BY_SCHEDULER)

    def receive(self, number: int, _: FrameType | None = None) -> None:
        if number == signal.SIGUSR1:
            self._has_save_request = True
            return
        now = time.monotonic()
        last, when = self._last
        if number != last or now > when + DUPLICATE_S:
            self.count += 1
        self._last = number, now
        self.first = self.first or signal.Signals(number)

    def take_save_request(self) -> bool:
        """Returns whether SIGUSR1 was received since the last call."""
        was_requested, self._has_save_request = self._has_save_request, False
        return was_requested
