"""The position of a run's sources: the next samples, and the end of the data."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set

from meshctl.plan.model import Plan, Stage
from meshctl.runtime.component import Component
from meshctl.runtime.errors import StageError
from meshctl.runtime.user_modes import dispatch_mode, execute_mode


class Sources:
    """Counts the samples that each source of the plan has produced. Sources in blocks count their own
    (`call.RepeatedSource`)."""

    def __init__(self, plan: Plan, components: Mapping[str, Component]) -> None:
        """`components` are those of this worker's group."""
        self._plan, self._components = plan, components
        self._given = {stage.name: 0 for stage in plan.sources}
        self._start = 0
        self._given_at_start: Mapping[str, int] = {}
        self.totals: dict[str, int | None] = {}
        """Source of this worker's group -> how many samples it produces in the whole run; None if it has no
        length."""

    def begin(self, start: int, given: Mapping[str, int]) -> None:
        """Continues after the step `start`. `given` is source -> the number of samples that it has produced
        by then. Asks the sources of this worker for their lengths."""
        own = [stage for stage in self._plan.sources if stage.component in self._components]
        self.totals = {stage.name: self._count(stage) for stage in own}
        self._given.update(given)
        self._start, self._given_at_start = start, dict(self._given)

    def move_to(self, step: int) -> None:
        """Continues after a later step than the one of `begin`, in which the sources of this worker have
        produced all of their samples before."""
        for stage in self._plan.sources:
            planned = self._planned(stage, step)
            if stage.when:
                calls = int(stage.when == "start" and self._start < 1 <= step)
                planned = self._given_at_start[stage.name] + calls * stage.samples
            self._given[stage.name] = min(planned, self._bound(stage))

    def _planned(self, stage: Stage, step: int) -> int:
        """Returns how many samples a source has produced by the end of a step, if its data suffice."""
        calls = step // stage.every - self._start // stage.every
        return self._given_at_start[stage.name] + calls * stage.samples

    def _count(self, stage: Stage) -> int | None:
        length = getattr(self._components[stage.component], "__len__", None)
        return length() * max(1, self._plan.run.epochs) if length else None

    def bounds_run(self, stage: Stage) -> bool:
        """Returns whether the run ends with the data of a stage, which then has a short last call. The sample
        numbers of other sources run on past their length."""
        return stage.name in self._plan.bounding_sources

    def _bound(self, stage: Stage) -> int:
        total = self.totals.get(stage.name) if self.bounds_run(stage) else None
        return sys.maxsize if total is None else total

    def next_numbers(self, stage: Stage) -> range:
        """Returns the numbers of a source's next samples, and counts them as produced."""
        start = self._given[stage.name]
        self._given[stage.name] = min(start + stage.samples, self._bound(stage))
        return range(start, self._given[stage.name])

    def last_step(self, stage: Stage) -> int | None:
        """Returns the last step for which a source has data, or None if it has no length."""
        total = self.totals[stage.name]
        if total is None:
            return None
        left = max(0, total - self._given[stage.name])
        calls = -(-left // stage.samples)
        return (self._start // stage.every + calls) * stage.every

    def check_tails(self, stages: Sequence[Stage], last: int, running: Set[str]) -> None:
        """Raises `StageError` if a source of `stages` has too few samples left in the planned last step, in
        which the stages `running` run, for one each of its consumers. The run thus fails at its start and not
        hours later."""
        for stage in stages:
            if self.bounds_run(stage) and self.last_step(stage) == last:
                left = max(0, self._bound(stage) - self._given[stage.name])
                self._check_tail(stage, left % stage.samples, running)

    def _check_tail(self, stage: Stage, tail: int, running: Set[str]) -> None:
        for route in self._plan.routes if tail else ():
            target = self._plan.stage(route.target)
            if route.source != stage.name or route.dispatch.allow_empty or route.target not in running:
                continue
            mesh = self._plan.component(target.component).mesh
            shares = dispatch_mode(route.dispatch.mode).share_count(mesh)
            if execute_mode(target.execute).is_joint and tail < shares:
                raise StageError(
                    f"the data of `{stage.name}` end with a batch of {tail}, and stage `{target.name}` needs "
                    f"at least {shares}, one for each share: set dispatch: {{allow_empty: true}} there, or "
                    "change `samples` or the data so that more are left"
                )

    def given_after(self, step: int) -> dict[str, int]:
        """Returns source -> the number of samples that it had produced by the end of a step, for the sources
        of this worker's group. The worker may have begun later steps, which are dropped."""
        given = {name: self._given[name] for name in self.totals}
        for stage in self._plan.sources:
            if stage.name in given and not stage.when:
                given[stage.name] = min(given[stage.name], self._planned(stage, step))
        return given
