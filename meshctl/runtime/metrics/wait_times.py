"""The seconds in which a worker does nothing but wait for others, by route.

    waits = WaitTimes(plan, group)
    waits.begin(tag)            # from the data plane, where nothing has arrived or no slot is free
    waits.end()
    waits.move_to(report)       # at the end of a step

A wait on a route is for its producers (`awaited`), for its consumers (`full`: they have not taken what was
sent), or for ranks of this worker's own group (`peers`).
"""

from __future__ import annotations

from time import perf_counter

from meshctl.plan.model import Plan
from meshctl.run.events import StepReport
from meshctl.runtime.routes.end import FORWARD, TAGS_PER_ROUTE, VALUES

AWAITED, FULL, PEERS, OTHERS = range(4)
"""Kinds of waits. `OTHERS` are no part of a step."""


class WaitTimes:
    def __init__(self, plan: Plan, group: str) -> None:
        self._plan, self._group = plan, group
        self._kinds: dict[int, tuple[dict[str, float], str]] = {}
        """Tag -> the sums to which its waits belong, and the name of its route."""
        self._sums: tuple[dict[str, float], ...] = ({}, {}, {}, {})
        self._at: tuple[dict[str, float], str] = self._sums[OTHERS], ""
        self._began = 0.0

    def begin(self, tag: int) -> None:
        found = self._kinds.get(tag)
        if found is None:
            kind, route = self._kind_of(tag)
            found = self._kinds[tag] = self._sums[kind], route
        self._at = found
        self._began = perf_counter()

    def end(self) -> None:
        sums, route = self._at
        sums[route] = sums.get(route, 0.0) + perf_counter() - self._began

    def move_to(self, report: StepReport) -> None:
        """Adds the waits since the last call to the report of a step."""
        awaited, full, peers, others = self._sums
        others.clear()
        if awaited:
            report.awaited = awaited.copy()
            awaited.clear()
        if full:
            report.full = full.copy()
            full.clear()
        if peers:
            report.peers = peers.copy()
            peers.clear()

    def _kind_of(self, tag: int) -> tuple[int, str]:
        """Returns the kind of a wait under a tag, and the name of the route; none for `OTHERS`."""
        routes = self._plan.routes
        number, offset = divmod(tag, TAGS_PER_ROUTE)
        if not 0 <= number < 2 * len(routes):  # the tags of the end of a run follow those of the steps
            return OTHERS, ""
        route = routes[number % len(routes)]
        source, target = self._plan.ends_of(route)
        if offset not in (VALUES, FORWARD) or source == target:
            return PEERS, route.name
        return (FULL if source == self._group else AWAITED), route.name
