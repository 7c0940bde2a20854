"""The first cause of a failed run: of everything that went wrong, over all groups, the one thing that began
it.

When one worker dies, its peers fail a moment later, often louder. So a worker's own fault (an exception, a
death by a signal) comes before an exit code alone or an abort, by which NCCL ends its process when it loses a
peer, and that before the reported loss of a peer. The loss of a peer that has itself lost a peer comes last.
Among equals the first that was received counts. Where only faults of lower priority are known, the worker
that knows more may still be about to report, and gets a moment.

    causes.add(event) for each event, then causes.settled(now) until it returns a `Cause`
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from meshctl.engines.node.guard import name_of
from meshctl.run.events import Event

TAIL_BYTES = 64 * 1024
"""Length of the end of a log in which the traceback of a worker that reported nothing is searched."""


class Priority(IntEnum):
    OWN = 0
    CODE = 1
    LOST = 2
    ECHO = 3
    """An agent that ended because a worker had."""


WAIT_S: Mapping[Priority, float] = {
    Priority.OWN: 0.1,
    Priority.CODE: 0.3,
    Priority.LOST: 2.0,
    Priority.ECHO: 2.0,
}
"""Seconds in which a fault of higher priority may still arrive."""

ATTEMPT = "==== meshctl: attempt "
"""Prefix of the line that separates attempts in a log; what stands before it belongs to another attempt."""

READ_ONLY = " (a received batch is read-only: clone() what is changed)"
"""Hint for a SIGSEGV. Received memory belongs to its producer, so a write to it ends the component."""

_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket (closed|timeout)|remote (process|peer) "
    r"(exited|closed)"
    r"|peer (is gone|has gone|closed)|DistNetworkError|ncclRemoteError|heartbeat|Timed out waiting",
    re.IGNORECASE,
)
"""The words in which torch's backends report the loss of a peer, in scripts that know nothing of meshctl."""

_MARK = re.compile(r"^\[rank\d+\]:\s?", re.MULTILINE)
"""What torch puts before each line of a traceback once there is a process group."""


@dataclass(frozen=True)
class Cause:
    priority: Priority
    error: str
    """One line."""
    group: str = ""
    rank: int | None = None
    """None for an agent, or for what belongs to no group."""
    stage: str = ""
    step: int | None = None
    doing: str = ""
    """The activity outside of a stage, e.g. "setup of `actor`"."""
    traceback: str = ""
    log: str = ""
    received: float = 0.0
    """When the head received it. Clocks of several hosts cannot tell what was first."""
    time: float = 0.0
    """When it was reported; orders what was received together."""
    peer: tuple[str, int] | None = None
    """Group and rank of the peer that was lost."""

    @property
    def line(self) -> str:
        """`train:1 failed in stage metrics, step 3: ValueError: boom`."""
        if not self.group:
            return self.error
        who = f"agent of {self.group}" if self.rank is None else f"{self.group}:{self.rank}"
        parts = [
            f"stage {self.stage}" if self.stage else "",
            self.doing,
            f"step {self.step}" if self.step else "",
        ]
        where = ", ".join(filter(None, parts))
        return f"{who} failed{f' in {where}' if where else ''}: {self.error}"


Who = tuple[str, int | None]
"""Group and rank."""


class Causes:
    def __init__(
        self,
        components: Collection[str],
        log: Callable[[str, int], Path],
        services: Collection[str] = (),
    ) -> None:
        """`components` are the groups whose workers report `done` and `fault` themselves, `services` those of
        programs that must not end before the others; `log` returns the file of a worker's output."""
        self._components, self._services, self._log_of = components, services, log
        self._found: list[Cause] = []
        self._done: set[Who] = set()
        self._reported: set[Who] = set()
        self._steps: dict[Who, int] = {}
        self._exits: list[tuple[Event, float]] = []
        self._pending: list[tuple[Event, float]] = []
        """Exits of the reading before."""
        self._are_services_released = False

    def add(self, event: Event, now: float) -> None:
        who = (event.group, event.rank)
        match event.name:
            case "step":
                self._steps[who] = event.step or 0
            case "done":
                self._done.add(who)
            case "fault" if event.group:
                self._reported.add(who)
                self._found.append(self._fault(event, now))
            case "exited" if not event.value.get("stopped"):
                self._exits.append((event, now))

    def record(self, error: str, priority: Priority, now: float, log: str = "") -> None:
        """Adds a fault that the head itself has seen, e.g. the death of an agent."""
        self._found.append(Cause(priority, error, log=log, received=now))

    def release_services(self) -> None:
        """From now on a service may end: all other groups have."""
        self._are_services_released = True

    def classify_exits(self) -> None:
        """Decides which exits are faults. To be called after each reading of the events: it classifies the
        exits of the reading before, so that the last events of each worker are known by then."""
        for event, received in self._pending:
            if cause := self._exit(event, received):
                self._found.append(cause)
        self._pending, self._exits = self._exits, []

    def settled(self, now: float) -> Cause | None:
        """Returns the first cause, once nothing of higher priority is to be expected."""
        best = self.best
        if best is None:
            return None
        first = min(cause.received for cause in self._found)
        return best if now >= first + WAIT_S[best.priority] else None

    @property
    def best(self) -> Cause | None:
        victims = {(cause.group, cause.rank) for cause in self._found if cause.peer}
        return min(
            self._found,
            key=lambda cause: (cause.priority, cause.peer in victims, cause.received, cause.time),
            default=None,
        )

    def _fault(self, event: Event, now: float) -> Cause:
        value, peer = event.value, event.value.get("peer")
        return Cause(
            Priority.LOST if value.get("lost") else Priority.OWN,
            str(value.get("error", "")),
            event.group,
            event.rank,
            event.stage,
            event.step,
            doing=str(value.get("doing", "")),
            traceback=str(value.get("traceback", "")),
            log=self._log(event),
            received=now,
            time=event.time,
            peer=(peer[0], peer[1]) if peer else None,
        )

    def _exit(self, event: Event, received: float) -> Cause | None:
        who, code, log = (event.group, event.rank), int(event.value["code"]), self._log(event)
        if self._is_expected(who, code):
            return None
        line, text = last_words(log)
        priority, error = self._classified(who, code, line)
        return Cause(
            priority,
            error,
            event.group,
            event.rank,
            traceback=text,
            log=log,
            received=received,
            time=event.time,
        )

    def _is_expected(self, who: Who, code: int) -> bool:
        """Whether a worker has done what it should, or has itself reported why not."""
        group = who[0]
        if code:
            return code > 0 and who in self._reported
        if group in self._components:
            return who in self._done
        return group not in self._services or self._are_services_released

    def _classified(self, who: Who, code: int, line: str) -> tuple[Priority, str]:
        """Returns the priority of an exit and its error; `line` is the last of a traceback in the log."""
        was_raising = code == -signal.SIGABRT and line and not line.startswith("Fatal")
        if code > 0 or was_raising:
            if _LOST.search(line):
                return Priority.LOST, line
            return (Priority.OWN, line) if line else (Priority.CODE, name_of(code))
        after = f" after step {self._steps[who]}" if who in self._steps else ""
        if code == 0 and who[0] in self._services:
            return Priority.OWN, "the service ended before the run was over, with exit code 0"
        if code == 0:
            return Priority.OWN, f"ended before the run was over, with exit code 0{after}"
        priority = Priority.CODE if code == -signal.SIGABRT else Priority.OWN
        return priority, f"{name_of(code)}{after}{self._hint(who[0], code)}"

    def _hint(self, group: str, code: int) -> str:
        """Returns the usual reason of a death by this signal."""
        if code == -signal.SIGKILL:
            return ", which is often the kernel's when memory runs out"
        if code == -signal.SIGBUS:
            return ", which is often shared memory that is full"
        return READ_ONLY if code == -signal.SIGSEGV and group in self._components else ""

    def _log(self, event: Event) -> str:
        return "" if event.rank is None else str(self._log_of(event.group, event.rank))


def last_words(log: str) -> tuple[str, str]:
    """Returns (last line, text) of the last traceback or faulthandler stack of a log; empty where it has
    none."""
    if not os.path.isfile(log):
        return "", ""
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - TAIL_BYTES))
        text = _MARK.sub("", file.read().decode(errors="replace")).rstrip()
    text = text[max(text.rfind(ATTEMPT), 0) :]
    start = max(text.rfind("Traceback (most recent call last):"), text.rfind("Fatal Python error:"))
    if start < 0:
        return "", ""
    lines = text[start:].splitlines()
    if lines[0].startswith("Fatal"):
        return lines[0], "\n".join(lines)
    unindented = (number for number, line in enumerate(lines[1:], 1) if line and not line[0].isspace())
    end = next(unindented, len(lines) - 1)
    return lines[end], "\n".join(lines[: end + 1])
