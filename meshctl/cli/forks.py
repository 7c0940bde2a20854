"""Launches in forks of this process.

A launch is prepared in two processes: a fork reads the recipe while this process imports torch.
Each takes almost a second on one core; in parallel, a launch waits only for the longer one. If the recipe has
errors, this process exits at once, even during its import, because no other process has been started by then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from meshctl.cli.output import bug
from meshctl.engines.node.forkserver import flush
from meshctl.engines.node.termination import name_of
from meshctl.engines.supervise.signals import Signals
from meshctl.run.process import die_with


def run_in_fork(work: Callable[[], tuple[int, str]], meanwhile: Callable[[], None]) -> str:
    """Runs `work` in a fork and `meanwhile` in this process. Returns the text of `work`. If the exit code of
    `work` is not 0, this process exits with it."""
    flush()
    interrupt_handler = signal.getsignal(signal.SIGINT)
    if (
        interrupt_handler != signal.SIG_IGN
    ):  # Python may drop a KeyboardInterrupt that is raised in a destructor
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        run_and_exit(lambda: _work(work, writer))
    os.close(writer)
    child_handler = signal.signal(signal.SIGCHLD, lambda *_: _exit_like(child))
    try:
        meanwhile()
        with os.fdopen(reader, encoding="utf-8") as pipe:
            text = pipe.read()
    finally:
        signal.signal(signal.SIGCHLD, child_handler)
        signal.signal(signal.SIGINT, interrupt_handler)
    _exit_like(child, os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT))
    os.waitpid(child, 0)
    return text


def _work(work: Callable[[], tuple[int, str]], writer: int) -> int:
    try:
        code, text = work()
        with os.fdopen(writer, "w", encoding="utf-8") as pipe:
            pipe.write(text)
    except BrokenPipeError:
        return 1  # the parent has exited
    return code


def run_and_exit(run: Callable[[], int]) -> NoReturn:
    """Exits a forked process with the exit code of `run`, without Python's finalization."""
    code = 70
    try:
        code = run()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # as in `main`, any other exception is a bug in meshctl
        code = bug(error)
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def _exit_like(child: int, ended: os.waitid_result | None = None) -> None:
    """Exits with the child's exit code or signal, unless the child exited with 0 or still runs."""
    ended = ended or os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if not ended or not ended.si_status:
        return
    if ended.si_code == os.CLD_EXITED:
        os._exit(ended.si_status)
    os.write(2, f"error: reading the recipe was {name_of(-ended.si_status)}\n".encode())
    os._exit(128 + ended.si_status)


class LaunchProcess:
    """A launch in a separate process, to which this process passes its signals on.

    process = LaunchProcess()
    with process.passing_signals():
        code = process.run(lambda: launch(...))
    """

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
