"""Processes inside a scheduler's job. A scheduler that ends a job sends SIGTERM to every process of it, and
SIGKILL some time later. Only the head and the node processes act on the SIGTERM: the head ends the run in
order, with a checkpoint. All other processes would die at once, so they ignore it.

    os.environ[IN_JOB] = "1"        in the head and in a node process
    is_in_job()                     in the processes that they start
    shield()
"""

from __future__ import annotations

import os
import signal
from types import FrameType

IN_JOB = "MESHCTL_IN_JOB"
"""The environment variable that states that the scheduler signals all processes of the run."""
ENDED_BY_HEAD = 75
"""The exit code of a node process whose head is lost, which may start again, or which the head has ended
although the run goes on, so that the scheduler starts another one."""
ENDED_BY_SCHEDULER = 143
"""The exit code of a head that a scheduler has asked to end."""
SHIELDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def is_in_job() -> bool:
    return bool(os.environ.get(IN_JOB))


def shield() -> None:
    """Makes this process deaf to the signals of a scheduler. Programs that it executes, and processes that it
    forks, such as those of a data loader, are not. To be called from the main thread."""
    own = os.getpid()

    def on_signal(number: int, _: FrameType | None) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in SHIELDED:
        signal.signal(number, on_signal)
