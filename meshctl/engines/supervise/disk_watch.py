"""The disk of a run: its files can still be written (`RunFiles`), and it answers (`LauncherWatch`).

Where a disk does not answer, every write to the run directory waits in state D, which no signal interrupts.

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
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from meshctl.engines.engine import Handle
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.stalls import REPORT_S
from meshctl.engines.supervise.watches import Fault, Note, Watch
from meshctl.network.connection import Message
from meshctl.run.directory import RunDir
from meshctl.text.english import listed

POLL_S = 0.5
SIGNALS_S = 2.0
"""Seconds in state D after which signals are answered for the launcher."""


class LauncherWatch(Watch):
    def __init__(self, run: RunDir, signals: Signals, kill: Callable[[], None], patience_s: float) -> None:
        """Watches the thread that calls it. `kill` kills all processes of the run. `patience_s` is
        `run.patience`; 0 for no limit."""
        super().__init__()
        self._run, self._signals, self._kill = run, signals, kill
        self._patience_s = patience_s or math.inf
        self._task = threading.get_native_id()
        self._sleep, self._slept_s = "", 0.0
        """The number of the present sleep in state D, and the seconds for which polls have seen it. They are
        counted, because this process may have been stopped in between."""
        self._is_reported = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="launcher watch", daemon=True)
        self._uncounted = 0
        """The number of signals that the watching thread has received. The main thread counts them when it
        continues."""
        self._has_killed = False

    @classmethod
    def of(cls, attempt: Attempt, signals: Signals, handle: Handle) -> LauncherWatch:
        """Starts the thread that watches the launcher of a run. It must be called after the engine has forked
        its processes. A debugged run has no limit of time."""
        patience_s = 0.0 if attempt.start.debug else attempt.plan.run.patience
        watch = cls(attempt.run, signals, handle.kill, patience_s)
        watch._thread.start()
        return watch

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

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
        if not self._sleep:
            return
        numbers = {*map(int, self._signals.NUMBERS)}
        handled = numbers.intersection(self._signals.arrived())
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


FILES_S = 1.0
"""Seconds between two checks of the run directory."""
PROBE, PROBE_BYTES = ".probe", 1 << 18
"""A file that is written to find out whether the disk is full. A full disk may have room for a few bytes."""


class RunFiles(Watch):
    """Finds out why the files of a run cannot be written. A run whose directory was deleted ends. On a disk
    that is full or became read-only, it continues after a warning."""

    def __init__(self, run: RunDir, warn: Callable[[str], None]) -> None:
        """`warn` shows a line to the user. An event would not do: a full disk does not take it."""
        self._run, self._warn = run, warn
        self._folder = _identity(run.path)
        """The device and inode of the run directory: a worker may make a folder of its name again."""
        self._next = 0.0
        self._disk_problem = ""
        """The warning that the disk takes no data; empty while it takes data."""

    def poll(self, now: float) -> Iterator[Fault]:
        """Returns the error of a run whose directory was deleted."""
        if now >= self._next:
            self._next = now + FILES_S
            self._examine_disk()
            if deleted := self._deleted():
                yield Fault(Cause(Priority.OWN, deleted))

    def lost(self) -> str:
        """Returns why the results of a run that has ended are gone; empty if they are there."""
        run = self._run
        missing = [file.name for file in (run.plan, run.start) if not file.exists()]
        emptied = f"the run directory {run.path} was emptied: it has no {listed(missing)}" if missing else ""
        is_saved = not (step := run.saved()) or run.checkpoint(step).is_dir()
        return self._deleted() or emptied or ("" if is_saved else f"{run.checkpoint(step)} was deleted")

    def _deleted(self) -> str:
        was_deleted = _identity(self._run.path) != self._folder
        return f"the run directory {self._run.path} was deleted" if was_deleted else ""

    def receive(self, message: Message, now: float) -> None:
        """Warns that the log of a worker cannot be written, unless the disk takes no data at all."""
        if message["type"] == "log_problem":
            self._examine_disk()
            if not self._disk_problem:
                path, reason = message["path"], message["reason"]
                self._warn(f"{path} cannot be written: {reason}; output is lost until it can")

    def _examine_disk(self) -> None:
        """Warns once each time that the disk becomes full or read-only."""
        found = self._problem_of_disk()
        if found and found != self._disk_problem:
            self._warn(f"the disk of {self._run.path} {found}, and output of workers is lost")
        self._disk_problem = found

    def _problem_of_disk(self) -> str:
        try:
            if os.statvfs(self._run.path).f_bavail == 0:
                return "is full: events wait until there is space"
            os.utime(self._run.path)  # a file system that became read-only after an error may not state it
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"cannot be written: {error.strerror}; events wait until it can"
        return ""

    def explain(self, cause: Cause | None) -> Cause | None:
        """Returns the cause of a failure. The run directory is the reason where it was deleted, or where it
        cannot be written and no worker has reported a fault of its own."""
        if cause is None:
            return None
        problem = self._deleted() or ("" if cause.priority is Priority.OWN else self.problem())
        return Cause(Priority.OWN, f"{problem}; then {cause.line}", log=cause.log) if problem else cause

    def problem(self) -> str:
        """Returns the reason why the run directory cannot be written now; empty if it can be written."""
        probe = self._run.path / PROBE
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        except OSError as error:
            return f"the run directory {self._run.path} cannot be written: {error.strerror}"
        finally:
            with suppress(OSError):
                os.unlink(probe)
        return ""


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
