"""Two things at once at the start of a launch: a forked process reads the recipe while this one imports
torch.

Both take most of their time on one core, and whoever waits for a launch waits for the longer one only. A
recipe with errors ends this process too, at once and in the middle of its import: nothing else has been
started by then.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from meshctl.cli.crash import bug
from meshctl.engines.node.forkserver import flush
from meshctl.engines.node.guard import name_of


def aside(work: Callable[[], tuple[int, str]], meanwhile: Callable[[], None]) -> str:
    """The text of `work`, done in a fork; a code other than 0 becomes this process's exit code."""
    flush()
    interrupted = signal.getsignal(signal.SIGINT)
    if (
        interrupted != signal.SIG_IGN
    ):  # in the middle of an import Python may lose an interrupt in some destructor
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _work(work, writer)
    os.close(writer)
    before = signal.signal(signal.SIGCHLD, lambda *_: _leave_with(child))
    try:
        meanwhile()
        with os.fdopen(reader, encoding="utf-8") as pipe:
            text = pipe.read()
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal.signal(signal.SIGINT, interrupted)
    _leave_with(child, os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT))
    os.waitpid(child, 0)
    return text


def _work(work: Callable[[], tuple[int, str]], writer: int) -> NoReturn:
    code = 70
    try:
        code, text = work()
        with os.fdopen(writer, "w", encoding="utf-8") as pipe:
            pipe.write(text)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = 1  # the other one has gone
    except Exception as error:  # as in `main`: whatever gets here is a bug
        code = bug(error)
    finally:
        try:
            flush()
        finally:
            os._exit(code)


def _leave_with(child: int, ended: os.waitid_result | None = None) -> None:
    """Ends this process the way in which the child has ended, unless that was well."""
    ended = ended or os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended and ended.si_code != os.CLD_EXITED:
        os.write(2, f"error: reading the recipe was {name_of(-ended.si_status)}\n".encode())
    if ended and ended.si_status:
        os._exit(ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status)
