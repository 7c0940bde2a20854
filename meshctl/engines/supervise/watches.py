"""The watches of the head in an attempt.

    watch.add(event, now)                 # events of workers, as they are read
    watch.receive(message, now)           # messages of nodes
    for found in watch.poll(now): ...     # a `Note` becomes an event, a `Fault` is a reason of the end

The larger watches have files of their own: `stalls`, `collective_check` and `disk_watch`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshctl.engines.supervise.cause import Cause
from meshctl.network.connection import Message
from meshctl.run.clock import Offset
from meshctl.run.events import Event


class Note(NamedTuple):
    """An event that the head writes."""

    name: str
    value: Mapping[str, Any]
    step: int | None = None


class Fault(NamedTuple):
    """A reason of the end of an attempt."""

    cause: Cause
    step: int | None = None
    is_wrong: bool = False
    """True if the results are wrong, so that another attempt would only fail again."""


Finding = Note | Fault


class Watch:
    """Looks for one kind of trouble."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []
        """The findings since the last poll."""

    def add(self, event: Event, now: float) -> None:
        """Processes an event of a process of the attempt."""

    def receive(self, message: Message, now: float) -> None:
        """Processes a message of a node process."""

    def forget(self, group: str) -> None:
        """Forgets the workers of a group, which restarts."""

    def poll(self, now: float) -> Iterable[Finding]:
        """Returns what was found since the last call."""
        findings, self._findings = self._findings, []
        return findings


SLOW_TIMES = 2.0
"""A rank is slow if its stage takes more than this number of times the median of its peers."""
LEAST_S = 0.01
"""Minimum difference in seconds to the median of the peers."""
JUDGED_STEPS = 10
"""Number of steps between two judgements of a rank. Its time is the median over these steps."""
JUDGEMENTS = 2
"""Minimum number of judgements in a row that find a rank slow before it is reported."""
LASTING_S = 5.0
"""Minimum number of seconds of these steps: on a busy machine a process may be slow for some seconds."""


@dataclass
class _Rank:
    """The times of one rank in one stage."""

    seconds: list[float] = field(default_factory=list)
    """The seconds that the stage took in each step since the last judgement, without its collectives."""
    lasting: float = 0.0
    """Seconds of all whole steps since the last judgement that has not found the rank slow."""
    median: float | None = None
    """Median seconds of the stage in the steps of the last judgement; None before the first one."""
    slow: int = 0
    """Number of judgements in a row that have found the rank slow."""


@dataclass
class _Stage:
    ranks: dict[int, _Rank] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)


class Stragglers(Watch):
    """Finds ranks whose stages take much longer than those of their peers. They are reported and never ended.
    The time that a rank spends in its collectives does not count: there, the fast ranks wait for the slow
    one."""

    def __init__(self) -> None:
        super().__init__()
        self._stages: dict[tuple[str, str], _Stage] = {}
        self._begun: set[tuple[str, int]] = set()
        """The workers that have completed their first step, which does not count."""

    def add(self, event: Event, now: float = 0.0) -> None:
        if event.name != "step" or event.rank is None:
            return
        if (event.group, event.rank) not in self._begun:
            self._begun.add((event.group, event.rank))
            return
        collectives = event.value.get("in_collectives", {})
        for name, seconds in event.value.get("stages", {}).items():
            stage = self._stages.setdefault((event.group, name), _Stage())
            rank = stage.ranks.setdefault(event.rank, _Rank())
            rank.seconds.append(seconds - collectives.get(name, 0.0))
            rank.lasting += event.value["seconds"]
            if len(rank.seconds) == JUDGED_STEPS:
                self._judge(event.group, name, event.rank, stage)

    def _judge(self, group: str, name: str, number: int, stage: _Stage) -> None:
        own = stage.ranks[number]
        time = own.median = statistics.median(own.seconds)
        own.seconds.clear()
        peers = [
            rank.median for other, rank in stage.ranks.items() if other != number and rank.median is not None
        ]
        median = statistics.median(peers) if peers else time
        is_slow = time > SLOW_TIMES * median and time - median > LEAST_S
        if not is_slow:
            own.slow, own.lasting = 0, 0.0
            return
        own.slow += 1
        if own.slow >= JUDGEMENTS and own.lasting >= LASTING_S and number not in stage.reported:
            stage.reported.add(number)
            takes = f"takes {1000 * time:.0f} ms without collectives, and {1000 * median:.0f} ms on its peers"
            self._findings.append(
                Note("warning", {"text": f"{group}:{number} is slow: stage {name} {takes}"})
            )


class Clocks(Watch):
    """Writes the clocks of the nodes, for the trace of a run. A measurement that is better than those before
    becomes a `clock` event: the node, how far its clock is ahead of the head's, the error, and when that was
    (seconds)."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[int, Offset] = {}
        """Node -> the measurement that was written last."""

    def receive(self, message: Message, now: float) -> None:
        if message["type"] == "clock":
            node = message["node"]
            found = Offset.measured(message["sent"], message["at"], message["received"])
            last = self._written.get(node)
            if last is None or found.error < last.error_at(found.at):
                self._written[node] = found
                value = {"node": node, "offset": found.value, "error": found.error, "at": found.at}
                self._findings.append(Note("clock", value))
