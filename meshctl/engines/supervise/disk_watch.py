"""Watches a launcher whose disk does not answer. Every write to the run directory then waits in state D,
which no signal interrupts.

    with watched(plan.run.dir):        # while the first files are written, before there is a process
        begin(...)

    watch = LauncherWatch.of(attempt, signals, handle)
    watch.poll(now)                    # lines about waits that are over, and once why the run ends
    watch.close()

There must be no thread before the fork of node processes, so another process watches at first, and a thread
later. Both name the file, and confirm a signal. The thread also names the processes that wait for a disk, and
receives the signals of the launcher: a second one kills all processes that the kernel lets end, and so does
the end of `run.patience`.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from meshctl.engines.engine import Handle
from meshctl.engines.node.stacks import file_of
from meshctl.engines.supervise import stalls
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.watches import Fault, Finding, Note, Watch
from meshctl.run.directory import RunDir

POLL_S = 0.5
SIGNALS_S = 2.0
"""Seconds in state D after which signals are answered for the launcher."""
NAMES_MAX = 8
"""Maximum number of processes that a report names."""


class Sleep:
    """The present sleep of a thread in state D, as polls see it. They are counted, because the one that polls
    may have been stopped in between."""

    def __init__(self, pid: int, task: int) -> None:
        self.pid, self.task = pid, task
        self.seconds = 0.0
        """Seconds for which it was seen in this sleep; 0 if it does not sleep."""
        self.status: dict[str, str] = {}
        self._number = ""
        self._has_reported = False

    def look(self) -> float:
        """Looks at the thread. Returns the seconds of a reported sleep that is over; 0 otherwise."""
        self.status = status_of(self.pid, self.task)
        is_waiting = self.status.get("State", "").startswith("D")
        number = self.status.get("voluntary_ctxt_switches", "") if is_waiting else ""
        if is_waiting and number == self._number:
            self.seconds += POLL_S
            return 0.0
        over = self.seconds if self._has_reported else 0.0
        self._number, self.seconds, self._has_reported = number, 0.0, False
        return over

    def is_due(self) -> bool:
        """Returns whether the sleep is to be reported now. It is reported once."""
        if self.seconds < stalls.LIMITS.report_s or self._has_reported:
            return False
        self._has_reported = True
        return True

    def line(self, folder: Path | str) -> str:
        """Returns the report. `folder` is what the thread writes to, for a kernel that does not show it."""
        file = file_of(self.pid, self.task) or str(folder)
        return f"stalled for {self.seconds:.0f} s: the launcher waits for the disk of {file} (state D)"


@contextmanager
def watched(folder: str) -> Iterator[None]:
    """Context manager during which a fork of this process watches it. `folder` is what it writes to. To be
    used by a process without other threads."""
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
        sleep, confirmed = Sleep(parent, parent), set[int]()
        while not select.select([reader], [], [], POLL_S)[0]:
            sleep.look()
            if sleep.is_due():
                announce(sleep.line(folder))
                announce("  it goes on once the disk answers: look at it (df, mount, dmesg)")
            for pending in _pending(sleep.status) - confirmed if sleep.seconds >= SIGNALS_S else ():
                confirmed.add(pending)
                announce(f"{signal.Signals(pending).name}: the launch ends once the disk answers")
    finally:
        os._exit(0)


class LauncherWatch(Watch):
    def __init__(self, run: RunDir, signals: Signals, kill: Callable[[], None], patience_s: float) -> None:
        """Watches the thread that calls it. `kill` kills all processes of the run. `patience_s` is
        `run.patience`; 0 for no limit."""
        self._run, self._signals, self._kill = run, signals, kill
        self._patience_s = patience_s or math.inf
        self._sleep = Sleep(os.getpid(), threading.get_native_id())
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
        if over := self._sleep.look():
            text = f"the disk answers: the launcher goes on, after {over:.0f} s"
            self._findings.append(Note("stall", {"workers": [], "seconds": 0.0, "text": [text]}))
        if not self._sleep.seconds:
            self._uncounted = 0
        self._receive_signals()
        if self._sleep.is_due():
            announce(self._sleep.line(self._run.path))
            if names := list(_waiting_processes()):
                more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
                announce(f"  so do {', '.join(names[:NAMES_MAX])}{more}")
            announce("  all go on once it answers: look at it (df, mount, dmesg)")
        if self._sleep.seconds >= self._patience_s and not self._has_killed:
            patience = f"{self._patience_s:.0f} s (`run.patience`)"
            reason = f"the disk of {self._run.path} has not answered for {patience}"
            self._findings.append(Fault(Cause(Priority.OWN, reason)))
            self._kill_all(f"error: {reason}")

    def _receive_signals(self) -> None:
        """Receives the signals that wait for the main thread."""
        numbers, handled = {*map(int, self._signals.NUMBERS)}, set[int]()
        with suppress(BlockingIOError):
            handled = numbers.intersection(os.read(self._handled, 1 << 12))
        if self._sleep.seconds < SIGNALS_S:
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


def status_of(pid: int, task: int) -> dict[str, str]:
    """Returns the lines of the kernel's status of a thread by their names."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/task/{task}/status").read_text()
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


def _waiting_processes() -> Iterator[str]:
    """Yields the titles of the descendants of this process with a thread in state D, by pid."""
    family = {os.getpid()}
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError, ValueError):
            name, state, parent = _stat_of(Path(f"/proc/{pid}/stat"))
            if parent in family:
                family.add(pid)
                tasks = Path(f"/proc/{pid}/task").iterdir()
                if state == "D" or any(_stat_of(task / "stat")[1] == "D" for task in tasks):
                    yield name


def _stat_of(path: Path) -> tuple[str, str, int]:
    """Returns the name, the state and the parent of a process."""
    before, _, after = path.read_text().rpartition(")")
    state, parent = after.split()[:2]
    return before.partition("(")[2], state, int(parent)
