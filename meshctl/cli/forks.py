"""Launches in forks of this process.

With `--detach` the launcher continues in a new session, so that it survives the terminal. The process that
the user has called waits until the run directory exists, which is after the checks of the recipe and of the
machine, and reports it. Until then the launcher has the terminal, so its errors appear there, and its exit
code is that of the command. From then on its output is in `logs/launcher.log`, and it ignores SIGHUP.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from meshctl.cli.output import failed, write
from meshctl.engines.node.forkserver import flush
from meshctl.engines.supervise.signals import Signals
from meshctl.run.directory import RUNS, RunDir
from meshctl.run.finding import name_of
from meshctl.run.process import die_with


def run_and_exit(run: Callable[[], int]) -> NoReturn:
    """Exits a forked process with the exit code of `run`, without Python's finalization."""
    code = 70
    try:
        code = run()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # as in `main`
        code = failed(error)
    finally:
        try:
            flush()
        finally:
            os._exit(code)


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
        self.start(work)
        return self.wait()

    def start(self, work: Callable[[], int], survives: bool = False) -> None:
        """Starts `work` in a fork, which ends with this process unless it `survives`."""
        flush()
        parent = os.getpid()

        def run() -> int:
            if not survives:
                die_with(parent, signal.SIGTERM)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, Signals.NUMBERS)
            return work()

        signal.pthread_sigmask(signal.SIG_BLOCK, Signals.NUMBERS)  # until `_child` is set
        self._child = os.fork()
        if not self._child:
            run_and_exit(run)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, Signals.NUMBERS)

    def wait(self) -> int:
        ended = os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
        child, self._child = self._child, 0
        os.waitpid(child, 0)
        assert ended is not None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


# `launch --detach`

Begin = Callable[[RunDir], None]
Launch = Callable[[Begin], int]
"""Launches a run, calls its argument with the run directory before any process is started, and returns the
exit code."""


def detach(launch: Launch) -> int:
    """Returns once the run has begun, or has been refused. To be called before any thread exists."""
    reader, writer = os.pipe()

    def begin(run: RunDir) -> None:
        _redirect(run)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.write(writer, str(run.path).encode())
        os.close(writer)

    def work() -> int:
        os.close(reader)
        os.setsid()
        # A script may have started this process with `&`.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return launch(begin)

    process = LaunchProcess()
    with process.passing_signals():
        process.start(work, survives=True)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as pipe:
            path = pipe.read()
        if path:
            write(announced(RunDir(Path(path)), "runs in the background"), sys.stdout)
            return 0
        code = process.wait()
    return 128 - code if code < 0 else code


def _redirect(run: RunDir) -> None:
    """Writes the output to the log of the launcher from now on. Raises `OSError`."""
    path = run.launcher_log
    path.parent.mkdir(exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    flush()
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)


def announced(run: RunDir, what: str) -> str:
    """Returns the report about a run that goes on without this process, and how to reach it."""
    is_found_by_name = run.path.parent.parent == Path(RUNS).resolve()
    named = shlex.quote(name_of(run) if is_found_by_name else str(run.path))
    return (
        f"{run.path} {what}\n"
        f"  watch it: meshctl watch {named}\n"
        f"  its logs: meshctl logs {named} -f\n"
        f"  stop it:  meshctl stop {named}\n"
    )
