"""A launch in a separate process, to which this process passes its signals on.

process = LaunchProcess()
with process.passing_signals():
    code = process.run(lambda: launch(...))
process.stopped_code                    # 130 after Ctrl-C
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from meshctl.cli.parallel_start import run_and_exit
from meshctl.engines.node.forkserver import flush
from meshctl.engines.supervise.signals import Signals
from meshctl.run.process import die_with


class LaunchProcess:
    def __init__(self) -> None:
        self.stopped_code = 0
        """The exit code of the first signal: 129, 130 or 143; 0 if there was none."""
        self._child = 0
        """The process that runs; 0 if none does."""
        self._handlers: Mapping[signal.Signals, Any] = {}

    @contextmanager
    def passing_signals(self) -> Iterator[None]:
        """Passes signals on to the process that runs. A signal that is ignored stays ignored."""
        self._handlers = {number: signal.getsignal(number) for number in Signals.NUMBERS}
        for number, old in self._handlers.items():
            if old is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            for number, old in self._handlers.items():
                signal.signal(number, old)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Ends the process. A terminal sends a Ctrl-C to it too; the launcher counts both as one."""
        self.stopped_code = self.stopped_code or Signals.CODES.get(number, 143)
        if self._child:
            os.kill(self._child, number)

    def run(self, work: Callable[[], int]) -> int:
        """Runs `work` in a fork. Returns its exit code, or the negative number of a signal."""
        flush()
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, Signals.NUMBERS)  # until `_child` is set
        self._child = os.fork()
        if not self._child:
            self._become(work, parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, Signals.NUMBERS)
        ended = os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
        child, self._child = self._child, 0
        os.waitpid(child, 0)
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _become(self, work: Callable[[], int], parent: int) -> NoReturn:
        """Turns this forked process into a launcher."""

        def run() -> int:
            die_with(parent, signal.SIGTERM)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, Signals.NUMBERS)
            return work()

        run_and_exit(run)
