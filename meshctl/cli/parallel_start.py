"""Prepares a launch in two processes: a fork reads the recipe while this process imports torch.

Each takes almost a second on one core; in parallel, a launch waits only for the longer one. If the recipe has
errors, this process exits at once, even during its import, because no other process has been started by then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from meshctl.cli.crash import bug
from meshctl.engines.node.forkserver import flush
from meshctl.engines.node.termination import name_of


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
