"""Plans written by hand, for tests of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshctl.plan.model import Checkpoint, Cluster, Component, Group, Input, Plan, Run, Stage
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Dispatch, Route


def call(name: str, what: str, *inputs: str | Input, **more: Any) -> Stage:
    component, method = what.split(".")
    made = tuple(part if isinstance(part, Input) else Input((part,)) for part in inputs)
    return Stage(name, "call", component, method, made, **more)


def sync(name: str, source: str, target: str, **more: Any) -> Stage:
    return Stage(name, "sync", source, "weights", to=target, **{"to_method": "load_weights", **more})


def plan(
    groups: dict[str, int],
    components: dict[str, tuple[str, dict[str, Any]]],
    stages: Sequence[Stage],
    *,
    steps: int = 3,
    **run: Any,
) -> Plan:
    placed, first = [], 0
    for name, workers in groups.items():
        placed.append(Group(name, "cpu", workers, first))
        first += workers
    made = [
        Component(name, f"x.{name}", group, DeviceMesh.from_sizes(world_size=groups[group], **sizes))
        for name, (group, sizes) in components.items()
    ]
    routes = [route for stage in stages for route in routes_of(stage, stages)]
    return Plan(
        "test",
        0,
        Cluster(),
        tuple(placed),
        tuple(made),
        tuple(stages),
        tuple(routes),
        Run(steps=steps, **run),
    )


def routes_of(stage: Stage, stages: Sequence[Stage]) -> list[Route]:
    if stage.kind == "sync":
        return [Route(stage.name, stage.name, stage.name, kind="weights", slots=stage.lag + 2)]
    sources = {other.name: other for other in stages}
    return [
        Route(f"{name} -> {stage.name}{'.' * bool(part.parameter)}{part.parameter}", name, stage.name, part.parameter,
              collect=sources[name].collect, dispatch=part.dispatch)
        for part in stage.inputs for name in part.stages
    ]  # fmt: skip


__all__ = ["Checkpoint", "Dispatch", "Input", "call", "plan", "sync"]
