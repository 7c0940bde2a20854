"""Prepares a launch in two processes: a fork reads the recipe while this process imports torch.

Each takes most of a second on one core, so a launch waits only for the longer one. If the recipe has errors,
this process exits at once, in the middle of its import: nothing else has been started by then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from meshctl.cli.crash import bug
from meshctl.engines.node.forkserver import flush
from meshctl.engines.node.guard import name_of


def run_in_fork(work: Callable[[], tuple[int, str]], meanwhile: Callable[[], None]) -> str:
    """Runs `work` in a fork and `meanwhile` here, and returns the text of `work`. If the exit code of `work`
    is not 0, this process exits with it."""
    flush()
    interrupt_handler = signal.getsignal(signal.SIGINT)
    if interrupt_handler != signal.SIG_IGN:  # Python can lose an interrupt in a destructor during an import
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
    """Ends a forked process with the exit code of `run`, and without what Python does at its exit."""
    code = 70
    try:
        code = run()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # as in `main`: whatever gets here is a bug
        code = bug(error)
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def _exit_like(child: int, ended: os.waitid_result | None = None) -> None:
    """Exits as the child did, unless it exited with 0 or is still running."""
    ended = ended or os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if not ended or not ended.si_status:
        return
    if ended.si_code == os.CLD_EXITED:
        os._exit(ended.si_status)
    os.write(2, f"error: reading the recipe was {name_of(-ended.si_status)}\n".encode())
    os._exit(128 + ended.si_status)
