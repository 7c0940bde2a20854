"""Resolves a checked recipe to a plan: groups receive devices and ranks, `auto` sizes become numbers, and
inputs become routes.

`resolve` never fails on a recipe that the rules accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from meshctl.plan.model import Block, Component, Group, Input, Plan, Program, Stage, copied
from meshctl.recipe import model as recipes
from meshctl.recipe.allocation import Allocation, allocation_of
from meshctl.recipe.code.classes import Endpoint
from meshctl.recipe.meshes import mesh_of
from meshctl.recipe.stages import modes_of
from meshctl.topology.modes import Route


def resolve(
    recipe: recipes.Recipe,
    endpoints: Mapping[str, Mapping[str, Endpoint]],
    samplers: Mapping[str, str] = {},
) -> Plan:
    """Returns the plan of a recipe. `endpoints` holds the decorators that were read, by component and method,
    and `samplers` the components whose engines others call, by these."""
    allocation = allocation_of(recipe)
    stages = tuple(_stage(stage, endpoints) for stage in in_order(recipe))
    routes = tuple(_routes(stages))
    return Plan(
        name=recipe.name,
        seed=recipe.seed,
        cluster=allocation.cluster,
        groups=tuple(_groups(recipe, allocation)),
        components=tuple(
            _component(recipe, component, endpoints.get(component.name, {}), samplers.get(component.name, ""))
            for component in recipe.components.values()
        ),
        stages=stages,
        routes=routes,
        run=replace(
            recipe.run,
            record=tuple(route.name for route in routes if {route.name, route.source} & {*recipe.run.record}),
        ),
        blocks=tuple(copied(Block, block) for block in recipe.blocks.values()),
    )


def in_order(recipe: recipes.Recipe) -> list[recipes.Stage]:
    """Returns the stages in the order of the recipe, except that a stage comes after its inputs and after the
    stages in its `after`. The stages of a block stay together."""
    left, placed = dict(recipe.pipeline), list[recipes.Stage]()
    block = ""
    while left:
        if not any(stage.block == block for stage in left.values()):
            block = ""  # all of its stages are placed
        ready = next(
            stage
            for stage in left.values()
            if block in ("", stage.block) and not any(other in left for other in recipe.before(stage))
        )
        block = ready.block
        placed.append(left.pop(ready.name))
    return placed


def _groups(recipe: recipes.Recipe, allocation: Allocation) -> Iterator[Group]:
    """Yields the groups in the order of the recipe. Job ranks are numbered in this order."""
    first_job_rank = 0
    for group in recipe.groups.values():
        program = None
        if own := group.program:
            start = ("-m", own.module) if own.module else (own.script,)
            program = Program((*start, *own.args), own.cwd, group.python, own.service)
        yield copied(
            Group,
            group,
            first_job_rank=first_job_rank,
            devices=allocation.devices[group.name],
            nodes=allocation.nodes.get(group.name, ()),
            program=program,
            python="" if group.program else group.python,
        )
        first_job_rank += group.workers


def _component(
    recipe: recipes.Recipe,
    component: recipes.Component,
    endpoints: Mapping[str, Endpoint],
    sampler: str,
) -> Component:
    declared: dict[str, tuple[str, str, str]] = {}
    for stage in recipe.pipeline.values():
        endpoint = endpoints.get(stage.method) if stage.component == component.name else None
        # A mode that the stage states itself, where it could not be read in the decorator, is compared with
        # no value of the decorator's.
        stated = {"dispatch": stage.dispatch.mode, "collect": stage.collect, "execute": stage.execute}
        if endpoint and not stated.get(endpoint.unread_parameter):
            declared[stage.method] = (endpoint.dispatch, endpoint.collect, endpoint.execute)
    mesh = mesh_of(recipe, component)
    return copied(Component, component, mesh=mesh, endpoints=declared, sampler=sampler)


def _stage(stage: recipes.Stage, endpoints: Mapping[str, Mapping[str, Endpoint]]) -> Stage:
    declared = endpoints.get(stage.component, {}).get(stage.method) if stage.kind == "call" else None
    modes = modes_of(stage, declared or Endpoint())
    inputs = zip(stage.inputs, modes.inputs, strict=True)
    # In a block the last pass may have fewer samples than shares.
    more: dict[str, Any] = {"allow_empty": True} if stage.block else {}
    return copied(
        Stage,
        stage,
        inputs=tuple(
            Input(given.stages, given.parameter, replace(dispatch, **more)) for given, dispatch in inputs
        ),
        execute=modes.execute,
        collect=modes.collect,
    )


def _routes(stages: tuple[Stage, ...]) -> Iterator[Route]:
    """Yields a route for each input stage of each parameter. The route of a sync leads from itself to
    itself."""
    collects = {stage.name: stage.collect for stage in stages}
    for stage in stages:
        if stage.kind == "sync":
            yield Route(stage.name, stage.name, stage.name, kind="weights", slots=stage.lag + 2)
        for given in stage.inputs:
            for source in given.stages:
                named = given.parameter if len(stage.inputs) > 1 else ""
                name, collect = recipes.route_name(source, stage.name, named), collects[source]
                ends = source, stage.name, given.parameter
                yield Route(name, *ends, collect=collect, dispatch=given.dispatch)
