"""`meshctl launch --detach`: the launcher continues in a new session, so that it survives the terminal.

The process that the user has called waits until the run directory exists, which is after the checks of the
recipe and of the machine, and reports it. Until then the launcher has the terminal, so its errors appear
there, and its exit code is that of the command. From then on its output is in `logs/launcher.log`, and it
ignores SIGHUP.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from meshctl.cli.forks import run_and_exit
from meshctl.cli.output import write
from meshctl.engines.node.forkserver import flush
from meshctl.run.directory import RUNS, RunDir
from meshctl.run.finding import name_of

Begin = Callable[[RunDir], None]
Launch = Callable[[Begin], int]
"""Launches a run, calls its argument with the run directory before any process is started, and returns the
exit code."""


def detach(launch: Launch) -> int:
    """Returns once the run has begun, or has been refused. To be called before any thread exists."""
    flush()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.setsid()
        # A script may have started this process with `&`.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def begin(run: RunDir) -> None:
            _redirect(run)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.write(writer, str(run.path).encode())
            os.close(writer)

        run_and_exit(lambda: launch(begin))
    os.close(writer)
    passed = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def on_signal(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, on_signal) for number in passed}
    try:
        with os.fdopen(reader, encoding="utf-8") as pipe:
            path = pipe.read()
        if path:
            write(announced(RunDir(Path(path)), "runs in the background"), sys.stdout)
            return 0
        _, status = os.waitpid(child, 0)
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    code = os.waitstatus_to_exitcode(status)
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
