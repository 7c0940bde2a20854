"""The children of a node process that do one task each: agents, examinations and downloads."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from meshctl.engines.node import forkserver
from meshctl.run import process

BUG = 70
"""Exit code of a task that raises an exception."""


def become(title: str, parent: int, log: str, keep: Sequence[int], task: Callable[[], int]) -> NoReturn:
    """Runs a task in a forked copy of the node process, and exits with the code that it returns.

    The child dies with `parent`, the node process. Its output goes to the file `log`, and of the inherited
    files it keeps the descriptors `keep`. Never returns.
    """
    code = BUG
    try:
        os.setsid()
        forkserver.default_signals()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        process.die_with(parent, signal.SIGKILL)
        process.set_title(title)
        forkserver.redirect_to_file(log)
        process.close_files(keep)
        code = task()
    except BaseException:
        traceback.print_exc()
    finally:
        forkserver.leave(code)
