"""Watches the main thread of the launcher, from another thread. While the disk of the run directory does not
answer, every write of the launcher waits for it in state D, which no signal interrupts.

    watch = LauncherWatch.of(attempt, signals, handle)
    watch.take_texts()              # lines for the events, once the disk answers again
    watch.take_expired()            # once: why the run ends
    watch.close()

The report comes like that of a stalled worker, and names the file and the processes that also wait for a
disk. The thread receives the signals of the launcher meanwhile: a second one kills all processes that the
kernel lets end, and so does the end of `run.patience`.
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
from meshctl.engines.node.waiting_file import file_of
from meshctl.engines.supervise import stalls
from meshctl.engines.supervise.attempt import Attempt
from meshctl.engines.supervise.signals import Signals
from meshctl.engines.supervise.start_watch import POLL_S, SIGNALS_S, announce, status_of
from meshctl.run.directory import RunDir

NAMES_MAX = 8
"""Maximum number of processes that a report names."""


class LauncherWatch:
    def __init__(
        self,
        run: RunDir,
        signals: Signals,
        kill: Callable[[], None],
        patience_s: float,
        announce: Callable[[str], None] = announce,
    ) -> None:
        """Watches the thread that calls it. `kill` kills all processes of the run. `patience_s` is
        `run.patience`; 0 for no limit."""
        self._run, self._signals, self._kill, self._announce = run, signals, kill, announce
        self._patience_s = patience_s or math.inf
        self._task = threading.get_native_id()
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
        self._sleep = ""
        """The number of the main thread's present sleep in state D; empty if it does not sleep."""
        self._seconds = 0.0
        """Seconds for which it was seen in this sleep."""
        self._has_reported = self._has_killed = False
        self._texts: list[str] = []
        self._expired: list[str] = []

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

    def take_texts(self) -> list[str]:
        """Returns the lines about waits that are over. Each one is returned once."""
        texts, self._texts = self._texts, []
        return texts

    def take_expired(self) -> str:
        """Returns why the run ends, at the first call after the patience was exceeded; empty otherwise."""
        return self._expired.pop() if self._expired else ""

    # The thread

    def _watch(self) -> None:
        while not self._is_over.wait(POLL_S):
            self.poll()

    def poll(self) -> None:
        self._look()
        self._receive_signals()
        if self._seconds >= stalls.LIMITS.report_s and not self._has_reported:
            self._has_reported = True
            self._report()
        if self._seconds >= self._patience_s and not self._has_killed:
            self._expire()

    def _look(self) -> None:
        """Notes whether the main thread is in state D. Polls are counted, because this process may have been
        stopped in between."""
        state, sleeps = _state_of(self._task)
        if state == "D" and sleeps == self._sleep:
            self._seconds += POLL_S
            return
        if self._has_reported:
            self._texts.append(f"the disk answers: the launcher goes on, after {self._seconds:.0f} s")
        self._sleep, self._seconds = sleeps if state == "D" else "", 0.0
        self._has_reported, self._uncounted = False, 0

    def _receive_signals(self) -> None:
        """Receives the signals that wait for the main thread."""
        numbers, handled = {*map(int, self._signals.NUMBERS)}, set[int]()
        with suppress(BlockingIOError):
            handled = numbers.intersection(os.read(self._handled, 1 << 12))
        if self._seconds < SIGNALS_S:
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
            self._announce(f"{name}: the run ends once the disk answers; a second one kills its processes")

    def _report(self) -> None:
        file = file_of(os.getpid(), self._task) or str(self._run.path)
        self._announce(
            f"stalled for {self._seconds:.0f} s: the launcher waits for the disk of {file} (state D)"
        )
        if names := list(_waiting_processes()):
            more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
            self._announce(f"  so do {', '.join(names[:NAMES_MAX])}{more}")
        self._announce("  all go on once it answers: look at it (df, mount, dmesg)")

    def _expire(self) -> None:
        reason = (
            f"the disk of {self._run.path} has not answered for {self._patience_s:.0f} s (`run.patience`)"
        )
        self._expired.append(reason)
        self._kill_all(f"error: {reason}")

    def _kill_all(self, text: str) -> None:
        self._has_killed = True
        self._kill()
        self._announce(f"{text}; processes that wait for the disk, such as this one, end once it answers")


def _state_of(task: int) -> tuple[str, str]:
    """Returns the state of a thread of this process as the kernel's letter, and the number of its sleeps."""
    status = status_of(os.getpid(), task)
    return status.get("State", "")[:1], status.get("voluntary_ctxt_switches", "")


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
