"""The first cause of a failed run: of everything that went wrong, over all groups, the one thing that began
it.

When one worker dies, its peers fail a moment later, often louder. So a worker's own fault (an exception, a
death by a signal) comes before an exit code alone or an abort, by which NCCL ends its process when it loses a
peer, and that before the reported loss of a peer. The loss of a peer that has itself lost a peer comes last.
Among equals the first that was received counts. Where only faults of lower priority are known, the worker
that knows more may still be about to report, and gets a number of looks at the events. Looks and not seconds
count: on a machine so busy that the head itself stands still, the report may have been there all the time.

    causes.add(event) for each event of a look, causes.end_look(now), then causes.settled: a `Cause` or None
"""

from __future__ import annotations

import math
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


LOOK_S = 0.03
"""Seconds between two looks of the head at the events. Looks that follow faster, because something woke the
head, count as one."""

WAIT_LOOKS: Mapping[Priority, int] = {
    Priority.OWN: 3,
    Priority.CODE: 10,
    Priority.LOST: 33,
    Priority.ECHO: 33,
}
"""Looks, begun after a fault was received, in which one of higher priority may still arrive."""

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
    look: int = 0
    """The look in which the head received it. Clocks of several hosts cannot tell what was first."""
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
        self._exits: list[Event] = []
        self._pending: list[tuple[Event, int]] = []
        """Exits of the look before, and its number."""
        self._look, self._look_began = 0, -math.inf
        self._are_services_released = False

    def add(self, event: Event) -> None:
        who = (event.group, event.rank)
        match event.name:
            case "step":
                self._steps[who] = event.step or 0
            case "done":
                self._done.add(who)
            case "fault" if event.group:
                self._reported.add(who)
                self._found.append(self._fault(event))
            case "exited" if not event.value.get("stopped"):
                self._exits.append(event)

    def record(self, error: str, priority: Priority, log: str = "") -> None:
        """Adds a fault that the head itself has seen, e.g. the death of an agent."""
        self._found.append(Cause(priority, error, log=log, look=self._look))

    def release_services(self) -> None:
        """From now on a service may end: all other groups have."""
        self._are_services_released = True

    def end_look(self, now: float) -> None:
        """Ends a look at the events, begun at `now` in seconds. Decides which exits of the look before are
        faults: the last events of their workers are known by now."""
        for event, look in self._pending:
            if cause := self._exit(event, look):
                self._found.append(cause)
        self._pending, self._exits = [(event, self._look) for event in self._exits], []
        if now >= self._look_began + LOOK_S:
            self._look, self._look_began = self._look + 1, now

    @property
    def settled(self) -> Cause | None:
        """The first cause, once nothing of higher priority is to be expected."""
        best = self.best
        if best is None or self._pending:
            return None
        first = min(cause.look for cause in self._found)
        return best if self._look > first + WAIT_LOOKS[best.priority] else None

    @property
    def best(self) -> Cause | None:
        victims = {(cause.group, cause.rank) for cause in self._found if cause.peer}
        return min(
            self._found,
            key=lambda cause: (cause.priority, cause.peer in victims, cause.look, cause.time),
            default=None,
        )

    def _fault(self, event: Event) -> Cause:
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
            look=self._look,
            time=event.time,
            peer=(peer[0], peer[1]) if peer else None,
        )

    def _exit(self, event: Event, look: int) -> Cause | None:
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
            look=look,
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
