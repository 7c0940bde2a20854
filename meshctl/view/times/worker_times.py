"""The sums of a worker's `step` events, from which `measures` computes the use of time of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LONG_CALL = 10.0
"""A call is long if it takes this many times the mean of its stage so far. The excess of the first long call
does not count, because the machine may have been suspended. With a second long call, both count in full."""
MIN_CALLS = 8
"""Number of calls of a stage before one can be long."""
SUMS = ("in_collectives", "waits", "sends", "awaited", "full", "peers")
NOTHING: Mapping[str, float] = {}


@dataclass
class WorkerTimes:
    """The seconds of a worker in the steps of an attempt. The first one, which takes longer, is left out."""

    steps: int = 0
    """The number of steps that count."""
    seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds in the called method, or in a sync."""
    calls: dict[str, int] = field(default_factory=dict)
    """Stage -> the number of steps in which it ran."""
    in_collectives: dict[str, float] = field(default_factory=dict)
    """Stage -> the part of its seconds in collectives."""
    waits: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds until its inputs had arrived."""
    sends: dict[str, float] = field(default_factory=dict)
    """Stage -> seconds until its value was sent."""
    awaited: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which the worker only waited for values to arrive."""
    full: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which it only waited for a free slot."""
    peers: dict[str, float] = field(default_factory=dict)
    """Route -> seconds in which it only waited for other ranks of its group."""

    left_out: dict[str, float] = field(default_factory=dict)
    """Stage -> the seconds of its first long call that do not count; 0 once it has had a second one."""

    def add(self, value: Mapping[str, Any]) -> None:
        """Adds the value of a `step` or a `steps` event."""
        stages, calls, times = self.stages, self.calls, value.get("times")
        self.steps += value.get("count", 1)
        self.seconds += value.get("seconds", 0.0)
        for stage, spent in value.get("stages", NOTHING).items():
            before, count = stages.get(stage, 0.0), calls.get(stage, 0)
            if times is not None:
                calls[stage] = count + times.get(stage, 1)
            else:
                calls[stage] = count + 1
                if count >= MIN_CALLS and spent * count > LONG_CALL * before:
                    counted = self._counted(stage, spent, LONG_CALL * before / count)
                    self.seconds += counted - spent
                    spent = counted
            stages[stage] = before + spent
        for name in SUMS:
            if found := value.get(name):
                sums: dict[str, float] = self.__dict__[name]
                for key, seconds in found.items():
                    sums[key] = sums.get(key, 0.0) + seconds

    def _counted(self, stage: str, spent: float, most: float) -> float:
        """Returns the seconds that count of a call."""
        if stage not in self.left_out:
            self.left_out[stage] = spent - most
            return most
        left_out, self.left_out[stage] = self.left_out[stage], 0.0
        return spent + left_out

    def since(self, before: WorkerTimes) -> WorkerTimes:
        """Returns the sums without those of an earlier time."""
        found = WorkerTimes(self.steps - before.steps, self.seconds - before.seconds)
        for name in (*SUMS, "stages", "calls"):
            old, new = getattr(before, name), getattr(self, name)
            getattr(found, name).update({key: new[key] - old.get(key, 0) for key in new})
        return found

    def copy(self) -> WorkerTimes:
        return self.since(WorkerTimes())
