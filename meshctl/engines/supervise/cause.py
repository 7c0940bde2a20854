"""Why a run failed: of everything that went wrong, over all groups, the one thing that did it.

When one worker dies, its peers fail a moment later, often louder. So a worker's own fault (an exception, a
death by a signal) counts before an exit code alone or an abort, by which NCCL ends its process when it loses
a peer, and that before the loss of a peer that was said. Who misses a peer that itself misses another says
the least. Among equals it is the first that was received. If only lesser things are known, the one who knows
may still be about to speak: it is given a moment.

    causes.hear(event) for each event, then causes.settled(now) until it gives a `Cause`
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from meshctl.engines.node.guard import name_of
from meshctl.run.events import Event

TAIL = 64 * 1024
"""Bytes of a log in which the traceback of a worker that said nothing is looked for."""


class Weight(IntEnum):
    OWN = 0
    CODE = 1
    LOST = 2
    ECHO = 3
    """An agent that ended because a worker had."""


PATIENCE: Mapping[Weight, float] = {Weight.OWN: 0.1, Weight.CODE: 0.3, Weight.LOST: 1.0, Weight.ECHO: 1.0}
"""Seconds in which something weightier may still come."""

ATTEMPT = "==== meshctl: attempt "
"""The line with which a continued run's log goes on; what stands before it is of another attempt."""

READ_ONLY = " (a received batch is read-only: clone() what is changed)"
"""Its memory is its giver's, so the kernel ends a component that writes to it."""

_LOST = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket (closed|timeout)|remote (process|peer) (exited|closed)"
    r"|peer (is gone|has gone|closed)|DistNetworkError|ncclRemoteError|heartbeat|Timed out waiting",
    re.IGNORECASE,
)
"""How torch's backends word the loss of a peer, in scripts that say nothing to meshctl."""

_MARK = re.compile(r"^\[rank\d+\]:\s?", re.MULTILINE)
"""What torch puts before each line of a traceback once there is a process group."""


@dataclass(frozen=True)
class Cause:
    weight: Weight
    error: str
    """One line."""
    group: str = ""
    rank: int | None = None
    """None for an agent, or for what belongs to no group."""
    stage: str = ""
    step: int | None = None
    doing: str = ""
    """What it was at outside of a stage, e.g. "setup of `actor`"."""
    traceback: str = ""
    log: str = ""
    heard: float = 0.0
    """When the launcher learned of it: clocks of several hosts do not tell what was first."""
    time: float = 0.0
    """When it was said, for what was heard together."""
    peer: tuple[str, int] | None = None
    """Group and rank of the peer that was lost."""

    @property
    def line(self) -> str:
        """`train:1 failed in stage metrics, step 3: ValueError: boom`."""
        if not self.group:
            return self.error
        who = f"agent of {self.group}" if self.rank is None else f"{self.group}:{self.rank}"
        where = (
            [f"stage {self.stage}"] * bool(self.stage)
            + [self.doing] * bool(self.doing)
            + [f"step {self.step}"] * bool(self.step)
        )
        return f"{who} failed{' in ' + ', '.join(where) if where else ''}: {self.error}"


class Causes:
    def __init__(self, components: frozenset[str], log: Callable[[str, int], Path]) -> None:
        """`components` are the groups whose workers say `done` and `fault` themselves; `log` is where a
        worker's output is."""
        self._components, self._log_of = components, log
        self._found: list[Cause] = []
        self._done: set[tuple[str, int | None]] = set()
        self._said: set[tuple[str, int | None]] = set()
        self._steps: dict[tuple[str, int | None], int] = {}
        self._exits: list[tuple[Event, float]] = []

    def hear(self, event: Event, now: float) -> None:
        who = (event.group, event.rank)
        match event.name:
            case "step":
                self._steps[who] = event.step or 0
            case "done":
                self._done.add(who)
            case "fault" if event.group:
                self._said.add(who)
                self._found.append(self._fault(event, now))
            case "exited" if not event.value.get("stopped"):
                self._exits.append((event, now))

    def blame(self, error: str, weight: Weight, now: float, log: str = "") -> None:
        """What the head itself has seen: the death of an agent or of the fork server."""
        self._found.append(Cause(weight, error, log=log, heard=now))

    def judge(self) -> None:
        """Weighs the exits that came before; to be called between two readings, so that each worker's last
        words are in."""
        for event, heard in self._exits:
            if cause := self._exit(event, heard):
                self._found.append(cause)
        self._exits.clear()

    def settled(self, now: float) -> Cause | None:
        """The first cause, once nothing better is to be waited for."""
        best = self.best
        if best is None:
            return None
        first = min(cause.heard for cause in self._found)
        return best if now >= first + PATIENCE[best.weight] else None

    @property
    def best(self) -> Cause | None:
        missed = {(cause.group, cause.rank) for cause in self._found if cause.peer}
        return min(
            self._found,
            key=lambda cause: (cause.weight, cause.peer in missed, cause.heard, cause.time),
            default=None,
        )

    def _fault(self, event: Event, now: float) -> Cause:
        weight = Weight.LOST if event.value.get("lost") else Weight.OWN
        error, text, doing = (str(event.value.get(key, "")) for key in ("error", "traceback", "doing"))
        peer = event.value.get("peer")
        where = event.group, event.rank, event.stage, event.step
        return Cause(
            weight,
            error,
            *where,
            doing,
            text,
            self._log(event),
            now,
            event.time,
            (peer[0], peer[1]) if peer else None,
        )

    def _exit(self, event: Event, heard: float) -> Cause | None:
        who, code, log = (event.group, event.rank), int(event.value["code"]), self._log(event)
        if (code == 0 and (event.group not in self._components or who in self._done)) or (
            code > 0 and who in self._said
        ):
            return None  # it has done what it should, or has said better why not
        line, text = last_words(log)
        weight, error = self._judged(who, code, line)
        return Cause(
            weight, error, event.group, event.rank, traceback=text, log=log, heard=heard, time=event.time
        )

    def _judged(self, who: tuple[str, int | None], code: int, line: str) -> tuple[Weight, str]:
        """How much an exit counts, and how it is worded; `line` is the last of a traceback in the log."""
        aborted = (
            code == -signal.SIGABRT and line and not line.startswith("Fatal")
        )  # while Python took an exception's process apart
        if code > 0 or aborted:
            weight = Weight.LOST if _LOST.search(line) else Weight.OWN if line else Weight.CODE
            return weight, line or name_of(code)
        after = f" after step {self._steps[who]}" if who in self._steps else ""
        if code == 0:
            return Weight.OWN, f"ended before the run was over, with exit code 0{after}"
        return (
            Weight.CODE if code == -signal.SIGABRT else Weight.OWN,
            f"{name_of(code)}{after}{self._hint(who[0], code)}",
        )

    def _hint(self, group: str, code: int) -> str:
        """What a death by this signal often is."""
        if code == -signal.SIGKILL:
            return ", which is often the kernel's when memory runs out"
        if code == -signal.SIGBUS:
            return ", which is often shared memory that is full"
        return READ_ONLY if code == -signal.SIGSEGV and group in self._components else ""

    def _log(self, event: Event) -> str:
        return "" if event.rank is None else str(self._log_of(event.group, event.rank))


def last_words(log: str) -> tuple[str, str]:
    """(last line, text) of the last traceback or faulthandler stack at the end of a log; empty where there is
    none."""
    if not os.path.isfile(log):
        return "", ""
    with open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - TAIL))
        text = _MARK.sub("", file.read().decode(errors="replace")).rstrip()
    text = text[max(text.rfind(ATTEMPT), 0) :]
    start = max(text.rfind("Traceback (most recent call last):"), text.rfind("Fatal Python error:"))
    if start < 0:
        return "", ""
    lines = text[start:].splitlines()
    if lines[0].startswith("Fatal"):
        return lines[0], "\n".join(lines)
    end = next(
        (number for number, line in enumerate(lines[1:], 1) if line and not line[0].isspace()), len(lines) - 1
    )
    return lines[end], "\n".join(lines[: end + 1])
