"""The context of a worker's loop, and the state that the stages of a step share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan, Stage
from meshctl.run.directory import Recorded
from meshctl.run.events import Journal, StepReport
from meshctl.run.shutdown import StopAgreement
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.component import Component
from meshctl.runtime.group_restarts import GroupRestarts, Rejoining
from meshctl.runtime.progress import Progress
from meshctl.runtime.routes.end import RouteSide
from meshctl.runtime.routes.record import Recorder
from meshctl.runtime.transports.data_plane import DataPlane


class TakePosition(NamedTuple):
    """The passes of a take block between two steps."""

    next: int = 0
    """The first number that was not dealt."""
    open: Mapping[int, int] = MappingProxyType({})
    """Number of a pass that was dealt and not taken -> the step in which it was dealt."""
    ready: Mapping[int, Batch] = MappingProxyType({})
    """Number -> the samples of a pass that has ended and was not taken; when it is saved, those of this
    rank."""


CheckpointHook = Callable[[int, Mapping[str, int], Mapping[str, TakePosition]], None]
"""Saves a checkpoint: (step, source -> the number of samples that it has produced, take block -> its passes)
-> None."""


@dataclass(frozen=True)
class LoopContext:
    """Everything that the loop of one worker needs: the plan, the components, and the ways to communicate."""

    plan: Plan
    group: str
    rank: int
    """The worker's rank in the world of its group."""
    components: Mapping[str, Component]
    """Name -> component, for the components of this worker's group, after `setup`."""
    transport: DataPlane
    agreement: StopAgreement
    events: Journal
    save: CheckpointHook = lambda step, given, takes: None
    recorder: Recorder | None = None
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    """Route -> its recording, for the routes that the plan replays."""
    progress: Progress = field(default_factory=Progress)
    wait_for_save: Callable[[], None] = lambda: None
    """Waits until no checkpoint is being written beside training."""
    restarts: GroupRestarts | None = None
    """Takes part in the restarts of other groups, where there may be any."""
    rejoining: Rejoining | None = None
    """The restart of this worker's own group; None in its first generation."""

    def hosts(self, stage: Stage) -> bool:
        """Returns whether this worker's group runs a stage, or one of the two sides of a sync."""
        return stage.component in self.components or stage.to in self.components

    def side(self, component: str, execute: str = "all") -> RouteSide:
        """Returns the side of a route on which a component is, called by an execute mode."""
        placed = self.plan.component(component)
        group = self.plan.group(placed.group)
        node_of = cache(partial(self.plan.node_of, placed.group))
        return RouteSide(
            placed.mesh,
            group.first_job_rank,
            execute,
            node_of,
            group.device_type,
            group.name,
            group.restartable,
        )


@dataclass
class StepState:
    """The state that the stages of a worker share while a step runs."""

    at: tuple[str, int] = ("", 0)
    """The stage and the step that are running, to be named in the report of a fault."""
    pass_number: int = 0
    """The running pass of a block in this step, from 1; 0 outside of a block."""
    begin: float = 0.0
    """The start of the step, in seconds of `perf_counter`."""
    report: StepReport = field(default_factory=lambda: StepReport(0))
    is_in_user_code: bool = False
    ended: str = ""
    """The source whose stream has ended in this step, unannounced."""
    versions: dict[str, int] = field(default_factory=dict)
    """Component -> the step whose weights it has loaded."""
