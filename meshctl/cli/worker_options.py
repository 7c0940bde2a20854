"""`launch --follow GROUP[:RANK]` and `launch --debug GROUP:RANK`: the options that name workers.

The debugged worker has the launcher's terminal as its standard streams, so that `breakpoint()` works in it.
Ctrl-C interrupts this worker instead of the run. All time limits of the run are disabled.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

from meshctl.cli.load import Launchable
from meshctl.cli.replay import Misused
from meshctl.engines.engine import CannotStart
from meshctl.plan.model import Plan
from meshctl.run.events import Event, Observer
from meshctl.text.english import counted, did_you_mean

NEVER_S = 30 * 24 * 3600.0
"""The grace period of a run that is debugged."""


def check_workers(plan: Plan, option: str, names: Sequence[str]) -> None:
    """Raises `Misused` unless each name is a GROUP or GROUP:RANK of the plan."""
    groups = {group.name: group for group in plan.groups}
    for name in names:
        group, colon, rank = name.partition(":")
        if group not in groups:
            raise Misused(f"{option}: group `{group}` does not exist; {did_you_mean(group, groups)}")
        if colon and not (rank.isdecimal() and int(rank) < groups[group].workers):
            has = counted(groups[group].workers, "rank")
            raise Misused(f"{option}: group `{group}` has no rank `{rank}`; it has {has}, from 0")


def with_debugging(ready: Launchable, name: str) -> Launchable:
    """Returns the recipe with this process's terminal for one worker, and without time limits.

    Raises `Misused` if the worker does not exist, and `CannotStart` if this process has no terminal.
    """
    check_workers(ready.plan, "--debug", [name])
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        raise CannotStart("--debug needs a terminal as standard input and output")
    worker = name if ":" in name else f"{name}:0"
    limitless = replace(ready.plan.run, patience=0.0, grace=NEVER_S)
    start = replace(ready.start, debug=worker, terminal=os.ttyname(sys.stdin.fileno()))
    return replace(ready, plan=replace(ready.plan, run=limitless), start=start)


class DebuggedWorker(Observer):
    """An observer that records the process of the debugged worker."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._pid = 0

    def on_attempt(self, number: int, step: int | None) -> None:
        self._pid = 0

    def on_event(self, event: Event) -> None:
        if f"{event.group}:{event.rank}" == self._worker and event.name in ("started", "exited"):
            self._pid = int(event.value["pid"]) if event.name == "started" else 0

    def on_end(self, code: int, reason: str) -> None:
        self._pid = 0

    @contextmanager
    def interrupted_by(self, otherwise: Callable[[int, FrameType | None], object]) -> Iterator[None]:
        """Context manager that sends each Ctrl-C to the debugged worker while it runs, and restores the
        terminal at the end. `otherwise` handles a Ctrl-C when the worker does not run."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            if not self._pid:
                otherwise(number, frame)
                return
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGINT)

        mode = termios.tcgetattr(sys.stdin.fileno())
        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, mode)
