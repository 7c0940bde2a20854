"""The first cause of a failed run: the one fault, among those of all groups, that led to the others.

When one worker dies, its peers fail a moment later, and often report more. Faults therefore have priorities,
in this order:

1. a worker's own fault: an exception, or a death by a signal
2. the loss of a node, which takes its workers and agents with it
3. an exit code without a report, or an abort, by which NCCL ends its process when it loses a peer
4. the reported loss of a peer
5. the exit of an agent

Among faults of equal priority, the first that was received is the cause; the loss of a peer that has itself
lost a peer comes after the other losses. If only faults of low priority are
known, a fault of higher priority may still be unread, so the decision waits for a number of polls. In a poll,
the head reads all new events. Polls are counted instead of seconds, because on a busy machine the head itself
may not run for seconds while the report is already written.

    causes.add(event) for each event of a poll, causes.end_poll(now), then causes.settled: a `Cause` or None
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.engines.node.termination import name_of
from meshctl.package import PACKAGE_DIR
from meshctl.plan.model import Plan
from meshctl.run.events import Event
from meshctl.run.logs import read_tail, without_stamps
from meshctl.run.progress import Activity, Record
from meshctl.text.bounded import MAX_LINE, MAX_TEXT, bounded, plain

TAIL_BYTES = 64 * 1024
"""Size of the end of a log that is searched for a traceback if the worker reported nothing."""


class Priority(IntEnum):
    OWN = 0
    NODE = 1
    CODE = 2
    LOST = 3
    ECHO = 4
    """The exit of an agent, which follows from the exit of one of its workers."""


POLL_S = 0.03
"""Seconds between two polls. Polls that follow each other faster, because the head was woken, count as
one."""

WAIT_POLLS: Mapping[Priority, int] = {
    Priority.OWN: 3,
    Priority.NODE: 66,
    Priority.CODE: 10,
    Priority.LOST: 66,
    Priority.ECHO: 66,
}
"""Priority -> number of polls that begin after a fault of this priority, in which a fault of higher priority
may still arrive."""

ATTEMPT = "==== meshctl: attempt "
"""Prefix of the line in a log that marks the beginning of an attempt. Earlier lines belong to earlier
attempts."""

READ_ONLY = " (a received batch is read-only: clone() a tensor before you change it)"
"""Hint for a SIGSEGV in an endpoint that has received a batch."""

DOING = {Activity.SAVING: "the checkpoint", Activity.CLOSING: "close"}
"""The activities of a worker outside of stages, in words."""

_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket (closed|timeout)|remote (process|peer) "
    r"(exited|closed)"
    r"|peer (is gone|has gone|closed)|DistNetworkError|ncclRemoteError|heartbeat|Timed out waiting",
    re.IGNORECASE,
)
"""Messages of torch's backends about the loss of a peer, in programs that do not report to meshctl."""

_MARK = re.compile(r"^\[rank\d+\]:\s?", re.MULTILINE)
"""Prefix that torch adds to each line of a traceback once a process group exists."""


@dataclass(frozen=True)
class Cause:
    priority: Priority
    error: str
    """The error in one line."""
    group: str = ""
    rank: int | None = None
    """None for an agent, and for a fault that belongs to no group."""
    stage: str = ""
    step: int | None = None
    doing: str = ""
    """The activity if no stage was running, e.g. "setup of `actor`"."""
    traceback: str = ""
    log: str = ""
    poll: int = 0
    """The poll in which the head received the fault. Clocks of several hosts cannot order faults."""
    time: float = 0.0
    """The time of the report, in seconds since the epoch. Orders faults of the same poll."""
    peer: tuple[str, int] | None = None
    """Group and rank of the peer that was lost."""
    code: int | None = None
    """The exit code of a worker that has reported nothing, negative for a signal."""
    about: str = ""
    """The group of an agent that has ended."""

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
        plan: Plan,
        log: Callable[[str, int], Path],
        services: Collection[str] = (),
    ) -> None:
        """`services` are the groups that must not end before the others. `log` returns the log file of a
        worker."""
        self._plan, self._services, self._log_of = plan, services, log
        self._components = {group.name for group in plan.groups if group.program is None}
        """The groups whose workers report `done` and `fault` themselves."""
        self._found: list[Cause] = []
        self._done: set[Who] = set()
        self._reported: set[Who] = set()
        self._steps: dict[Who, int] = {}
        self._phases: dict[Who, str] = {}
        """The phase of a worker before its first step."""
        self._records: dict[Who, Record] = {}
        """The last known progress record of a worker."""
        self._exits: list[Event] = []
        self._pending: list[tuple[Event, int]] = []
        """Exits received in the previous poll, each with the number of that poll."""
        self._poll, self._poll_began = 0, -math.inf
        self._are_services_released = False

    def add(self, event: Event) -> None:
        who = (event.group, event.rank)
        match event.name:
            case "step":
                self._steps[who] = event.step or 0
            case "phase":
                self._phases[who] = str(event.value.get("phase", ""))
            case "ready":
                self._phases.pop(who, None)
            case "done":
                self._done.add(who)
            case "fault" if event.group:
                self._reported.add(who)
                self._found.append(self._fault(event))
            case "exited" if not event.value.get("stopped"):
                self._exits.append(event)

    def place(self, group: str, rank: int, record: Record) -> None:
        """Notes the progress record of a worker."""
        self._records[group, rank] = record

    def record(self, cause: Cause) -> None:
        """Adds a fault that the head has found itself, e.g. the death of an agent."""
        self._found.append(replace(cause, poll=self._poll))

    def release_services(self) -> None:
        """Allows services to end, because all other groups have ended."""
        self._are_services_released = True

    def end_poll(self, now: float) -> None:
        """Ends the poll that began at `now`, in seconds; a poll is one reading of the new events. Decides
        which exits of the previous poll are faults. By this time the last events of those workers have been
        read."""
        for event, poll in self._pending:
            if cause := self._exit(event, poll):
                self._found.append(cause)
        self._pending, self._exits = [(event, self._poll) for event in self._exits], []
        if now >= self._poll_began + POLL_S:
            self._poll, self._poll_began = self._poll + 1, now

    @property
    def groups(self) -> set[str]:
        """The groups with a fault; "" stands for faults outside of all groups."""
        return {cause.group or cause.about for cause in self._found}

    def forget(self, group: str) -> None:
        """Forgets the processes of a group, which restarts."""
        self._found = [cause for cause in self._found if group not in (cause.group, cause.about)]
        self._exits = [event for event in self._exits if event.group != group]
        self._pending = [(event, poll) for event, poll in self._pending if event.group != group]
        for known in (self._done, self._reported):
            known -= {who for who in known if who[0] == group}
        for places in (self._steps, self._phases, self._records):
            for who in [who for who in places if who[0] == group]:
                del places[who]

    @property
    def has_fault(self) -> bool:
        """True if a fault is known, or an exit that may be one."""
        return bool(self._found or self._pending)

    @property
    def settled(self) -> Cause | None:
        """The first cause, once no fault of higher priority can be expected; None before."""
        best = self.best
        if best is None or self._pending:
            return None
        first = min(cause.poll for cause in self._found)
        return best if self._poll > first + WAIT_POLLS[best.priority] else None

    @property
    def best(self) -> Cause | None:
        victims = {(cause.group, cause.rank) for cause in self._found if cause.peer}
        first = min(
            self._found,
            key=lambda cause: (cause.priority, cause.peer in victims, cause.poll, cause.time),
            default=None,
        )
        return first if first is None or first.code is None else self._placed(first, first.code)

    def _placed(self, cause: Cause, code: int) -> Cause:
        """Adds the last position of a worker, and the usual reason of its exit code, to its exit."""
        who = (cause.group, cause.rank)
        record, hint = self._records.get(who, Record()), ""
        stage = self._plan.stages[record.stage] if record.stage >= 0 else None
        if phase := self._phases.get(who):
            cause = replace(cause, doing=phase if " of " in phase else f"the {phase}")
        elif doing := DOING.get(Activity(record.activity)):
            cause = replace(cause, step=record.step, doing=doing)
        elif stage:
            cause = replace(cause, stage=stage.name, step=record.step)
            if code == -signal.SIGSEGV and record.activity == Activity.CALLING and stage.inputs:
                hint = READ_ONLY
        elif code <= 0 and who in self._steps:
            cause = replace(cause, error=f"{cause.error} after step {self._steps[who]}")
        if code == -signal.SIGBUS:
            hint = ", which often means that shared memory is full"
        return replace(cause, error=f"{cause.error}{hint}")

    def _fault(self, event: Event) -> Cause:
        value, peer = event.value, event.value.get("peer")
        return Cause(
            Priority.LOST if value.get("lost") else Priority.OWN,
            bounded(str(value.get("error", "")), MAX_LINE),
            event.group,
            event.rank,
            event.stage,
            event.step,
            doing=str(value.get("doing", "")),
            traceback=bounded(str(value.get("traceback", "")), MAX_TEXT),
            log=self._log(event),
            poll=self._poll,
            time=event.time,
            peer=(peer[0], peer[1]) if peer else None,
        )

    def _exit(self, event: Event, poll: int) -> Cause | None:
        who, code, log = (event.group, event.rank), int(event.value["code"]), self._log(event)
        if self._is_expected(who, code):
            return None
        line, text = last_words(log)
        priority, error = self._classified(who, code, bounded(line, MAX_LINE))
        if event.value.get("out_of_memory"):
            error = f"{error} because memory ran out"
        return Cause(
            priority,
            error,
            event.group,
            event.rank,
            traceback=text,
            log=log,
            poll=poll,
            time=event.time,
            code=code,
        )

    def _is_expected(self, who: Who, code: int) -> bool:
        """Returns whether a worker has ended as it should, or has reported its fault itself."""
        group = who[0]
        if code:
            return code > 0 and who in self._reported
        if group in self._components:
            return who in self._done
        return group not in self._services or self._are_services_released

    def _classified(self, who: Who, code: int, line: str) -> tuple[Priority, str]:
        """Returns the priority of an exit and its error. `line` is the last line of a traceback in the log,
        if there is one."""
        was_raising = code == -signal.SIGABRT and line and not line.startswith("Fatal")
        if code > 0 or was_raising:
            if _LOST.search(line):
                return Priority.LOST, line
            return (Priority.OWN, line) if line else (Priority.CODE, name_of(code))
        if code == 0:
            what = "the service ended" if who[0] in self._services else "ended"
            return Priority.OWN, f"{what} before the run was over, with exit code 0"
        return Priority.CODE if code == -signal.SIGABRT else Priority.OWN, name_of(code)

    def _log(self, event: Event) -> str:
        return "" if event.rank is None else str(self._log_of(event.group, event.rank))


def last_words(log: str) -> tuple[str, str]:
    """Returns the last traceback or faulthandler stack of a log as (last line, text); both are empty if there
    is none."""
    tail = read_tail(Path(log), TAIL_BYTES).decode(errors="replace")
    text = _MARK.sub("", without_stamps(tail)).rstrip()
    text = text[max(text.rfind(ATTEMPT), 0) :]
    start = max(text.rfind("Traceback (most recent call last):"), text.rfind("Fatal Python error:"))
    if start < 0:
        return "", ""
    lines = plain(text[start:]).splitlines()
    if lines[0].startswith("Fatal"):
        return lines[0], "\n".join([lines[0], *_user_stack(lines[1:])])
    unindented = (number for number, line in enumerate(lines[1:], 1) if line and not line[0].isspace())
    end = next(unindented, len(lines) - 1)
    return lines[end], "\n".join(lines[: end + 1])


def _user_stack(lines: Sequence[str]) -> Sequence[str]:
    """Returns the part of faulthandler's report that shows the user's code: the innermost frames of the
    thread that failed. Returns the whole report if there is no such frame."""
    first = next((number for number, line in enumerate(lines) if line.startswith("Current thread")), None)
    if first is None:
        return lines
    frames: list[str] = []
    for line in lines[first + 1 :]:
        if not line.startswith("  File ") or f'"{PACKAGE_DIR}' in line:
            break
        frames.append(line)
    return [lines[first], *frames] if frames else lines
