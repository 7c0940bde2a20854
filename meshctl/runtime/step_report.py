"""What one step cost and measured, reported as events once the step is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from meshctl.runtime.routes.end import RouteEnd

WriteEvent = Callable[..., Any]
"""Appends an event: `Journal.write`."""


class StepReport:
    """The times and metrics of one step. Those of a dropped step are never reported."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._metrics: list[dict[str, Any]] = []
        self.stages: dict[str, float] = {}
        """Stage -> seconds in the called method."""
        self.waits: dict[str, float] = {}
        """Stage -> seconds until its inputs had arrived."""

    def add_metric(self, stage: str, values: Mapping[str, float], weight: float, collect: str) -> None:
        if values:
            self._metrics.append({"stage": stage, "values": values, "weight": weight, "collect": collect})

    def send(self, write_event: WriteEvent, step: int, ends: Iterable[RouteEnd]) -> None:
        """Reports the step, with the bytes that each route has sent."""
        routes = {}
        for end in ends:
            if end.bytes_sent:
                routes[end.route.name], end.bytes_sent = end.bytes_sent, 0
        seconds = time.perf_counter() - self._begin
        for metric in self._metrics:
            write_event("metric", step=step, **metric)
        write_event("step", step=step, seconds=seconds, stages=self.stages, waits=self.waits, routes=routes)


def scalars(value: Any, name: str = "") -> dict[str, float]:
    """Returns the numbers in a value by name. The keys of nested mappings are joined by a slash; a bare
    number is called `value`."""
    if isinstance(value, Mapping):
        found: dict[str, float] = {}
        for key, item in value.items():
            found |= scalars(item, f"{name}/{key}" if name else str(key))
        return found
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return {name or "value": float(value)} if isinstance(value, (bool, int, float)) else {}
