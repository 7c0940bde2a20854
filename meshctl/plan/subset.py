"""One group of a plan alone, for debugging: values from other groups are replayed from recordings, and values
for other groups are dropped.

    alone = only(plan, "train", ["scored -> metrics"])
    alone.missing       routes from other groups that are not replayed; if there are any, the group cannot run
    alone.skipped       syncs with other groups
    alone.left_out      blocks with stages of other groups, and stages that take their values
    alone.plan          the group's own stages, the routes between them, and in `replayed` the routes whose
                        values come from recordings

`covered` returns the range of steps for which there are recordings. Both functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan, Run
from meshctl.recipe.stages import times_by_stage
from meshctl.run.settings import bounding_sources
from meshctl.topology.modes import Route


@dataclass(frozen=True)
class Alone:
    """One group of a plan, without the others."""

    plan: Plan
    missing: tuple[Route, ...]
    """The routes from other groups that are not replayed."""
    skipped: tuple[str, ...]
    """The names of the syncs with other groups, which are left out."""
    left_out: tuple[str, ...] = ()
    """The names of the blocks that also have stages of other groups, whose passes nothing can replay, and of
    the stages that take their values."""


def incoming(plan: Plan, group: str) -> tuple[Route, ...]:
    """Returns the data routes from other groups to a group."""
    away = _left_out(plan, group)
    data = [route for route in plan.routes if route.kind == "data" and route.target not in away]
    return tuple(route for route in data if plan.ends_of(route)[0] != group == plan.ends_of(route)[1])


def _left_out(plan: Plan, group: str) -> dict[str, str]:
    """Returns the stages of a group that cannot run alone -> the block, or the stage itself, to name."""
    groups: dict[str, set[str]] = {}
    for stage in plan.stages:
        groups.setdefault(stage.block, set()).add(plan.group_of(stage))
    found: dict[str, str] = {}
    for stage in plan.stages:  # a stage comes after those whose values it takes
        is_shared = bool(stage.block) and groups[stage.block] != {group}
        if plan.group_of(stage) == group and (is_shared or plan.inputs_of[stage.name] & found.keys()):
            found[stage.name] = stage.block or stage.name
    return found


def only(plan: Plan, group: str, replayed: Collection[str]) -> Alone:
    """Returns one group alone. `replayed` has the names of the routes of `incoming` that are replayed."""
    taken = incoming(plan, group)
    syncs = {
        stage.name: {plan.group_of(stage), plan.component(stage.to).group}
        for stage in plan.stages
        if stage.kind == "sync"
    }
    away = _left_out(plan, group)
    stages = tuple(
        stage
        for stage in plan.stages
        if syncs.get(stage.name, {plan.group_of(stage)}) == {group} and stage.name not in away
    )
    names = {stage.name for stage in stages}
    routes = tuple(route for route in plan.routes if {route.source, route.target} <= names)
    bounding = [name for name in plan.bounding_sources if name in names]
    if bounding != [*bounding_sources(stages)]:
        stages = tuple(
            replace(stage, ends_run=stage.name in bounding) if stage.is_source and not stage.block else stage
            for stage in stages
        )
    kept = {route.name for route in routes}
    alone = replace(
        plan,
        groups=(replace(plan.group(group), first_job_rank=0, colocate=""),),
        components=plan.components_of(group),
        stages=stages,
        routes=routes,
        run=replace(
            plan.run,
            epochs=plan.run.epochs if bounding else 0,
            record=tuple(name for name in plan.run.record if name in kept),
            **_without_metrics_of_others(plan.run, names),
        ),
        replayed=tuple(route for route in taken if route.name in replayed),
        blocks=tuple(block for block in plan.blocks if any(stage.block == block.name for stage in stages)),
    )
    missing = tuple(route for route in taken if route.name not in replayed)
    skipped = tuple(name for name, groups in syncs.items() if group in groups and len(groups) > 1)
    return Alone(alone, missing, skipped, tuple(dict.fromkeys(away.values())))


def _without_metrics_of_others(run: Run, stages: Collection[str]) -> dict[str, Any]:
    """Returns the fields of `run` that name metrics, without the metrics of other stages than these."""

    def is_here(metric: str) -> bool:
        return any(metric.startswith(f"{stage}.") for stage in stages)

    checkpoint = run.checkpoint
    if checkpoint and checkpoint.best and not is_here(checkpoint.best.on):
        checkpoint = replace(checkpoint, best=None)
    stop = run.stop if run.stop and is_here(run.stop.on) else None
    return {"show": tuple(filter(is_here, run.show)), "stop": stop, "checkpoint": checkpoint}


# Steps


@dataclass(frozen=True)
class Covered:
    """The steps `after + 1` to `last`, for which there are recordings."""

    after: int
    last: int
    lacking: Mapping[str, tuple[int, ...]]
    """Route -> the steps of this range in which it carries a value that its recording does not have."""


def covered(plan: Plan, recorded: Mapping[str, Collection[int]]) -> Covered:
    """Returns the range of steps for which there are recordings. `recorded` maps names of routes to the steps
    that are recorded; `plan` is the whole plan, with all groups."""
    stages = {stage.name: stage for stage in plan.stages}
    times = times_by_stage(stages, lambda stage: [name for part in stage.inputs for name in part.stages])
    taken = {route.name: times[route.target] for route in plan.routes if recorded.get(route.name)}
    even = {name: when.period for name, when in taken.items() if not when.at}
    last = max((max(steps) for steps in recorded.values() if steps), default=0)
    last = min([last, *(max(recorded[name]) + period - 1 for name, period in even.items())])
    after = max([0, *(min(recorded[name]) - period for name, period in even.items())])
    lacking = {}
    for name, period in even.items():
        held = set(recorded[name])
        first = (after // period + 1) * period
        if gaps := tuple(step for step in range(first, last + 1, period) if step not in held):
            lacking[name] = gaps
    return Covered(after, last, lacking)
