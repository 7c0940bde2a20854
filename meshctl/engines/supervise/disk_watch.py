"""Watches a launcher whose disk does not answer. Every write to the run directory then waits in state D,
which no signal interrupts.

    watch = LauncherWatch.of(attempt, signals, handle)
    watch.poll(now)                    # lines about waits that are over, and once why the run ends
    watch.close()

A thread, which is started after the engine has forked, reports the wait. It receives the signals of the
launcher meanwhile: a second one kills all processes that the kernel lets end, and so does the end of
`run.patience`.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from meshctl.engines.engine import Handle
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.stalls import REPORT_S
from meshctl.engines.supervise.watches import Fault, Finding, Note, Watch
from meshctl.run.directory import RunDir

POLL_S = 0.5
SIGNALS_S = 2.0
"""Seconds in state D after which signals are answered for the launcher."""


class LauncherWatch(Watch):
    def __init__(self, run: RunDir, signals: Signals, kill: Callable[[], None], patience_s: float) -> None:
        """Watches the thread that calls it. `kill` kills all processes of the run. `patience_s` is
        `run.patience`; 0 for no limit."""
        self._run, self._signals, self._kill = run, signals, kill
        self._patience_s = patience_s or math.inf
        self._task = threading.get_native_id()
        self._sleep, self._slept_s = "", 0.0
        """The number of the present sleep in state D, and the seconds for which polls have seen it. They are
        counted, because this process may have been stopped in between."""
        self._is_reported = False
        self._is_main = threading.current_thread() is threading.main_thread()
        """True if this thread handles signals. In tests a supervisor may run in another thread."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="launcher watch", daemon=True)
        self._handled, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """A pipe with the numbers of the signals that the watching thread has received. The main thread
        counts them when it continues."""
        self._wakeup_before = -1
        self._uncounted = 0
        """The number of signals in the pipe that the main thread has not counted yet."""
        self._has_killed = False
        self._findings: list[Finding] = []

    @classmethod
    def of(cls, attempt: Attempt, signals: Signals, handle: Handle) -> LauncherWatch:
        """Begins to watch a run. A run that is debugged has no limit."""
        patience_s = 0.0 if attempt.start.debug else attempt.plan.run.patience
        watch = cls(attempt.run, signals, handle.kill, patience_s)
        watch.start()
        return watch

    def start(self) -> None:
        """Starts the thread, after the engine has forked."""
        if self._is_main:
            self._wakeup_before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._thread.start()

    def close(self) -> None:
        if self._is_main:
            signal.set_wakeup_fd(self._wakeup_before)
        self._is_over.set()
        self._thread.join()
        os.close(self._handled)
        os.close(self._wakeup)

    def poll(self, now: float = 0.0) -> list[Finding]:
        findings, self._findings = self._findings, []
        return findings

    # The thread

    def _watch(self) -> None:
        while not self._is_over.wait(POLL_S):
            self.look()

    def look(self) -> None:
        self._look_at_launcher()
        self._receive_signals()
        if self._slept_s >= REPORT_S and not self._is_reported:
            self._is_reported = True
            waits = f"the launcher waits for the disk of {self._run.path} (state D)"
            announce(f"stalled for {self._slept_s:.0f} s: {waits}")
            announce("  all go on once it answers: look at it (df, mount, dmesg)")
        if self._slept_s >= self._patience_s and not self._has_killed:
            patience = f"{self._patience_s:.0f} s (`run.patience`)"
            reason = f"the disk of {self._run.path} has not answered for {patience}"
            self._findings.append(Fault(Cause(Priority.OWN, reason)))
            self._kill_all(f"error: {reason}")

    def _look_at_launcher(self) -> None:
        sleep = sleep_of(self._task)
        if sleep and sleep == self._sleep:
            self._slept_s += POLL_S
            return
        if self._is_reported:
            text = f"the disk answers: the launcher goes on, after {self._slept_s:.0f} s"
            self._findings.append(Note("stall", {"workers": [], "seconds": 0.0, "text": [text]}))
        self._sleep, self._slept_s, self._is_reported, self._uncounted = sleep, 0.0, False, 0

    def _receive_signals(self) -> None:
        """Receives the signals that wait for the main thread."""
        numbers, handled = {*map(int, self._signals.NUMBERS)}, set[int]()
        with suppress(BlockingIOError):
            handled = numbers.intersection(os.read(self._handled, 1 << 12))
        if self._slept_s < SIGNALS_S:
            return
        before = self._signals.count + self._uncounted
        self._uncounted += len(handled)
        while found := signal.sigtimedwait(numbers, 0):
            handled.add(found.si_signo)
            self._signals.receive(found.si_signo)
        count = self._signals.count + self._uncounted
        if count > 1 and not self._has_killed:
            self._kill_all("killed")
        elif count > before:
            name = signal.Signals(min(handled)).name
            announce(f"{name}: the run ends once the disk answers; a second one kills its processes")

    def _kill_all(self, text: str) -> None:
        self._has_killed = True
        self._kill()
        announce(f"{text}; processes that wait for the disk, such as this one, end once it answers")


def sleep_of(task: int) -> str:
    """Returns the number of the present sleep of a thread of this process in state D; empty if it does not
    sleep so."""
    with suppress(OSError, ValueError):
        lines = Path(f"/proc/self/task/{task}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines)
        return status["voluntary_ctxt_switches"] if status["State"].startswith("D") else ""
    return ""


def announce(text: str) -> None:
    """Writes a line to standard error, of which nobody may be the reader any more."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
