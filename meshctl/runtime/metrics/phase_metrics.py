"""The numbers that a component logs outside of stages.

    in `setup`, before the first step      COMPONENT.setup.NAME, in the row of step 0
    in `close`, after the last step        COMPONENT.close.NAME, in the row of the last step

A run that continues from a checkpoint calls `setup` again; the row of its step exists and does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from meshctl.plan.model import Component, Stage
from meshctl.run.events import EventLog, StepReport
from meshctl.runtime.loop_context import StepState
from meshctl.runtime.metrics.stage_metrics import StageMetrics
from meshctl.topology.modes import COLLECT, EXECUTE


class PhaseMetrics:
    """The numbers that a component logs on one rank in `setup` or `close`."""

    def __init__(
        self, component: Component, phase: str, rank: int, step: int, events: EventLog, run: Path
    ) -> None:
        self._events, self._report = events, StepReport(step)
        stage = Stage(f"{component.name}.{phase}", "call", component.name, phase)
        state = StepState(report=self._report)
        modes = COLLECT["mean"], EXECUTE["all"]
        self._metrics = StageMetrics(stage, *modes, component.mesh, rank, state, events, run)

    def log(self, values: Mapping[str, float], weight: float) -> None:
        """Implements `Component.log`: appends the numbers to the events of the worker."""
        self._metrics.begin_call()
        self._metrics.log(values, weight)
        self._events.write_metrics(self._report)
        self._report.metrics.clear()
